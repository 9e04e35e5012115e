"""One deployer at a time: the advisory lock around migrating and deploying."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

# The namespace above the graph's own advisory keys (642 the turn, 643 shared builds).
DEPLOY_LOCK_NAMESPACE = 641


def maintenance_connection(dsn: str) -> psycopg.Connection[Any]:
    """An autocommit connection without the time limits that the database sets for servers."""
    conn = psycopg.connect(dsn, autocommit=True, application_name="gradient db")
    conn.execute("set statement_timeout = 0")
    conn.execute("set lock_timeout = 0")
    conn.execute("set idle_in_transaction_session_timeout = 0")
    conn.execute("set client_min_messages = warning")
    return conn


@contextmanager
def deploy_lock(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Hold the deployers' lock of this database; wait for another deployer to end.

    Yields the connection that holds it. The lock belongs to the session, so `dsn`
    must lead to PostgreSQL itself, not to a transaction pooler.
    """
    with maintenance_connection(dsn) as conn:
        conn.execute("select pg_advisory_lock(%s, 0)", [DEPLOY_LOCK_NAMESPACE])
        try:
            yield conn
        finally:
            if not conn.closed:
                conn.execute("select pg_advisory_unlock(%s, 0)", [DEPLOY_LOCK_NAMESPACE])
