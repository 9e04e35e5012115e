"""Store paths between this machine's store and the job's cache.

Fetching brings a set of paths with everything they refer to into the store, references first.
Jobs that need the same path at the same time fetch it once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from worker.cache_client import CacheClient, CacheRefusedError, CorruptNarError, Upload
from worker.narinfo import NarInfo
from worker.nix.errors import StoreFaultError
from worker.nix.serve import PathInfo, ServeProcess

DOWNLOADS: Final = 8
# Outputs above this size are looked up in the cache before they are packed.
LOOK_FIRST_BYTES: Final = 1 << 20

Serve = Callable[[], Awaitable[ServeProcess]]


class MissingPathsError(Exception):
    """Paths that a job needs are not in the cache, or damaged there.

    Attributes:
        paths: their store paths.
    """

    def __init__(self, message: str, paths: Iterable[str]) -> None:
        super().__init__(message)
        self.paths = sorted(paths)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch brought: paths and bytes of their NARs."""

    paths: int
    nar_bytes: int


class Fetcher:
    """Brings paths into this machine's store; one for the whole worker."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Event] = {}

    async def fetch(self, paths: Iterable[str], cache: CacheClient, serve: Serve) -> Fetched:
        """Make sure that the store holds these paths and everything they refer to.

        Parameters:
            serve: the caller's store process, a new one when the last has ended. The paths are
                kept from garbage collection while it lives.

        Raises:
            MissingPathsError: some are not to be had.
            CacheError: the cache is away or refuses.
            StoreFaultError: the store did not take a path.
        """
        wanted = set(paths)
        missing = wanted - await (await serve()).valid_paths(wanted)
        if not missing:
            return Fetched(0, 0)
        plan = await self._plan(missing, cache, serve)
        tasks: dict[str, asyncio.Task[int]] = {}
        room = asyncio.Semaphore(DOWNLOADS)

        async def bring(path: str) -> int:
            for reference in plan[path].info.references:
                if reference != path and reference in tasks:
                    await asyncio.shield(tasks[reference])
            async with room:
                return await self._bring(plan[path], cache, serve)

        try:
            # Tasks first, then their run: a task may look for any other one.
            for path in plan:
                tasks[path] = asyncio.create_task(bring(path))
            sizes = await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return Fetched(len(plan), sum(sizes))

    async def _plan(
        self, missing: set[str], cache: CacheClient, serve: Serve
    ) -> dict[str, NarInfo]:
        """The narinfos of everything that has to come, found level by level."""
        plan: dict[str, NarInfo] = {}
        room = asyncio.Semaphore(DOWNLOADS)

        async def ask(path: str) -> NarInfo | None:
            async with room:
                return await cache.narinfo(path)

        level = missing
        while level:
            order = sorted(level)
            try:
                answers = await asyncio.gather(*map(ask, order))
            except CorruptNarError as error:
                raise MissingPathsError(str(error), [error.path]) from None
            absent = [path for path, answer in zip(order, answers, strict=True) if answer is None]
            if absent:
                raise MissingPathsError(f"not in the cache: {', '.join(absent)}", absent)
            found = [answer for answer in answers if answer is not None]
            plan |= {narinfo.info.path: narinfo for narinfo in found}
            references = {path for narinfo in found for path in narinfo.info.references} - set(plan)
            level = (
                references - await (await serve()).valid_paths(references) if references else set()
            )
        return plan

    async def _bring(self, narinfo: NarInfo, cache: CacheClient, serve: Serve) -> int:
        """One path whose references are in the store."""
        path = narinfo.info.path
        while (under_way := self._under_way.get(path)) is not None:
            await under_way.wait()
            if await (await serve()).valid_paths([path]):
                return 0
        done = self._under_way[path] = asyncio.Event()
        try:
            packed = await cache.download(narinfo)
            if packed is None:
                raise MissingPathsError(f"the cache has lost the NAR of {path}", [path])
            with contextlib.closing(packed):
                await (await serve()).add(narinfo.info, packed.unpacked(narinfo))
            return narinfo.info.nar_size
        except CorruptNarError as error:
            raise MissingPathsError(str(error), [error.path]) from None
        finally:
            del self._under_way[path]
            done.set()


async def pack(
    info: PathInfo, cache: CacheClient, serve: Serve, *, look_first: bool = False
) -> Upload | None:
    """Take a path out of the store, ready to be sent; None when the cache has it.

    Parameters:
        look_first: whether the cache probably has it; large paths are looked up in any case.

    Raises:
        CacheError: the cache is away or refuses.
        StoreFaultError: the path is damaged or gone.
    """
    look_first = look_first or info.nar_size > LOOK_FIRST_BYTES
    if look_first and await cache.narinfo(info.path) is not None:
        return None
    return await cache.pack(info, _dumped(await serve(), info))


async def send(upload: Upload, cache: CacheClient) -> int:
    """Put a packed path into the cache.

    Returns:
        Bytes sent; 0 when the cache has the path with another NAR: a backed path stays as it is.

    Raises:
        CacheError: the cache is away or refuses.
    """
    try:
        return await cache.send(upload)
    except CacheRefusedError as error:
        if error.status == 409 and await cache.narinfo(upload.narinfo.info.path) is not None:
            return 0
        raise


async def path_infos(paths: Iterable[str], serve: Serve) -> dict[str, PathInfo]:
    """What the store knows about these paths, all of which it must have.

    Raises:
        StoreFaultError: one is not there.
    """
    wanted = set(paths)
    process = await serve()
    valid = await process.valid_paths(wanted)
    if absent := wanted - valid:
        raise StoreFaultError(f"not in this machine's store: {', '.join(sorted(absent))}")
    infos = await process.path_infos(wanted)
    if absent := wanted - set(infos):
        raise StoreFaultError(
            f"this machine's store says nothing about {', '.join(sorted(absent))}"
        )
    return infos


async def _dumped(process: ServeProcess, info: PathInfo) -> AsyncIterator[bytes]:
    async for piece in process.dump(info):
        yield piece
