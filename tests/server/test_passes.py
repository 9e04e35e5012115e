"""Passes: alive whatever happens, woken by kicks, held back without the instance's lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog.testing

from gradient.db.call import Rules
from gradient.db.connect import open_pool
from gradient.db.listen import EVERYTHING
from gradient.errors import WrongStateError
from gradient.passes.runner import Pass, Passes
from gradient.tasks import Crew
from gradient.timing import Timing
from tests.support.database import Database

TIMING = Timing(tick=3600, renewal=3600, pause=0.01)


class Counted:
    """A pass that counts its runs and fails as often as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.runs = 0
        self.ran = asyncio.Condition()

    async def run(self) -> None:
        async with self.ran:
            self.runs += 1
            self.ran.notify_all()
        if self.failures:
            raise self.failures.pop(0)

    async def until(self, runs: int) -> None:
        async with asyncio.timeout(10), self.ran:
            await self.ran.wait_for(lambda: self.runs >= runs)


@asynccontextmanager
async def running(
    database: Database, *passes: Pass, held: list[bool] | None = None
) -> AsyncIterator[Passes]:
    held = held or [True]
    crew = Crew()
    async with open_pool(database.dsn) as pool:
        runner = Passes("server-1", Rules(pool), TIMING, list(passes), lambda: held[0])
        runner.start(crew)
        try:
            yield runner
        finally:
            await crew.dismiss()


async def test_a_pass_that_raises_is_logged_recorded_and_runs_again(clean_db: Database) -> None:
    counted = Counted(RuntimeError("a fault"), WrongStateError("a refusal"))
    with structlog.testing.capture_logs() as logs:
        async with running(clean_db, Pass(name="sweep", run=counted.run, interval=0.01)):
            await counted.until(4)
    told = [entry for entry in logs if entry.get("which") == "sweep"]
    assert [entry["log_level"] for entry in told] == ["error", "warning"]
    (row,) = clean_db.connect().execute(
        "select instance, pass, errors, last_error from gradient.pass_run"
    )
    assert row == ("server-1", "sweep", 2, "a refusal")


async def test_a_kick_runs_the_passes_of_its_topic(clean_db: Database) -> None:
    builds, aborts = Counted(), Counted()
    async with running(
        clean_db,
        Pass(name="builds", run=builds.run, interval=3600, topics=frozenset({"builds"})),
        Pass(name="aborts", run=aborts.run, interval=3600, topics=frozenset({"aborts"})),
    ) as passes:
        await asyncio.gather(builds.until(1), aborts.until(1))
        passes.kick("builds")
        await builds.until(2)
        assert aborts.runs == 1
        passes.kick(EVERYTHING)
        await asyncio.gather(builds.until(3), aborts.until(2))


async def test_no_pass_runs_while_the_lock_is_lost(clean_db: Database) -> None:
    held = [False]
    counted = Counted()
    async with running(
        clean_db,
        Pass(name="sweep", run=counted.run, interval=3600, topics=frozenset({"builds"})),
        held=held,
    ) as passes:
        passes.kick("builds")
        await asyncio.sleep(0.1)
        assert counted.runs == 0
        held[0] = True
        passes.kick("builds")
        await counted.until(1)
