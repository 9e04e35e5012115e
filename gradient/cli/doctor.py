"""`gradient doctor`: what is in force, what is wrong, and what to do about it."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from typing import Any

import click
import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from gradient.cli.context import Context, pass_context
from gradient.cli.failures import REFUSED, Failure, explained
from gradient.cli.findings import Finding, State, fail, ok, warn
from gradient.cli.options import json_option
from gradient.cli.output import console, print_json, status_text
from gradient.cli.storage import probe_object_store
from gradient.cli.upgrading import upgrade_failures
from gradient.config import Config, config_file
from gradient.db import migrate as migrations
from gradient.db import verify as verifier
from gradient.db.embedded import EmbeddedDatabase
from gradient.db.lock import maintenance_connection
from gradient.db.settings import complaints
from gradient.db.source import AUDIENCES, sql_root
from gradient.secrets import SECRET_FILE, SecretError, Secrets

Connection = psycopg.Connection[Any]
SERVER_TIMEOUT_SECONDS = 3.0


@click.command()
@json_option
@pass_context
def doctor(context: Context, *, as_json: bool) -> None:
    """Check this installation step by step; each line says what to do.

    Exit code 0 when nothing fails (warnings included), 1 otherwise.

    \b
    Examples:
      gradient doctor
      gradient --database postgresql://db.example.org/gradient doctor
      gradient doctor --json
    """
    findings = []
    for finding in _examine(context):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print_json([msgspec.structs.asdict(finding) for finding in findings])
    if any(finding.state is State.FAIL for finding in findings):
        sys.exit(REFUSED)


def _print(finding: Finding) -> None:
    line = status_text(finding.state.value)
    line.pad_right(4 - len(finding.state.value))
    line.append(f"  {finding.check}: {finding.found}", style="default")
    out = console()
    out.print(line, soft_wrap=True)
    if finding.advice:
        out.print(f"      {finding.advice}", soft_wrap=True)


def _examine(context: Context) -> Iterator[Finding]:
    try:
        with explained():
            config = context.config
    except Failure as error:
        yield fail("configuration", error.message, "correct that value")
        return
    yield ok("configuration", str(config_file() or "no file; defaults, environment and flags"))
    yield ok("state folder", str(config.state_dir))
    yield from _attempt("secret", lambda: _secret(config))
    yield from _attempt("object store", lambda: probe_object_store(config))
    dsn = yield from _database(config)
    if dsn is not None:
        try:
            with maintenance_connection(dsn) as conn:
                yield from _examine_database(config, conn, dsn)
        except psycopg.OperationalError as error:
            yield fail("database", f"the connection broke: {error}", "look into PostgreSQL's log")
    yield from _server(config)


def _attempt(check: str, examine: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of one check; an error of it is a finding too, and ends only this check."""
    try:
        with explained(), upgrade_failures():
            yield from examine()
    except Failure as error:
        yield fail(check, error.message, error.hint)


def _secret(config: Config) -> Iterator[Finding]:
    path = config.state_dir / SECRET_FILE
    if not path.exists():
        yield warn(
            "secret",
            f"{path} does not exist yet",
            "the first server or 'gradient cache create' makes it; "
            "several servers must share the file",
        )
        return
    try:
        Secrets.from_state_dir(config.state_dir)
    except SecretError as error:
        yield fail("secret", str(error), "restore the file that the caches' keys were made with")
        return
    if path.stat().st_mode & 0o077:
        yield warn("secret", f"{path} is readable by others", f"chmod 600 {path}")
    else:
        yield ok("secret", str(path))


def _database(config: Config) -> Generator[Finding, None, str | None]:
    """The finding about reaching the database; returns the connection string, None without."""
    if config.database.url:
        dsn, place = config.database.url, "the configured database"
    else:
        try:
            with explained():
                status = EmbeddedDatabase(config.state_dir).status()
        except Failure as error:
            yield fail("database", error.message, error.hint)
            return None
        if status.dsn is None:
            yield fail(
                "database",
                f"none is configured, and the embedded one in {status.data_dir} does not run",
                "gradient up, or gradient server, starts it; or set database.url",
            )
            return None
        dsn, place = status.dsn, f"the embedded database in {status.data_dir}"
    try:
        with psycopg.connect(dsn, connect_timeout=10) as conn:
            version = conn.execute("show server_version").fetchone()
            yield ok("database", f"{place} answers, PostgreSQL {version[0] if version else '?'}")
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[-1]
        yield fail("database", f"{place} does not answer: {reason}", "check database.url")
        return None
    return dsn


def _examine_database(config: Config, conn: Connection, dsn: str) -> Iterator[Finding]:
    yield from _attempt("server settings", lambda: _server_settings(conn))
    yield from _attempt("lock table", lambda: _lock_table(conn))
    migrated = migrations.applied_names(conn)
    yield from _attempt("migrations", lambda: _migrations(dsn, migrated))
    if not migrated:
        return
    yield from _attempt("functions", lambda: _functions(dsn))
    yield from _attempt("roles", lambda: _roles(config, conn))
    yield from _attempt("cache keys", lambda: _cache_keys(config, conn))
    yield from _attempt("servers", lambda: _servers(config, conn))
    yield from _attempt("workers", lambda: _workers(conn))


def _server_settings(conn: Connection) -> Iterator[Finding]:
    found = complaints(conn)
    if not found:
        yield ok("settings", "isolation, timeouts, jit and locks are as they should be")
    for text in found:
        problem, _, advice = text.partition(": ")
        yield warn("settings", problem, advice)


def _lock_table(conn: Connection) -> Iterator[Finding]:
    row = conn.execute(
        "select current_setting('max_locks_per_transaction')::bigint"
        " * (current_setting('max_connections')::bigint"
        "    + current_setting('max_prepared_transactions')::bigint)"
    ).fetchone()
    slots = int(row[0]) if row else 0
    text = f"room for about {slots:,} locks"
    if slots < 16_384:
        yield warn(
            "lock table", text, "alter system set max_locks_per_transaction = 1024; then restart"
        )
    else:
        yield ok("lock table", text)


def _migrations(dsn: str, applied: set[str]) -> Iterator[Finding]:
    known = [item.name for item in migrations.status(dsn, sql_root())]
    missing = [name for name in known if name not in applied]
    newer = sorted(applied.difference(known))
    if newer:
        yield fail(
            "migrations",
            f"the database has {', '.join(newer)}, which this version does not know",
            "install the version of Gradient that the database was migrated by",
        )
    elif missing:
        yield fail("migrations", f"missing: {', '.join(missing)}", "gradient db migrate")
    else:
        yield ok("migrations", f"all {len(known)} applied")


def _functions(dsn: str) -> Iterator[Finding]:
    drifts = verifier.verify(dsn, sql_root())
    if drifts:
        first = drifts[0]
        more = f", and {len(drifts) - 1} more" if len(drifts) > 1 else ""
        yield fail(
            "functions",
            f"{first.identity}: {first.problem}{more}",
            "gradient db verify lists them, gradient db migrate deploys this version's",
        )
    else:
        yield ok("functions", "the database holds what this version deploys")


def _roles(config: Config, conn: Connection) -> Iterator[Finding]:
    prefix = config.database.role_prefix
    wanted = [f"{prefix}_{suffix}" for suffix in ("owner", *AUDIENCES)]
    rows = conn.execute(
        "select rolname, pg_has_role(oid, 'MEMBER') from pg_roles where rolname = any(%s)", [wanted]
    ).fetchall()
    present = dict(rows)
    missing = [role for role in wanted if role not in present]
    if missing:
        yield warn(
            "roles",
            f"missing: {', '.join(missing)}; nothing but discipline keeps a connection from "
            "writing tables directly",
            "as a superuser: " + " ".join(f"create role {role} nologin;" for role in missing),
        )
        return
    foreign = [role for role in wanted[1:] if not present[role]]
    if foreign:
        yield warn(
            "roles",
            f"this login is not a member of {', '.join(foreign)}",
            f"as a superuser: grant {', '.join(foreign)} to {conn.info.user};",
        )
    else:
        yield ok("roles", ", ".join(wanted))


def _cache_keys(config: Config, conn: Connection) -> Iterator[Finding]:
    try:
        rows = conn.execute(
            "select name, private_key_encrypted from gradient.cache order by name"
        ).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        yield warn("cache keys", "this login may not read them", "run doctor as the server does")
        return
    if not rows:
        yield ok("cache keys", "there is no cache yet")
        return
    if not (config.state_dir / SECRET_FILE).exists():
        yield fail(
            "cache keys",
            f"no secret in {config.state_dir} opens the keys of {len(rows)} caches",
            f"copy the file {SECRET_FILE!r} from the state folder of the server that made them",
        )
        return
    secrets = Secrets.from_state_dir(config.state_dir)
    for name, sealed in rows:
        try:
            secrets.decrypt(sealed, f"cache:{name}")
        except SecretError as error:
            yield fail("cache keys", str(error), "nothing can be signed for that cache until then")
            return
    yield ok("cache keys", f"the secret opens the keys of all {len(rows)} caches")


def _servers(config: Config, conn: Connection) -> Iterator[Finding]:
    rows = _dicts(conn, "select * from gradient.server_overview order by instance")
    alive = [row for row in rows if row["state"] != "Gone"]
    if not alive:
        yield warn("servers", "no server runs on this database", "gradient server, or gradient up")
        return
    names = ", ".join(f"{row['instance']} ({row['version']})" for row in alive)
    yield ok("servers", names)
    if len(alive) > 1 and config.object_store_url.startswith("file://"):
        yield warn(
            "servers",
            f"{len(alive)} servers, and the object store is the folder {config.object_store_url}",
            "make it a folder that all of them share, or an S3 bucket",
        )


def _workers(conn: Connection) -> Iterator[Finding]:
    rows = _dicts(conn, "select * from gradient.worker_overview order by worker")
    connected = [row for row in rows if row["state"] in ("Connected", "Draining")]
    if not connected:
        yield warn(
            "workers",
            "none is connected",
            "gradient-worker run on a machine with Nix; gradient-worker check says what it lacks",
        )
    for row in connected:
        systems = " ".join(row["architectures"])
        yield ok("worker", f"{row['worker']}: {row['version']}, {systems}")


def _dicts(conn: Connection, query: str) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute(sql.SQL(query))
        return cursor.fetchall()


def _server(config: Config) -> Iterator[Finding]:
    url = f"{config.url}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=SERVER_TIMEOUT_SECONDS):
            yield ok("http", f"{url} says ready")
    except urllib.error.HTTPError as error:
        text = error.read(500).decode(errors="replace").strip()
        yield fail("http", f"{url} says {error.code}: {text}", "look into the server's log")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        yield warn("http", f"no server answers at {url}: {reason}", "gradient server starts one")
