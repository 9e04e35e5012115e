"""This server as one of several: its row, its lock, and fencing itself when the lock is lost.

The lock is a session-level advisory lock on a direct connection of its own (never through a
pooler): while it is held nobody recovers this server's work. A server that lost it runs no pass
and hands out no job until it holds it again, and ends its sessions before others may recover it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from gradient.db.call import Rules, call
from gradient.db.connect import Connection, connect
from gradient.errors import GradientError
from gradient.graph.writer import GraphWriter
from gradient.timing import Timing
from gradient.version import VERSION

_RETRY_SECONDS: Final = 0.5

log = structlog.get_logger(__name__)


class InstanceRunningError(Exception):
    """Another process runs under this instance's name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a server with the instance name {name!r} runs on this database already; "
            "stop it, or give this one another name (instance = … or GRADIENT_INSTANCE)"
        )


class Instance:
    """One server's row and lock.

    `take` before anything else, then `watch` as a task. `held` tells whether the lock is held.
    Sessions end one renewal before `instance_grace` is over, when another server may begin to
    recover this one's work.
    """

    def __init__(
        self,
        name: str,
        address: str,
        dsn: str,
        rules: Rules,
        writer: GraphWriter,
        timing: Timing,
    ) -> None:
        self.name = name
        self._address = address
        self._dsn = dsn
        self._rules = rules
        self._writer = writer
        self._timing = timing
        self._lock: Connection | None = None
        self.held = False

    async def take(self) -> None:
        """Write the row, take the lock, and recover what a former process of this name left.

        Waits `takeover` seconds for that process's lock. Raises InstanceRunningError.
        """
        await self._rules.patient_value(
            "scheduler.instance_started", self.name, VERSION, self._address
        )
        deadline = time.monotonic() + self._timing.takeover
        while not await self._try_lock():
            if time.monotonic() >= deadline:
                raise InstanceRunningError(self.name)
            await asyncio.sleep(min(_RETRY_SECONDS, self._timing.takeover))
        recovered = await self._writer.message("scheduler.recover_interrupted_work", self.name)
        log.info("instance started", instance=self.name, recovered=recovered)
        self.held = True

    async def watch(self, fence: Callable[[], None], regained: Callable[[], None]) -> None:
        """Watch the lock until cancelled.

        `fence` is called when the lock stays away, `regained` once it is held again.
        """
        grace = await self._rules.patient_value("gradient.setting_int", "instance_grace")
        patience = max(0.0, grace - self._timing.renewal)
        while True:
            await self._until_lost()
            self.held = False
            log.warning("instance lock lost", instance=self.name)
            await self._regain(fence, patience)
            log.warning("instance lock held again", instance=self.name)
            regained()

    async def release(self) -> None:
        """Let go of the lock."""
        self.held = False
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(psycopg.Error):
                await lock.close()

    async def _until_lost(self) -> None:
        while True:
            await asyncio.sleep(self._timing.probe)
            if self._lock is None or self._lock.closed:
                return
            try:
                async with asyncio.timeout(self._timing.probe):
                    await self._lock.execute("select 1")
            except (psycopg.Error, TimeoutError):
                return

    async def _regain(self, fence: Callable[[], None], patience: float) -> None:
        lost_at = time.monotonic()
        fenced = False
        while True:
            try:
                async with asyncio.timeout(self._timing.probe):
                    await self._rules.value(
                        "scheduler.instance_started", self.name, VERSION, self._address
                    )
                    if await self._try_lock():
                        break
            except (psycopg.Error, PoolTimeout, TimeoutError, GradientError) as error:
                log.warning("instance lock not regained", error=str(error))
            if not fenced and time.monotonic() - lost_at >= patience:
                fenced = True
                fence()
            await asyncio.sleep(_RETRY_SECONDS)
        self.held = True

    async def _try_lock(self) -> bool:
        await self.release()
        self._lock = await hold_instance(self._dsn, self.name)
        return self._lock is not None


async def hold_instance(dsn: str, name: str) -> Connection | None:
    """Take an instance's lock: the connection that holds it, None when somebody else does."""
    conn = await connect(dsn, name=f"gradient instance {name}")
    try:
        if await call(conn, "scheduler.take_instance_lock", name):
            return conn
    except BaseException:
        await conn.close()
        raise
    await conn.close()
    return None
