"""Tables and types: numbered yoyo migrations, each run once, each with its rollback.

yoyo's runner is used for reading, ordering and bookkeeping, with three changes.
The connection string is libpq's own (sockets, passwords and service files work).
A migration and the mark that it ran are one transaction, so a crash leaves both or
neither. The lock is the deployer's advisory lock; yoyo's lock row, which outlives
a killed process, is cleared by whoever holds ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from yoyo import read_migrations
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.migrations import Migration, MigrationList, default_migration_table

from gradient.db.lock import deploy_lock, maintenance_connection

# yoyo's own tables stay out of our schemas, so that rolling back the first migration can
# drop those.
BOOKKEEPING_SCHEMA = "gradient_migration"
_FILE_NAME = re.compile(r"\d{4}\.[a-z0-9_-]+\.sql")


class MigrationError(Exception):
    """A migration is malformed, or the database holds one that this version does not know."""


@dataclass(frozen=True)
class MigrationStatus:
    """One migration: its name and whether this database has it."""

    name: str
    applied: bool


@dataclass(frozen=True)
class _Target:
    """What yoyo calls its URI; it asks it for the database's name."""

    dsn: str
    database: str = ""


class _Backend(PostgresqlPsycopgBackend):  # type: ignore[misc]
    """yoyo's PostgreSQL backend over a libpq connection string."""

    def connect(self, dburi: _Target) -> psycopg.Connection[Any]:
        self.schema = BOOKKEEPING_SCHEMA
        return maintenance_connection(dburi.dsn)

    def apply_one(self, migration: Migration, force: bool = False, mark: bool = True) -> None:
        """Run a migration and mark it, in one transaction."""
        self._run_marked(migration, "apply")

    def rollback_one(self, migration: Migration, force: bool = False) -> None:
        """Undo a migration and remove its mark, in one transaction."""
        self._run_marked(migration, "rollback")

    def _run_marked(self, migration: Migration, direction: str) -> None:
        migration.load()
        if not migration.use_transactions:
            raise MigrationError(f"{migration.id}: migrations run in a transaction")
        self.ensure_internal_schema_updated()
        with self.copy() as backend:
            # Already up to date; asking again would need a transaction of its own.
            backend._internal_schema_updated = True
            with backend.transaction():
                if direction == "apply":
                    backend.mark_one(migration)
                else:
                    backend.unmark_one(migration)
                migration.process_steps(backend, direction)


def migrate(dsn: str, root: Path) -> list[str]:
    """Apply what `root`/migrations has and the database has not; returns the names applied.

    Two callers at once apply each migration once: the second waits for the first.
    Raises MigrationError for a malformed folder and psycopg.Error for a failing
    statement; the failing migration then left nothing behind.
    """
    with deploy_lock(dsn) as conn:
        return migrate_locked(conn, dsn, root)


def migrate_locked(conn: psycopg.Connection[Any], dsn: str, root: Path) -> list[str]:
    """`migrate` for a caller that holds the deployers' lock on `conn`."""
    migrations = _read(root)
    applied = applied_names(conn)
    unknown = applied - {str(migration.id) for migration in migrations}
    if unknown:
        raise MigrationError(
            f"this database has migrations that this version does not know: "
            f"{', '.join(sorted(unknown))}; use the version of Gradient that applied them, or newer"
        )
    if all(str(migration.id) in applied for migration in migrations):
        # Finding that nothing is to be done needs no rights beyond reading.
        return []
    _ensure_bookkeeping_schema(conn)
    with _backend(dsn) as backend:
        outstanding = list(backend.to_apply(migrations))
        for migration in outstanding:
            backend.apply_one(migration)
        return [str(migration.id) for migration in outstanding]


def rollback_all(dsn: str, root: Path) -> list[str]:
    """Undo every applied migration, newest first; returns their names.

    What was deployed (functions, views, triggers) must be gone first: see
    `gradient.db.deploy.remove`. All data is lost.
    """
    with deploy_lock(dsn) as conn:
        _ensure_bookkeeping_schema(conn)
        with _backend(dsn) as backend:
            applied = list(backend.to_rollback(_read(root)))
            for migration in applied:
                backend.rollback_one(migration)
            return [str(migration.id) for migration in applied]


def status(dsn: str, root: Path) -> list[MigrationStatus]:
    """Every migration of the folder in order, and whether the database has it."""
    with maintenance_connection(dsn) as conn:
        applied = applied_names(conn)
    return [
        MigrationStatus(str(migration.id), str(migration.id) in applied)
        for migration in _read(root)
    ]


def applied_names(conn: psycopg.Connection[Any]) -> set[str]:
    """The names of the migrations this database has; empty when it was never migrated."""
    table = f"{BOOKKEEPING_SCHEMA}.{default_migration_table}"
    found = conn.execute("select to_regclass(%s)", [table]).fetchone()
    if found is None or found[0] is None:
        return set()
    query = sql.SQL("select migration_id from {}").format(
        sql.Identifier(BOOKKEEPING_SCHEMA, default_migration_table)
    )
    return {str(row[0]) for row in conn.execute(query)}


def _backend(dsn: str) -> _Backend:
    backend = _Backend(_Target(dsn), default_migration_table)
    backend.init_database()
    # We hold the advisory lock, so whoever left this row is dead.
    backend.break_lock()
    return backend


def _ensure_bookkeeping_schema(conn: psycopg.Connection[Any]) -> None:
    # IF NOT EXISTS would ask for the right to create schemas even when there is one.
    found = conn.execute("select to_regnamespace(%s)", [BOOKKEEPING_SCHEMA]).fetchone()
    if found is None or found[0] is None:
        conn.execute(sql.SQL("create schema {}").format(sql.Identifier(BOOKKEEPING_SCHEMA)))


def _read(root: Path) -> MigrationList:
    folder = root / "migrations"
    for path in sorted(folder.glob("*.sql")):
        name = path.name.replace(".rollback.sql", ".sql")
        if not _FILE_NAME.fullmatch(name):
            raise MigrationError(f"{path.name}: a migration is named NNNN.what-it-does.sql")
        for needed in (path.with_name(name), path.with_name(name[:-4] + ".rollback.sql")):
            if not needed.exists():
                raise MigrationError(f"{path.name}: {needed.name} is missing")
    return read_migrations(str(folder))
