"""The fixtures every suite shares.

`db` is a connection whose work is rolled back; `clean_db` is a database of the test's
own, for what must commit. Both are checked at the end: no invariant may be broken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from pytest_postgresql.janitor import DatabaseJanitor

from tests.support.database import (
    Connection,
    Database,
    check,
    checked,
    fresh_name,
    janitor_options,
    load_schema,
)
from tests.support.server import test_cluster
from tests.support.sessions import TwoSessions


@pytest.fixture(scope="session")
def pg_server() -> Iterator[str]:
    """Connection string of the server under test, as a superuser.

    GRADIENT_TEST_DSN names one that runs; otherwise one is started: of the wheel, or
    of Debian's packages when GRADIENT_TEST_PG gives their major version.
    """
    given = os.environ.get("GRADIENT_TEST_DSN")
    if given:
        yield given
        return
    with test_cluster(os.environ.get("GRADIENT_TEST_PG")) as cluster:
        yield cluster.dsn()


@pytest.fixture(scope="session")
def template_db(pg_server: str) -> Iterator[str]:
    """Name of the database that was migrated and deployed once; clones are made of it."""
    with DatabaseJanitor(
        dbname=fresh_name("template"), as_template=True, **janitor_options(pg_server)
    ) as janitor:
        janitor.load(load_schema)
        yield janitor.dbname


@pytest.fixture(scope="session")
def shared_db(pg_server: str, template_db: str) -> Iterator[Database]:
    """The clone that all `db` connections of this process share; nothing ever commits there."""
    with Database.clone(pg_server, template_db) as database:
        yield database


@pytest.fixture
def db(shared_db: Database) -> Iterator[Connection]:
    """A connection in a transaction that is rolled back at the end of the test."""
    with psycopg.connect(shared_db.dsn, autocommit=False) as conn:
        with checked(conn):
            yield conn
        conn.rollback()


@pytest.fixture
def clean_db(pg_server: str, template_db: str) -> Iterator[Database]:
    """A migrated and deployed database of this test's own, for whatever commits."""
    with Database.clone(pg_server, template_db) as database:
        yield database
        with psycopg.connect(database.dsn, autocommit=True) as conn:
            check(conn)


@pytest.fixture
def empty_db(pg_server: str) -> Iterator[Database]:
    """A database of this test's own with nothing in it."""
    with Database.empty(pg_server) as database:
        yield database


@pytest.fixture
def two_sessions(clean_db: Database) -> Iterator[TwoSessions]:
    """Two transactions side by side on a database of their own."""
    with TwoSessions(clean_db) as sessions:
        yield sessions
