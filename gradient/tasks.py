"""Tasks that live and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

CANCEL_AGAIN_SECONDS: Final = 1.0


class Crew:
    """Tasks of which one failure ends all.

    Unlike asyncio.TaskGroup it cancels until every task has really ended: up to Python 3.11
    asyncio.wait_for, which connection pools wait with, may swallow a cancellation.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Begin a task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self._over.set()

    async def failure(self) -> BaseException:
        """Wait until a task fails; what it raised."""
        await self._over.wait()
        assert self._failure is not None
        return self._failure

    async def dismiss(self) -> None:
        """Cancel what still runs and wait until it has ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_AGAIN_SECONDS)
