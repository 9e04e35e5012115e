"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

Value = TypeVar("Value")


def wait_until(
    predicate: Callable[[], Value], timeout: float = 10.0, what: str = "the condition"
) -> Value:
    """Call `predicate` until it returns something true, at most `timeout` seconds.

    Returns that value; raises AssertionError naming `what` at the deadline.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {timeout} s")
        time.sleep(0.01)


def wait_for_lock(conn: psycopg.Connection[Any], pid: int, timeout: float = 10.0) -> None:
    """Wait until the backend `pid` waits for a lock; `conn` is another, autocommit connection."""

    def waits() -> bool:
        row = conn.execute(
            "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", [pid]
        ).fetchone()
        return bool(row and row[0])

    wait_until(waits, timeout, f"backend {pid} waiting for a lock")
