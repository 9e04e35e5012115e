"""The job's binary cache over HTTP: Nix's own protocol, reading and writing.

Every request that meets a server that is away or overloaded (no connection, 429, 502 to 504) is
made again with growing pauses until the grace is over. Everything else is an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import lzma
import sys
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol, TypeVar

import httpx2

from worker.narinfo import InvalidNarInfoError, NarInfo, parse_narinfo
from worker.nix.serve import PathInfo
from worker.nix.store_path import hash_part, nix32_encode

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_LEVEL: Final = 3
FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 10.0
# The answer to a narinfo comes after its commit, and a busy database may let it wait.
COMMIT_SECONDS: Final = 600.0
_PIECE: Final = 1 << 18
# Above this size a NAR goes through a file, and is packed and unpacked in a thread.
_SMALL: Final = 1 << 20
_AGAIN: Final = frozenset({429, 502, 503, 504})

_T = TypeVar("_T")


class CacheError(Exception):
    """The cache did not do what was asked; the text says what, for which path and why."""


class CacheAwayError(CacheError):
    """The cache could not be reached, or had no room, for the whole grace."""


class CacheRefusedError(CacheError):
    """The cache answered that it does not want this.

    Attributes:
        status: the HTTP status, such as 409 for other content than a backed path has.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CorruptNarError(CacheError):
    """What the cache holds is not what its narinfo says.

    Attributes:
        path: the store path.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class CacheClient:
    """One job's access to the cache, for as long as its assignment is open."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, token: str, spool: Path, grace: float
    ) -> None:
        """Make a client.

        Parameters:
            http: the worker's connection pool.
            url: the cache, without a slash at the end.
            token: the assignment's bearer token.
            spool: a folder for NARs on their way.
            grace: seconds to go on trying while the cache is away; may be infinite.
        """
        self._http = http
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"}
        self._spool = spool
        self._grace = grace

    async def narinfo(self, path: str) -> NarInfo | None:
        """What the cache says about a path; None when it does not have it.

        Raises:
            CacheError: it is away, refuses, or sends what is no narinfo.
        """

        async def get() -> NarInfo | None:
            response = await self._http.get(
                f"{self._url}/{hash_part(path)}.narinfo", headers=self._headers
            )
            if response.status_code == 404:
                return None
            _check(response, f"read the narinfo of {path}")
            try:
                return parse_narinfo(response.text, path)
            except InvalidNarInfoError as error:
                raise CorruptNarError(path, str(error)) from None

        return await self._again(f"read the narinfo of {path}", get)

    async def download(self, narinfo: NarInfo) -> PackedNar | None:
        """Fetch the packed NAR of a path; None when the cache has lost it. Close it after use.

        Raises:
            CacheError: it is away, refuses, or sends other bytes than announced.
        """
        path = narinfo.info.path

        async def get() -> PackedNar | None:
            packed = self._packed()
            try:
                digest = hashlib.sha256()
                async with self._http.stream(
                    "GET", f"{self._url}/{narinfo.url}", headers=self._headers
                ) as response:
                    if response.status_code in (404, 410):
                        packed.close()
                        return None
                    if response.status_code >= 400:
                        await response.aread()
                    _check(response, f"read the NAR of {path}")
                    async for piece in response.aiter_raw(_PIECE):
                        digest.update(piece)
                        packed.write(piece)
                        if narinfo.file_size is not None and packed.size > narinfo.file_size:
                            break
                if narinfo.file_size not in (None, packed.size) or (
                    narinfo.file_hash is not None
                    and narinfo.file_hash != f"sha256:{nix32_encode(digest.digest())}"
                ):
                    raise CorruptNarError(
                        path, f"the packed NAR of {path} in the cache is not what its narinfo says"
                    )
            except BaseException:
                packed.close()
                raise
            return packed

        return await self._again(f"read the NAR of {path}", get)

    async def pack(self, info: PathInfo, nar: AsyncIterable[bytes]) -> Upload:
        """Pack a NAR with zstd, ready to be sent. Close it, or `send` it, which does.

        Parameters:
            nar: the whole NAR; it is read once. Its errors are passed on as they are.
        """
        packed = self._packed()
        try:
            compressor = zstd.ZstdCompressor(level=ZSTD_LEVEL)
            digest = hashlib.sha256()
            large = info.nar_size > _SMALL

            def pack(piece: bytes) -> None:
                data = compressor.compress(piece)
                digest.update(data)
                packed.write(data)

            async for piece in nar:
                if large:
                    await asyncio.to_thread(pack, piece)
                else:
                    pack(piece)
            data = compressor.flush()
            digest.update(data)
            packed.write(data)
        except BaseException:
            packed.close()
            raise
        file_hash = nix32_encode(digest.digest())
        narinfo = NarInfo(
            info=info,
            url=f"nar/{file_hash}.nar.zst",
            compression="zstd",
            file_hash=f"sha256:{file_hash}",
            file_size=packed.size,
        )
        return Upload(narinfo, packed)

    async def send(self, upload: Upload) -> int:
        """Put a packed path into the cache: first the NAR, then what is said about it.

        Returns:
            Bytes of the packed NAR.

        Raises:
            CacheError: the cache is away or refuses.
        """
        narinfo, packed = upload.narinfo, upload.packed
        path = narinfo.info.path

        async def put_nar() -> None:
            response = await self._http.put(
                f"{self._url}/{narinfo.url}",
                headers={
                    **self._headers,
                    "content-type": "application/x-nix-nar",
                    "content-length": str(packed.size),
                },
                content=packed.pieces(),
            )
            _check(response, f"upload the NAR of {path}")

        async def put_narinfo() -> None:
            response = await self._http.put(
                f"{self._url}/{hash_part(path)}.narinfo",
                headers={**self._headers, "content-type": "text/x-nix-narinfo"},
                content=narinfo.text().encode(),
                timeout=COMMIT_SECONDS,
            )
            _check(response, f"upload {path}")

        try:
            await self._again(f"upload the NAR of {path}", put_nar)
            await self._again(f"upload {path}", put_narinfo)
            return packed.size
        finally:
            packed.close()

    async def upload(self, info: PathInfo, nar: AsyncIterable[bytes]) -> int:
        """`pack` and `send`."""
        return await self.send(await self.pack(info, nar))

    async def _again(self, what: str, request: Callable[[], Awaitable[_T]]) -> _T:
        """Make a request until it is answered or the grace is over."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await request()
            except _AwayError as error:
                reason = str(error)
            except httpx2.TransportError as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
            # The clock starts at the first failure: a long transfer may break after a long time.
            deadline = deadline or loop.time() + self._grace
            if loop.time() + pause > deadline:
                raise CacheAwayError(f"cannot {what}: {reason} (tried for {self._grace:g} s)")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _packed(self) -> PackedNar:
        return PackedNar(self._spool)


@dataclass(frozen=True, slots=True)
class Upload:
    """A path that is packed and can be sent."""

    narinfo: NarInfo
    packed: PackedNar


class PackedNar:
    """A compressed NAR on its way: in memory when it is small, else in a file without a name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Whoever asked for it closes it.
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SMALL, dir=str(folder))  # noqa: SIM115
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self.size += len(data)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes as they are, from the start."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            yield piece

    async def unpacked(self, narinfo: NarInfo) -> AsyncIterator[bytes]:
        """The NAR, checked to be the one that its narinfo names.

        Raises:
            CorruptNarError: it cannot be unpacked, or has another size or hash.
        """
        path, size = narinfo.info.path, narinfo.info.nar_size
        digest = hashlib.sha256()
        left = size
        try:
            unpacker = _Unpacker(narinfo.compression)
            async for piece in self.pieces():
                data: bytes | None = piece
                while data is not None:
                    if size > _SMALL:
                        out, data = await asyncio.to_thread(unpacker.step, data)
                    else:
                        out, data = unpacker.step(data)
                    left -= len(out)
                    if left < 0:
                        raise CorruptNarError(
                            path, f"the NAR of {path} is longer than {size} bytes"
                        )
                    digest.update(out)
                    if out:
                        yield out
        except (ValueError, EOFError, lzma.LZMAError, zstd.ZstdError) as error:
            raise CorruptNarError(path, f"the NAR of {path} cannot be unpacked: {error}") from None
        if left or f"sha256:{nix32_encode(digest.digest())}" != narinfo.info.nar_hash:
            raise CorruptNarError(
                path, f"the NAR of {path} in the cache is not what its narinfo says"
            )

    def close(self) -> None:
        """Give its space back."""
        self._file.close()


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class _Unpacker:
    """Unpacks in pieces of bounded size, whatever the compressed bytes say."""

    def __init__(self, compression: str) -> None:
        self._make: Callable[[], _Decompressor] | None
        match compression:
            case "none":
                self._make = None
            case "zstd":
                self._make = zstd.ZstdDecompressor
            case "xz":
                self._make = lzma.LZMADecompressor
            case _:
                raise ValueError(f"its compression is {compression}, which this worker cannot read")
        self._current: _Decompressor | None = self._make() if self._make else None

    def step(self, data: bytes) -> tuple[bytes, bytes | None]:
        """One piece of output, and what to call with next; None when more input is needed."""
        if self._make is None or self._current is None:
            return data, None
        out = self._current.decompress(data, _PIECE)
        if self._current.eof:
            rest = self._current.unused_data
            self._current = self._make()
            return out, rest or None
        return out, None if self._current.needs_input else b""


class _AwayError(Exception):
    """The server asks to come again."""


def _check(response: httpx2.Response, what: str) -> None:
    status = response.status_code
    if status < 300:
        return
    said = " ".join(response.text.split())[:500]
    if status in _AGAIN:
        raise _AwayError(f"the server answered {status}: {said}")
    raise CacheRefusedError(f"cannot {what}: the server answered {status}: {said}", status)
