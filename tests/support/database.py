"""Databases for tests: one migrated template, clones of it, and the check after every step."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gradient.db.deploy import upgrade
from gradient.db.source import sql_root

Connection = psycopg.Connection[Any]
_numbers = itertools.count(1)


def load_schema(**options: Any) -> None:
    """Migrate and deploy into the database that pytest-postgresql's janitor describes."""
    options.pop("autocommit", None)
    dsn = make_conninfo("", **{name: value for name, value in options.items() if value})
    upgrade(dsn, sql_root())


def fresh_name(purpose: str) -> str:
    """A database name that no other test process of this server uses."""
    return f"gradient_{purpose}_{os.getpid()}_{next(_numbers)}"


def with_database(dsn: str, dbname: str) -> str:
    """The same server and login, another database."""
    return make_conninfo(dsn, dbname=dbname)


def janitor_options(dsn: str) -> dict[str, Any]:
    """A connection string as the arguments that pytest-postgresql's janitor takes."""
    parts = conninfo_to_dict(dsn)
    return {
        "host": parts.get("host") or "",
        "port": int(parts.get("port") or 5432),
        "user": parts.get("user") or "postgres",
        "password": parts.get("password"),
        "maintenance_dbname": parts.get("dbname") or "postgres",
    }


class Database(AbstractContextManager["Database"]):
    """A database of a test's own: commits are real, and it is dropped at the end."""

    def __init__(self, server_dsn: str, name: str) -> None:
        self.name = name
        self.dsn = with_database(server_dsn, name)
        self._server_dsn = server_dsn
        self._connections = ExitStack()

    @classmethod
    def clone(cls, server_dsn: str, template: str) -> Database:
        """A copy of `template`, file by file, which is the fast way without fsync."""
        made = cls(server_dsn, fresh_name("clone"))
        with psycopg.connect(server_dsn, autocommit=True) as conn:
            conn.execute(
                sql.SQL("create database {} template {} strategy file_copy").format(
                    sql.Identifier(made.name), sql.Identifier(template)
                )
            )
        return made

    @classmethod
    def empty(cls, server_dsn: str) -> Database:
        """A database without anything of ours in it."""
        return cls.clone(server_dsn, "template1")

    def connect(self, *, autocommit: bool = True, role: str | None = None) -> Connection:
        """A new connection, closed with the database; `role` is set on it when given."""
        conn = psycopg.connect(self.dsn, autocommit=autocommit)
        # Closed, not committed: what a test left open is none of the next one's business.
        self._connections.callback(conn.close)
        if role is not None:
            conn.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
            if not autocommit:
                conn.commit()
        return conn

    def __exit__(self, *_: object) -> None:
        self._connections.close()
        with psycopg.connect(self._server_dsn, autocommit=True) as conn:
            conn.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self.name))
            )


def violations(conn: Connection) -> list[tuple[Any, ...]]:
    """The broken invariants of the database, as `gradient.violations()` lists them."""
    row = conn.execute("select to_regprocedure('gradient.violations()')").fetchone()
    if row is None or row[0] is None:
        return []
    return conn.execute("select * from gradient.violations()").fetchall()


def check(conn: Connection) -> None:
    """Fail the test when an invariant is broken; call it after every step."""
    found = violations(conn)
    assert not found, "broken invariants:\n" + "\n".join(map(str, found))


@contextmanager
def checked(conn: Connection) -> Iterator[Connection]:
    """Check the invariants when the block ends well."""
    yield conn
    if not conn.closed and conn.info.transaction_status != psycopg.pq.TransactionStatus.INERROR:
        check(conn)
