"""What every job has at hand, and how a job fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradient.protocol import Span
from worker.cache_client import CacheClient
from worker.channel import Channel
from worker.derivations import Derivations
from worker.nix.building import BuildSlot
from worker.nix.settings import NixSettings
from worker.transfer import Fetcher


class JobError(Exception):
    """The job ended without success.

    Attributes:
        outcome_class: a name of gradient.outcome_class.
        missing_paths: store paths that were not to be had, for `missing_input`.
    """

    def __init__(self, outcome_class: str, message: str, missing_paths: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.outcome_class = outcome_class
        self.missing_paths = sorted(missing_paths)


class Spans:
    """How long the phases of a job took."""

    def __init__(self) -> None:
        self._milliseconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block; the same phase twice adds up."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = (time.monotonic() - began) * 1000
            self._milliseconds[name] = self._milliseconds.get(name, 0.0) + took

    def report(self) -> list[Span]:
        """The phases in the order they began."""
        return [
            Span(phase=name, milliseconds=round(milliseconds))
            for name, milliseconds in self._milliseconds.items()
        ]


@dataclass(frozen=True)
class JobContext:
    """One job's tools.

    Attributes:
        channel: where its reports and its log go.
        cache: its cache, as long as its assignment is open.
        slot: the store process that is its own meanwhile.
        known: asks the server which `.drv` names need not be walked.
        scratch: a folder for temporary files.
    """

    channel: Channel
    cache: CacheClient
    slot: BuildSlot
    settings: NixSettings
    fetcher: Fetcher
    derivations: Derivations
    known: Callable[[Sequence[str]], Awaitable[set[str]]]
    scratch: Path
    spans: Spans = field(default_factory=Spans)


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run everything at once; the first error ends the rest, and none of it goes on behind."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
