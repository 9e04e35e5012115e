"""Functions, views, triggers, comments and grants: replaced by what the folder holds.

The folder `sql/functions` is the truth. When its digest differs from the deployed one,
one transaction brings the database to it: CREATE OR REPLACE where the signature
stands, drop and create where it does not, drop what the folder no longer has. Views
and triggers are touched only when their own text (or their fingerprint in the
database) changed, since replacing them stalls whoever uses the table.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql

from gradient.db import catalog
from gradient.db.catalog import Found, Remembered
from gradient.db.lock import deploy_lock
from gradient.db.migrate import applied_names, migrate_locked
from gradient.db.roles import DEFAULT_PREFIX, Roles, ensure_roles, grant, take_ownership
from gradient.db.settings import apply_database_settings
from gradient.db.source import SCHEMAS, Kind, SqlFile, read_functions
from gradient.db.units import Unit, units

# Raised when the deployer itself works differently, so that everything is deployed again.
DEPLOYER_VERSION = 1
LOCK_TIMEOUT = "1s"
ATTEMPTS = 30
# A rival that holds a lock, a deadlock, and "tuple concurrently updated" (an internal error
# by its class) when somebody grants or analyses meanwhile.
_RETRIED = (errors.LockNotAvailable, errors.DeadlockDetected, errors.InternalError_)
# What a statement raises whose dependency is created by a later one.
_NOT_YET = (
    errors.UndefinedFunction,
    errors.UndefinedTable,
    errors.UndefinedObject,
    errors.UndefinedColumn,
)
# What CREATE OR REPLACE raises when the signature or the columns do not stand.
_REPLACE_REFUSED = (errors.InvalidFunctionDefinition, errors.InvalidTableDefinition)

_Result = TypeVar("_Result")


class DeployError(Exception):
    """The functions folder cannot be deployed; the text names the file and the reason."""


@dataclass
class DeployReport:
    """What one run of the deployer did.

    `migrations` names the migrations applied, `created` and `dropped` the objects
    touched; all empty when the database was up to date. `notes` are for a person.
    """

    migrations: list[str] = field(default_factory=list)
    deployed: bool = False
    created: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def upgrade(dsn: str, root: Path, *, role_prefix: str = DEFAULT_PREFIX) -> DeployReport:
    """Migrate and deploy: bring the database to what `root` holds.

    Any number of servers may call this at once; one does the work, the others find
    nothing left to do. `dsn` needs the rights to create schemas in its database, or,
    where nothing is left to do, to read there. Raises DeployError when it lacks them.
    """
    with deploy_lock(dsn) as conn, _rights_explained(conn):
        applied = migrate_locked(conn, dsn, root)
        report = deploy_locked(conn, root, role_prefix=role_prefix)
        report.migrations = applied
        return report


def deploy(
    dsn: str, root: Path, *, role_prefix: str = DEFAULT_PREFIX, force: bool = False
) -> DeployReport:
    """Deploy the functions folder on a migrated database; `force` ignores the digest."""
    with deploy_lock(dsn) as conn, _rights_explained(conn):
        return deploy_locked(conn, root, role_prefix=role_prefix, force=force)


@contextmanager
def _rights_explained(conn: psycopg.Connection[Any]) -> Iterator[None]:
    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise DeployError(
            f"the login {conn.info.user} may not bring the database to this version "
            f"({str(error).splitlines()[0]}); run 'gradient db migrate' as its owner first"
        ) from error


def deploy_locked(
    conn: psycopg.Connection[Any],
    root: Path,
    *,
    role_prefix: str = DEFAULT_PREFIX,
    force: bool = False,
) -> DeployReport:
    """`deploy` for a caller that holds the deployers' lock on `conn` (autocommit)."""
    files = read_functions(root)
    roles = ensure_roles(conn, role_prefix)
    report = DeployReport(notes=list(roles.notes))
    report.notes.extend(apply_database_settings(conn))
    digest = folder_digest(conn, files, roles)
    if not force and _deployed_digest(conn) == digest:
        return report
    created, dropped = _retrying(lambda: _Deployment(conn, files, roles, digest).run())
    report.deployed, report.created, report.dropped = True, created, dropped
    return report


def folder_digest(conn: psycopg.Connection[Any], files: Iterable[SqlFile], roles: Roles) -> str:
    """What a deployment depends on: files, tables, roles, the server's major version."""
    parts = [str(DEPLOYER_VERSION), str(conn.info.server_version // 10000)]
    parts += [f"{file.path} {file.sha256}" for file in files]
    parts += sorted(applied_names(conn))
    parts += [roles.prefix, *sorted(roles.existing)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _deployed_digest(conn: psycopg.Connection[Any]) -> str | None:
    row = conn.execute("select digest from gradient.deployment").fetchone()
    return str(row[0]) if row else None


def _retrying(attempt: Callable[[], _Result]) -> _Result:
    """Run the deployment's transaction again while somebody is in its way."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except _RETRIED as error:
            if number == ATTEMPTS:
                raise DeployError(
                    f"gave up after {ATTEMPTS} attempts, a lock was never free: {error}"
                ) from error
            # Leave the queue for a moment: whoever waits behind us must get through.
            time.sleep(random.uniform(0.05, min(2.0, 0.2 * number)))
    raise AssertionError("unreachable")


class _Deployment:
    """One attempt at the deployment's transaction."""

    def __init__(
        self, conn: psycopg.Connection[Any], files: list[SqlFile], roles: Roles, digest: str
    ) -> None:
        self.conn = conn
        self.files = files
        self.roles = roles
        self.digest = digest
        self.units = units(files)
        self.created: set[str] = set()
        self.dropped: set[str] = set()

    def run(self) -> tuple[list[str], list[str]]:
        """Do it; returns the names created or replaced, and those dropped."""
        with self.conn.transaction():
            self._prepare()
            remembered = catalog.remembered(self.conn)
            self._drop_vanished(remembered.values())
            self._create(self._stale_units(remembered))
            self._comment(remembered)
            self._validate_bodies()
            take_ownership(self.conn, self.roles)
            grant(self.conn, self.roles, self._executable())
            self._remember()
        return sorted(self.created), sorted(self.dropped)

    def _prepare(self) -> None:
        self._run(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
        # Whatever a file does not qualify with its schema fails here, not in production.
        self._run("set local search_path = pg_catalog")
        # Functions may call each other in any order; they are validated at the end.
        self._run("set local check_function_bodies = off")

    def _run(self, statement: str) -> None:
        # The text comes from our own folder, never from a user.
        self.conn.execute(sql.SQL(statement))

    def _found(self) -> dict[tuple[Kind, str], list[Found]]:
        by_name: dict[tuple[Kind, str], list[Found]] = defaultdict(list)
        for found in catalog.objects(self.conn):
            by_name[found.kind, found.name].append(found)
        return by_name

    def _stale_units(self, remembered: Any) -> list[Unit]:
        """The units whose text changed, or whose object is missing or was changed by hand."""
        found = self._found()
        return [unit for unit in self.units if not self._stands(unit, found, remembered)]

    def _stands(self, unit: Unit, found: Any, remembered: Any) -> bool:
        present: list[Found] = found.get((unit.kind, unit.name), [])
        rows: list[Remembered | None] = [remembered.get(entry.key) for entry in present]
        return bool(present) and all(
            row is not None and row.sha256 == unit.sha256 and row.fingerprint == entry.fingerprint
            for row, entry in zip(rows, present, strict=True)
        )

    def _drop_vanished(self, remembered: Iterable[Remembered]) -> None:
        wanted = {(unit.kind.value, unit.name) for unit in self.units}
        gone = [row for row in remembered if row.kind != "file"]
        gone = [row for row in gone if (row.kind, row.name) not in wanted]
        present = {found.key for found in catalog.objects(self.conn)}
        for kind in (Kind.TRIGGER, Kind.VIEW, Kind.FUNCTION):
            for row in gone:
                if row.kind == kind and row.key in present:
                    self._drop(kind, row.identity)

    def _drop(self, kind: Kind, identity: str) -> None:
        """Drop one object with the functions, views and triggers that hang on it.

        The folder's own among those are created again afterwards. A table that
        depends on it is an error: tables never depend on what is deployed.
        """
        if kind is Kind.TRIGGER:
            table, name = identity.rsplit(".", 1)
            self._run(f"drop trigger if exists {name} on {table}")
        else:
            if not self._exists(kind, identity):
                return
            holding = catalog.tables_depending(self.conn, kind, identity)
            if holding:
                raise DeployError(
                    f"cannot replace {kind} {identity}: {', '.join(holding)} depends on it. "
                    "Tables must not depend on deployed objects"
                )
            word = "routine" if kind is Kind.FUNCTION else "view"
            self._run(f"drop {word} if exists {identity} cascade")
        self.dropped.add(identity)

    def _exists(self, kind: Kind, identity: str) -> bool:
        probe = "to_regprocedure" if kind is Kind.FUNCTION else "to_regclass"
        row = self.conn.execute(
            sql.SQL("select {}(%s) is not null").format(sql.SQL(probe)),
            [identity],
        ).fetchone()
        return bool(row and row[0])

    def _create(self, stale: list[Unit]) -> None:
        """Create the units, and again those that a CASCADE took away meanwhile."""
        for _ in range(5):
            if not stale:
                return
            self._create_in_rounds(stale)
            found = self._found()
            stale = [unit for unit in self.units if not found.get((unit.kind, unit.name))]
        raise DeployError(
            f"cannot settle: {', '.join(unit.name for unit in stale)} vanish with each other"
        )

    def _create_in_rounds(self, units: list[Unit]) -> None:
        waiting = units
        while waiting:
            blocked: list[tuple[Unit, psycopg.Error]] = []
            for unit in waiting:
                try:
                    with self.conn.transaction():
                        self._create_unit(unit)
                except _NOT_YET as error:
                    blocked.append((unit, error))
                except (*_RETRIED, errors.InsufficientPrivilege):
                    raise
                except psycopg.Error as error:
                    raise DeployError(f"{unit.file.path}: {unit.name}: {error}") from error
            if blocked and len(blocked) == len(waiting):
                unit, reason = blocked[0]
                raise DeployError(f"{unit.file.path}: {unit.name}: {reason}") from reason
            waiting = [unit for unit, _ in blocked]

    def _create_unit(self, unit: Unit) -> None:
        before = catalog.versions(self.conn, unit.kind, unit.name)
        try:
            with self.conn.transaction():
                self._execute(unit)
        except _REPLACE_REFUSED:
            for identity in before:
                self._drop(unit.kind, identity)
            self._execute(unit)
        for identity, version in catalog.versions(self.conn, unit.kind, unit.name).items():
            # An overload that no statement of the file made is one of an older text.
            if before.get(identity) == version:
                self._drop(unit.kind, identity)
        self.created.add(unit.name)

    def _execute(self, unit: Unit) -> None:
        for statement in unit.statements:
            self._run(statement.text)

    def _comment(self, remembered: Any) -> None:
        for file in self.files:
            row = remembered.get(("file", file.path))
            touched = any(
                statement.name in self.created
                for statement in file.statements
                if statement.kind is not Kind.COMMENT
            )
            if row is None or row.sha256 != file.sha256 or touched:
                for statement in file.statements:
                    if statement.kind is Kind.COMMENT:
                        try:
                            self._run(statement.text)
                        except (*_NOT_YET, errors.SyntaxError) as error:
                            raise DeployError(f"{file.path}: {error}") from error

    def _validate_bodies(self) -> None:
        """Let the server check every body created, now that all of them exist."""
        self._run("set local check_function_bodies = on")
        rows = self.conn.execute(
            "select p.oid, p.oid::regprocedure::text, l.lanname"
            " from pg_proc p join pg_language l on l.oid = p.prolang"
            " join pg_namespace s on s.oid = p.pronamespace"
            " where s.nspname = any(%s) and l.lanname in ('sql', 'plpgsql')"
            " and s.nspname || '.' || p.proname = any(%s)",
            [list(SCHEMAS), sorted(self.created)],
        ).fetchall()
        for oid, identity, language in rows:
            validator = "fmgr_sql_validator" if language == "sql" else "plpgsql_validator"
            try:
                self.conn.execute(sql.SQL("select {}(%s)").format(sql.Identifier(validator)), [oid])
            except _RETRIED:
                raise
            except psycopg.Error as error:
                raise DeployError(f"{identity}: {error}") from error

    def _executable(self) -> dict[str, tuple[str, ...]]:
        files = {unit.name: unit.file for unit in self.units if unit.kind is Kind.FUNCTION}
        return {
            found.identity: files[found.name].may_execute(found.name)
            for found in catalog.objects(self.conn)
            if found.kind is Kind.FUNCTION and found.name in files
        }

    def _remember(self) -> None:
        units = {(unit.kind, unit.name): unit for unit in self.units}
        rows = [("file", file.path, file.path, file.path, file.sha256, "") for file in self.files]
        for found in catalog.objects(self.conn):
            unit = units.get((found.kind, found.name))
            if unit is not None:
                rows.append(
                    (
                        found.kind.value,
                        found.identity,
                        found.name,
                        unit.file.path,
                        unit.sha256,
                        found.fingerprint,
                    )
                )
        self.conn.execute("delete from gradient.deployed_object")
        self.conn.execute(
            "insert into gradient.deployed_object (kind, identity, name, path, sha256, fingerprint)"
            " select * from unnest(%s::text[], %s::text[], %s::text[],"
            " %s::text[], %s::text[], %s::text[])",
            [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 6,
        )
        self.conn.execute(
            "insert into gradient.deployment (singleton, digest, role_prefix, server_version,"
            " deployed_at) values (true, %s, %s, %s, %s)"
            " on conflict (singleton) do update set digest = excluded.digest,"
            " role_prefix = excluded.role_prefix, server_version = excluded.server_version,"
            " deployed_at = excluded.deployed_at",
            [
                self.digest,
                self.roles.prefix,
                self.conn.info.server_version // 10000,
                datetime.now(UTC),
            ],
        )


def remove(dsn: str) -> list[str]:
    """Drop every function, view and trigger of our schemas; returns their names.

    The way back to bare tables, before `gradient.db.migrate.rollback_all`.
    """
    with deploy_lock(dsn) as conn, conn.transaction():
        conn.execute("set local search_path = pg_catalog")
        removed = _Deployment(conn, [], Roles(DEFAULT_PREFIX, (), None, {}, ()), "")
        for kind in (Kind.TRIGGER, Kind.VIEW, Kind.FUNCTION):
            for found in catalog.objects(conn):
                if found.kind is kind:
                    removed._drop(kind, found.identity)
        conn.execute("delete from gradient.deployed_object")
        conn.execute("delete from gradient.deployment")
        return sorted(removed.dropped)
