"""The settings that Gradient needs of its database and of the whole server.

Those of the database are set by the deployer where it may; those of the server are
only checked, since they need a restart.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors, sql

# jit: sweeps ran about three times slower with it. The timeouts are the net below the
# budgets that callers set for themselves.
DATABASE_SETTINGS = {
    "jit": "off",
    "statement_timeout": "120s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
}
MINIMUM_SERVER_VERSION = 150000
MINIMUM_LOCKS_PER_TRANSACTION = 1024


def apply_database_settings(conn: psycopg.Connection[Any]) -> list[str]:
    """Set on the database what is not set yet; returns a note for each that could not be."""
    in_force = _database_settings(conn)
    notes = []
    for name, value in DATABASE_SETTINGS.items():
        if in_force.get(name) == value:
            continue
        statement = sql.SQL("alter database {} set {} = {}").format(
            sql.Identifier(conn.info.dbname), sql.Identifier(name), sql.Literal(value)
        )
        try:
            conn.execute(statement)
        except errors.InsufficientPrivilege:
            notes.append(f"as the database's owner: {statement.as_string(conn)};")
        except errors.InternalError_:
            # Two databases of one cluster being set up at once; the other deployer's is as good.
            conn.execute(statement)
    return notes


def _database_settings(conn: psycopg.Connection[Any]) -> dict[str, str]:
    row = conn.execute(
        "select s.setconfig from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase"
        " where d.datname = current_database() and s.setrole = 0"
    ).fetchone()
    return dict(entry.split("=", 1) for entry in row[0]) if row else {}


def complaints(conn: psycopg.Connection[Any]) -> list[str]:
    """What is wrong with this server and database for Gradient, each with what to do."""
    found = []
    if conn.info.server_version < MINIMUM_SERVER_VERSION:
        found.append(
            f"PostgreSQL {conn.info.server_version // 10000} is too old; 15 or newer is needed"
        )
    locks = int(_show(conn, "max_locks_per_transaction"))
    if locks < MINIMUM_LOCKS_PER_TRANSACTION:
        found.append(
            f"max_locks_per_transaction is {locks}; a flush may run out of locks for everybody. "
            f"alter system set max_locks_per_transaction = {MINIMUM_LOCKS_PER_TRANSACTION}; "
            "and restart PostgreSQL"
        )
    if _show(conn, "default_transaction_isolation") != "read committed":
        found.append(
            "default_transaction_isolation is not 'read committed', which every lock relies on"
        )
    in_force = _database_settings(conn)
    for name, value in DATABASE_SETTINGS.items():
        if in_force.get(name) != value:
            found.append(
                f"{name} is {_show(conn, name)!r} instead of {value!r}: "
                f"alter database {conn.info.dbname} set {name} = '{value}';"
            )
    return found


def _show(conn: psycopg.Connection[Any], name: str) -> str:
    row = conn.execute("select current_setting(%s)", [name]).fetchone()
    return str(row[0]) if row else ""
