"""From the entry points to every derivation below them, in batches that the server can record.

Breadth first, in waves. Names are marked as visited before the server is asked which of them it
knows; known ones are not descended, but stay named as dependencies. A batch is reported only when
the `.drv` files and sources that it names are in the cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gradient.protocol import (
    BATCH_DERIVATIONS,
    MAX_FRAME_BYTES,
    DiscoveredDerivation,
    EntryPoint,
    EvalResult,
    EvaluationMessage,
    Output,
    WalkMode,
)
from worker.derivations import drv_archive, read_derivation, references_of
from worker.executor.job import JobContext, JobError, gather_or_cancel
from worker.nix.derivation import Derivation, InvalidDerivationError, UnsupportedDerivationError
from worker.nix.errors import StoreFaultError
from worker.nix.store_path import STORE_DIR
from worker.transfer import pack, path_infos, send

WAVE: Final = 256
UPLOADS: Final = 8
BATCHES_AHEAD: Final = 4
# A frame holds derivations, entry points and messages: half of it is for the first.
BATCH_BYTES: Final = MAX_FRAME_BYTES // 2
PART_BYTES: Final = MAX_FRAME_BYTES // 8


_Part = TypeVar("_Part", EntryPoint, EvaluationMessage)


@dataclass(frozen=True)
class _Walked:
    """A derivation that was read, with the text it was read from."""

    path: str
    text: bytes
    derivation: Derivation
    discovered: DiscoveredDerivation


class Walk:
    """One evaluation's walk."""

    def __init__(self, context: JobContext, mode: WalkMode) -> None:
        self._context = context
        self._mode = mode
        self._visited: set[str] = set()
        self._uploaded: set[str] = set()
        self._ifd: set[str] = set()

    async def run(
        self,
        entry_points: Sequence[tuple[str, str]],
        messages: Sequence[EvaluationMessage],
        built_by_evaluator: Iterable[str] = (),
    ) -> None:
        """Walk from the entry points and report every batch.

        Parameters:
            entry_points: attributes and the `.drv` paths they evaluate to.
            messages: what the evaluation said; it goes with the last batch.
            built_by_evaluator: `.drv` paths that were built while evaluating; they are marked.

        Raises:
            JobError: a derivation cannot be read or is of a kind that cannot be scheduled.
            CacheError: the cache is away or refuses.
        """
        self._ifd.update(built_by_evaluator)
        attributes: dict[str, list[str]] = {}
        for attribute, path in entry_points:
            attributes.setdefault(path, []).append(attribute)
        start = await self._unknown(list(attributes))
        known = attributes.keys() - set(start)
        batches: asyncio.Queue[list[_Walked] | None] = asyncio.Queue(BATCHES_AHEAD)

        async def produce() -> None:
            async for batch in self._batches(start, attributes):
                await batches.put(batch)
            await batches.put(None)

        async def report() -> None:
            await self._report_known(
                [EntryPoint(attribute=a, drv=_base(p)) for p in known for a in attributes[p]]
            )
            batch = await batches.get()
            while True:
                # The last batch carries the messages, so one is always held back.
                following = await batches.get() if batch is not None else None
                walked = batch or []
                await self._upload(walked)
                last = await self._report_messages(messages) if following is None else []
                if walked or last:
                    await self._context.channel.report(_batch(walked, attributes, last))
                batch = following
                if batch is None:
                    return

        await gather_or_cancel([produce(), report()])

    async def _report_known(self, entry_points: list[EntryPoint]) -> None:
        """Report entry points that need no walk."""
        for part in by_bytes(entry_points, PART_BYTES):
            await self._context.channel.report(EvalResult(derivations=[], entry_points=part))

    async def _report_messages(
        self, messages: Sequence[EvaluationMessage]
    ) -> list[EvaluationMessage]:
        """Report messages that are too many for one frame; returns those that are left for it."""
        *early, last = by_bytes(messages, PART_BYTES) or [[]]
        for part in early:
            await self._context.channel.report(EvalResult(derivations=[], messages=part))
        return last

    async def _batches(
        self, start: Iterable[str], attributes: dict[str, list[str]]
    ) -> AsyncIterator[list[_Walked]]:
        """Everything unknown below the start, parents first."""
        frontier = deque(start)
        batch: list[_Walked] = []
        size = 0
        while frontier:
            wave = [frontier.popleft() for _ in range(min(WAVE, len(frontier)))]
            found = await self._read(wave, attributes)
            new = dict.fromkeys(path for one in found for path in one.derivation.input_drvs)
            frontier.extend(
                await self._unknown([path for path in new if path not in self._visited])
            )
            for one in found:
                weight = len(msgspec.json.encode(one.discovered))
                if weight > BATCH_BYTES:
                    raise JobError(
                        "evaluation_failed",
                        f"{one.path} names so many inputs that it does not fit into a message "
                        f"({weight} bytes, at most {BATCH_BYTES})",
                    )
                if len(batch) == BATCH_DERIVATIONS or (batch and size + weight > BATCH_BYTES):
                    yield batch
                    batch, size = [], 0
                batch.append(one)
                size += weight
        if batch:
            yield batch

    async def _unknown(self, paths: list[str]) -> list[str]:
        """Those whose subtree the server does not hold; all are marked as visited."""
        self._visited.update(paths)
        if self._mode == "full" or not paths:
            return paths
        known = await self._context.known([_base(path) for path in paths])
        return [path for path in paths if _base(path) not in known]

    async def _read(self, wave: list[str], attributes: dict[str, list[str]]) -> list[_Walked]:
        serve = await self._context.slot.serve()
        # Asking also keeps them from this machine's garbage collection while the slot lives.
        valid = await serve.valid_paths(wave)
        if gone := set(wave) - valid:
            raise StoreFaultError(f"{sorted(gone)[0]} has vanished from this machine's store")
        try:
            return await asyncio.to_thread(_read_all, wave, attributes, self._ifd)
        except (InvalidDerivationError, UnsupportedDerivationError) as error:
            raise JobError("evaluation_failed", str(error)) from None

    async def _upload(self, batch: list[_Walked]) -> None:
        """Bring what a batch names into the cache: its `.drv` files and its sources."""
        context = self._context
        room = asyncio.Semaphore(UPLOADS)

        async def put_drv(one: _Walked) -> None:
            info, archive = drv_archive(one.path, one.text, references_of(one.derivation))
            async with room:
                await context.cache.upload(info, _once(archive))
            context.derivations.keep(one.path, one.derivation)

        await gather_or_cancel(map(put_drv, batch))
        await self.upload_sources({path for one in batch for path in one.derivation.input_srcs})

    async def upload_sources(self, sources: set[str]) -> None:
        """Bring paths of this machine's store, with all they refer to, into the cache.

        Raises:
            CacheError: the cache is away or refuses.
        """
        if sources <= self._uploaded:
            return
        context = self._context
        room = asyncio.Semaphore(UPLOADS)
        serve = await context.slot.serve()
        new = sources - self._uploaded
        valid = await serve.valid_paths(new)
        if gone := new - valid:
            raise StoreFaultError(f"{sorted(gone)[0]} has vanished from this machine's store")
        infos = await path_infos(await serve.closure(new) - self._uploaded, context.slot.serve)

        async def put(path: str) -> None:
            async with room:
                packed = await pack(infos[path], context.cache, context.slot.serve, look_first=True)
                if packed is not None:
                    await send(packed, context.cache)

        await gather_or_cancel(map(put, infos))
        self._uploaded.update(infos)


def _batch(
    walked: list[_Walked],
    attributes: dict[str, list[str]],
    messages: list[EvaluationMessage],
) -> EvalResult:
    return EvalResult(
        derivations=[one.discovered for one in walked],
        entry_points=[
            EntryPoint(attribute=attribute, drv=_base(one.path))
            for one in walked
            for attribute in attributes.get(one.path, ())
        ],
        messages=messages,
    )


def by_bytes(items: Iterable[_Part], limit: int) -> list[list[_Part]]:
    """Split values of the wire into lists that are no longer than `limit` bytes each."""
    parts: list[list[_Part]] = []
    size = limit
    for item in items:
        weight = len(msgspec.json.encode(item)) + 1
        if size + weight > limit:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += weight
    return parts


def _read_all(wave: list[str], attributes: dict[str, list[str]], ifd: set[str]) -> list[_Walked]:
    walked: list[_Walked] = []
    for path in wave:
        text = Path(path).read_bytes()
        try:
            derivation = read_derivation(path, text)
        except InvalidDerivationError as error:
            raise InvalidDerivationError(f"{path} cannot be read: {error}") from None
        derivation.require_known_outputs(", ".join(attributes.get(path, [path])))
        discovered = _discovered(path, derivation, ifd=path in ifd)
        walked.append(_Walked(path, text, derivation, discovered))
    return walked


def _discovered(path: str, derivation: Derivation, *, ifd: bool) -> DiscoveredDerivation:
    return DiscoveredDerivation(
        drv=_base(path),
        outputs=[
            Output(name=name, path=output.path)
            for name, output in sorted(derivation.outputs.items())
        ],
        dependencies=sorted(map(_base, derivation.input_drvs)),
        input_sources=sorted(derivation.input_srcs),
        architecture=derivation.system,
        required_features=sorted(derivation.required_features),
        timeout_secs=derivation.timeout,
        max_silent_secs=derivation.max_silent,
        prefer_local_build=derivation.prefer_local_build,
        is_fixed_output=derivation.is_fixed_output,
        allow_substitutes=derivation.allow_substitutes,
        pname=derivation.pname,
        ifd=ifd,
    )


def _base(path: str) -> str:
    return path.removeprefix(f"{STORE_DIR}/")


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
