"""Waiting for something to become true, within one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Whoever changes a state calls `happened`; whoever needs it to be so waits `until` it is."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def happened(self) -> None:
        """Let everybody who waits look again."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return once `is_so` answers true; it is asked now and after every change."""
        while not is_so():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
