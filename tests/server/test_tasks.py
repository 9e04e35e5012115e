"""Crews of tasks, and the lanes of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gradient.sessions.lanes import ByteBudget, Lanes
from gradient.tasks import Crew


async def test_a_crew_ends_a_task_that_swallows_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradient.tasks.CANCEL_AGAIN_SECONDS", 0.01)
    crew = Crew()
    started = asyncio.Event()

    async def stubborn() -> None:
        started.set()
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        await asyncio.Event().wait()

    task = crew.start(stubborn())
    await started.wait()
    async with asyncio.timeout(10):
        await crew.dismiss()
    assert task.cancelled()


async def test_a_crew_tells_the_first_failure() -> None:
    crew = Crew()

    async def fail(text: str) -> None:
        raise ValueError(text)

    crew.start(asyncio.sleep(3600))
    crew.start(fail("first"))
    assert str(await crew.failure()) == "first"
    await crew.dismiss()


def step(name: str, log: list[str], gate: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        log.append(f"{name} begins")
        await gate.wait()
        log.append(f"{name} ends")

    return work


async def test_a_lane_keeps_its_order_and_does_not_wait_for_another() -> None:
    crew = Crew()
    lanes = Lanes(crew)
    log: list[str] = []
    held, free = asyncio.Event(), asyncio.Event()
    free.set()
    lanes.add("a", step("a1", log, held))
    lanes.add("a", step("a2", log, free))
    lanes.add("b", step("b1", log, free))
    async with asyncio.timeout(10):
        while "b1 ends" not in log:
            await asyncio.sleep(0)
    assert log == ["a1 begins", "b1 begins", "b1 ends"]
    held.set()
    async with asyncio.timeout(10):
        while "a2 ends" not in log:
            await asyncio.sleep(0)
    assert log[3:] == ["a1 ends", "a2 begins", "a2 ends"]
    await crew.dismiss()


def is_stopped(budget: ByteBudget) -> bool:
    return budget.stopped


async def test_a_byte_budget_stops_at_its_limit_and_takes_one_large_frame_alone() -> None:
    budget = ByteBudget(100)
    await budget.acquire(60)
    large = asyncio.create_task(budget.acquire(500))
    await asyncio.sleep(0)
    assert is_stopped(budget)
    budget.release(60)
    await large
    assert not is_stopped(budget)
    small = asyncio.create_task(budget.acquire(1))
    await asyncio.sleep(0)
    assert is_stopped(budget)
    budget.release(500)
    await small
