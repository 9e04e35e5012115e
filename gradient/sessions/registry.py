"""All sessions of this server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, Final

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from starlette.websockets import WebSocket, WebSocketDisconnect

from gradient.errors import GradientError
from gradient.protocol import JobKind
from gradient.sessions.handshake import greet
from gradient.sessions.session import CLOSE_REPLACED, CLOSE_RESTART, Session, SessionParts

CLOSE_SILENT: Final = 4408
HANG_UP_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class Sessions:
    """The sessions by worker. `instance` is the server's name in gradient.server_instance."""

    def __init__(self, instance: str, parts: SessionParts) -> None:
        self._instance = instance
        self._parts = parts
        self._by_worker: dict[str, Session] = {}
        self._refusal: str | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._by_worker)

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its greeting to its end."""
        try:
            welcome = await greet(
                socket,
                self._parts.rules,
                self._instance,
                refusal=self._why_refused,
                seconds=self._parts.timing.handshake,
            )
        except (WebSocketDisconnect, RuntimeError):
            return
        if welcome is None:
            return
        session = Session(socket, welcome, self._parts)
        former = self._by_worker.get(session.worker)
        if former is not None:
            former.close(CLOSE_REPLACED, "the worker connected again")
        self._by_worker[session.worker] = session
        self._empty.clear()
        log.info("worker connected", worker=session.worker, connection=session.connection)
        if self._refusal is not None:
            session.close(CLOSE_RESTART, self._refusal)
        try:
            await session.run()
        finally:
            if self._by_worker.get(session.worker) is session:
                del self._by_worker[session.worker]
            log.info("worker disconnected", worker=session.worker, connection=session.connection)
            await self._disconnected(session)
            if not self._by_worker:
                self._empty.set()

    def _why_refused(self) -> str | None:
        if self._refusal is None and not self._parts.may_assign():
            return "This server has lost the database and waits to take its lock again."
        return self._refusal

    async def _disconnected(self, session: Session) -> None:
        try:
            await self._parts.rules.patient_value(
                "scheduler.worker_disconnected", session.worker, session.connection
            )
        except (GradientError, psycopg.Error, PoolTimeout) as error:
            log.warning("disconnect not recorded", worker=session.worker, error=str(error))

    def wake(self, *kinds: JobKind) -> None:
        """Let every session look for jobs of these kinds (any, when none is given) and for offers.

        In no particular order, so that no worker is always first.
        """
        sessions = list(self._by_worker.values())
        random.shuffle(sessions)
        for session in sessions:
            session.wake(*kinds)

    async def abort(self, orders: list[dict[str, Any]]) -> None:
        """Pass on what `scheduler.aborts` lists."""
        for order in orders:
            session = self._by_worker.get(order["worker"])
            if session is not None:
                await session.abort(order["assignment"], order["reason"])

    def seen(self) -> list[tuple[str, float, dict[str, Any]]]:
        """Worker, seconds of silence and metrics of every session."""
        return [(s.worker, s.silence, s.metrics) for s in self._by_worker.values()]

    def close_silent(self) -> None:
        """End the sessions whose workers said nothing for the grace that they were told."""
        for session in list(self._by_worker.values()):
            if session.silence > session.grace_seconds:
                session.close(CLOSE_SILENT, "nothing was heard of the worker")

    def close_all(self, reason: str) -> None:
        """End every session; the workers connect again."""
        for session in list(self._by_worker.values()):
            session.close(CLOSE_RESTART, reason)

    async def drain(self, reason: str, seconds: float) -> None:
        """Let nobody in, hand out nothing; close when all are idle, at the latest in `seconds`."""
        self._refusal = reason
        sessions = list(self._by_worker.values())
        await asyncio.gather(*(session.drain(reason) for session in sessions))
        deadline = asyncio.get_running_loop().time() + seconds
        while any(session.busy for session in self._by_worker.values()):
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(min(0.1, seconds))
        self.close_all(reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG_UP_SECONDS):
                await self._empty.wait()
