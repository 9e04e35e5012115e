"""Order and bounds of a session's work: lanes run side by side, each strictly in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from gradient.tasks import Crew

Work = Callable[[], Awaitable[None]]


class ByteBudget:
    """How many bytes of unfinished frames a session may hold.

    `stopped` tells whether the reader waits for room: then nobody may call the worker silent.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._room = asyncio.Event()
        self.stopped = False

    async def acquire(self, size: int) -> None:
        """Wait for room; a frame over the whole limit waits until it is alone."""
        while self._used and self._used + size > self._limit:
            self._room.clear()
            self.stopped = True
            try:
                await self._room.wait()
            finally:
                self.stopped = False
        self._used += size

    def release(self, size: int) -> None:
        """A frame of that size was dealt with."""
        self._used -= size
        self._room.set()


class Lanes:
    """Runs work in the order in which it was added to its lane; lanes do not wait on each other."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._lanes: dict[Hashable, deque[Work]] = {}

    def add(self, lane: Hashable, work: Work) -> None:
        """Run `work` after everything added to the same lane before it."""
        waiting = self._lanes.get(lane)
        if waiting is not None:
            waiting.append(work)
            return
        self._lanes[lane] = deque([work])
        self._crew.start(self._serve(lane))

    async def _serve(self, lane: Hashable) -> None:
        waiting = self._lanes[lane]
        while waiting:
            await waiting[0]()
            waiting.popleft()
        del self._lanes[lane]
