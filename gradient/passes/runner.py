"""Running passes: each its own task, woken by kicks and by the tick, alive whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import psycopg
import structlog
from psycopg_pool import PoolTimeout

from gradient.db.call import Rules
from gradient.db.listen import EVERYTHING
from gradient.errors import GradientError
from gradient.graph.writer import GraphTimeoutError
from gradient.tasks import Crew
from gradient.timing import Timing

log = structlog.get_logger(__name__)


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass: `run` every `interval` seconds, and soon after a kick of one of `topics`."""

    name: str
    run: Callable[[], Awaitable[None]]
    interval: float
    topics: frozenset[str] = frozenset()


class Passes:
    """Supervises the passes of a server. `may_run` holds them back while the lock is lost."""

    def __init__(
        self,
        instance: str,
        rules: Rules,
        timing: Timing,
        passes: list[Pass],
        may_run: Callable[[], bool],
    ) -> None:
        self._instance = instance
        self._rules = rules
        self._timing = timing
        self._may_run = may_run
        self._wakes = {each: asyncio.Event() for each in passes}

    def start(self, crew: Crew) -> None:
        """Run every pass, each as a task of the crew."""
        for each in self._wakes:
            crew.start(self._supervise(each), name=f"pass {each.name}")

    def kick(self, topic: str) -> None:
        """Wake the passes of a topic; EVERYTHING wakes them all."""
        for each, wake in self._wakes.items():
            if topic == EVERYTHING or topic in each.topics:
                wake.set()

    async def _supervise(self, each: Pass) -> None:
        wake = self._wakes[each]
        recorded_at = 0.0
        while True:
            wake.clear()
            if self._may_run():
                started = time.monotonic()
                failure = await self._once(each)
                elapsed = time.monotonic() - started
                if failure or time.monotonic() - recorded_at >= self._timing.renewal:
                    recorded_at = time.monotonic()
                    await self._record(each, elapsed, failure)
            # Kicks come in bursts; the next run sees what all of them meant.
            await asyncio.sleep(min(self._timing.pause, each.interval))
            try:
                async with asyncio.timeout(each.interval):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _once(self, each: Pass) -> str | None:
        """Run the pass; the text of its failure, None when it succeeded."""
        try:
            await each.run()
        except (psycopg.Error, PoolTimeout, GradientError, GraphTimeoutError) as error:
            log.warning("pass failed, it runs again", which=each.name, error=str(error))
            return str(error)
        except Exception as error:
            log.exception("pass failed, it runs again", which=each.name)
            return repr(error)
        return None

    async def _record(self, each: Pass, elapsed: float, failure: str | None) -> None:
        try:
            await self._rules.value(
                "scheduler.pass_finished",
                self._instance,
                each.name,
                elapsed * 1000,
                failure,
                float(each.interval),
            )
        except (psycopg.Error, PoolTimeout, GradientError) as error:
            log.warning("pass not recorded", which=each.name, error=str(error))
