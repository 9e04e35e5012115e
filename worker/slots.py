"""The slots of a worker: how many jobs of a kind run at once, each with its own store process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worker.nix.building import BuildSlot
from worker.nix.settings import NixSettings


class SlotPool:
    """Slots of one kind.

    A job that was taken waits here for its slot. The server counts from what it was told last, so
    it may send a job more than there are free slots; up to one for each slot is taken and waits.
    """

    def __init__(self, settings: NixSettings, count: int) -> None:
        self._free = [BuildSlot(settings) for _ in range(count)]
        self._all = tuple(self._free)
        self._room = asyncio.Semaphore(count)
        self._taken = 0

    @property
    def count(self) -> int:
        """How many slots there are."""
        return len(self._all)

    @property
    def free(self) -> int:
        """How many more jobs could start at once."""
        return max(0, self.count - self._taken)

    @property
    def full(self) -> bool:
        """Whether another job would wait behind one that waits already."""
        return self._taken >= 2 * self.count

    def take(self) -> None:
        """Count a job that was accepted; `release` when it has ended."""
        self._taken += 1

    def release(self) -> None:
        """A job that was counted by `take` has ended."""
        self._taken -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[BuildSlot]:
        """A slot of one's own, once there is one."""
        async with self._room:
            slot = self._free.pop()
            try:
                yield slot
            finally:
                self._free.append(slot)

    async def close(self) -> None:
        """End every store process, and with it every build."""
        await asyncio.gather(*(slot.close() for slot in self._all))
