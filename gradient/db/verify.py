"""Drift: where the database and the functions folder differ, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradient.db import catalog
from gradient.db.lock import maintenance_connection
from gradient.db.source import read_functions


@dataclass(frozen=True)
class Drift:
    """One difference: the object or file, and what is wrong with it."""

    identity: str
    problem: str


def verify(dsn: str, root: Path) -> list[Drift]:
    """Every difference between `root`/functions, what was deployed, and what is there now.

    Empty when all three agree. Raises SourceError for a malformed folder, and
    psycopg.errors.UndefinedTable on a database that was never migrated.
    """
    files = {file.path: file.sha256 for file in read_functions(root)}
    with maintenance_connection(dsn) as conn:
        conn.execute("set search_path = pg_catalog")
        remembered = catalog.remembered(conn)
        present = {found.key: found.fingerprint for found in catalog.objects(conn)}
    drifts = []
    deployed_files = {row.path: row.sha256 for row in remembered.values() if row.kind == "file"}
    for path in sorted(files.keys() | deployed_files.keys()):
        if files.get(path) != deployed_files.get(path):
            drifts.append(Drift(path, "not deployed in this version"))
    for key, row in sorted(remembered.items()):
        if row.kind == "file":
            continue
        if key not in present:
            drifts.append(Drift(row.identity, "missing from the database"))
        elif present[key] != row.fingerprint:
            drifts.append(Drift(row.identity, "changed by hand"))
    for key in sorted(present.keys() - remembered.keys()):
        drifts.append(Drift(key[1], "not from the functions folder"))
    return drifts
