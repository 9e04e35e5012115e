"""Two database sessions side by side: one goes on while the other waits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, LiteralString

from tests.support.database import Connection, Database
from tests.support.waiting import wait_for_lock


class TwoSessions(AbstractContextManager["TwoSessions"]):
    """Two transactions `a` and `b` on one database, and an observer.

    `start` runs a statement of a session in the background; `blocks` does so and
    waits until it waits for a lock of the other session.
    """

    def __init__(self, database: Database) -> None:
        self.a = database.connect(autocommit=False)
        self.b = database.connect(autocommit=False)
        self.observer = database.connect()
        self._pool = ThreadPoolExecutor(2)

    def start(
        self, session: Connection, query: LiteralString, params: Sequence[Any] = ()
    ) -> Future[list[tuple[Any, ...]]]:
        """Run `query` in the background; the result of the future is its rows."""

        def run() -> list[tuple[Any, ...]]:
            cursor = session.execute(query, params)
            return cursor.fetchall() if cursor.description else []

        return self._pool.submit(run)

    def blocks(
        self, session: Connection, query: LiteralString, params: Sequence[Any] = ()
    ) -> Future[list[tuple[Any, ...]]]:
        """`start`, then wait until the statement waits for a lock."""
        future = self.start(session, query, params)
        wait_for_lock(self.observer, session.info.backend_pid)
        return future

    def __exit__(self, *_: object) -> None:
        for session in (self.a, self.b):
            if not session.closed:
                session.cancel_safe(timeout=5)
        self._pool.shutdown(wait=True)
        for session in (self.a, self.b, self.observer):
            session.close()
