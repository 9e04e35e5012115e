"""Decompression in bounded steps: a small input never becomes a large piece of memory."""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from gradient.cache.store_path import MalformedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STEP_BYTES: Final = 1024 * 1024
# What a decompressor may need for its window: that of zstd --ultra -22 and of xz -9.
_WINDOW_LOG: Final = 27
_XZ_MEMORY: Final = 128 * 1024 * 1024


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's decompressor in the manner of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _zstd() -> _Decompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


def _xz() -> _Decompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


_OPENERS: Final[dict[str, Callable[[], _Decompressor]]] = {
    "zstd": _zstd,
    "xz": _xz,
    "bzip2": bz2.BZ2Decompressor,
    "gzip": _Gzip,
}


class Decompression:
    """The decompressed content of a stream, in pieces of at most STEP_BYTES.

    `compression` is a narinfo's name: none, xz, zstd, bzip2 or gzip. A stream may consist of
    several members behind each other, as the formats allow.
    """

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self._open = _OPENERS.get(compression)
        self._member: _Decompressor | None = None
        self._complete = self._open is None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What the next piece of the stream adds. Raises MalformedError."""
        if self._open is None:
            yield data
            return
        try:
            yield from self._decompress(data, self._open)
        except (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error, zstd.ZstdError) as error:
            raise MalformedError(f"the file is not valid {self.compression}: {error}") from None

    def _decompress(self, data: bytes, opened: Callable[[], _Decompressor]) -> Iterator[bytes]:
        while data or (self._member is not None and not self._member.needs_input):
            if self._member is None:
                if self.compression == "xz" and self._complete and not data.strip(b"\0"):
                    return  # padding, which xz allows behind its streams
                self._member = opened()
                self._complete = False
            piece = self._member.decompress(data, STEP_BYTES)
            data = b""
            if self._member.eof:
                data = self._member.unused_data
                self._member = None
                self._complete = True
            if piece:
                yield piece

    def finish(self) -> None:
        """The stream has no more pieces. Raises MalformedError when it is not complete."""
        if not self._complete:
            raise MalformedError(f"the file ends in the middle of its {self.compression} data")
