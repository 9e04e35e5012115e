"""What is learned of a NAR file while it is received: hashes, sizes, whether it is one at all."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from gradient.cache.compression import Decompression
from gradient.cache.nar import NarChecker, TooLargeError
from gradient.cache.store_path import MalformedError, format_sha256

# How much larger than its content a compressed file may be: formats add headers and frames.
_OVERHEAD_BYTES: Final = 64 * 1024
_OVERHEAD_SHARE: Final = 100
# Hashing a large piece takes about as long as decompressing the next one.
_LARGE_PIECE_BYTES: Final = 256 * 1024
_hashers: Final = ThreadPoolExecutor(2, thread_name_prefix="nar-hash")


def max_file_size(max_nar_size: int) -> int:
    """The largest file that can hold a NAR of at most `max_nar_size` bytes."""
    return max_nar_size + max_nar_size // _OVERHEAD_SHARE + _OVERHEAD_BYTES


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was received completely: the columns of gradient.nar_object."""

    file_hash: str
    file_size: int
    nar_hash: str
    nar_size: int
    compression: str
    content_hash: str | None


class Ingest:
    """Feed it the file in pieces, off the event loop, then call `finish`.

    Parameters:
        compression: as the file's name says.
        expected_hash: `sha256:<base 32>` of the file, as its name says.
        max_nar_size: in bytes, decompressed.
    """

    def __init__(self, compression: str, expected_hash: str, max_nar_size: int) -> None:
        self.compression = compression
        self.expected_hash = expected_hash
        self.max_nar_size = max_nar_size
        self._file = hashlib.sha256()
        self._file_size = 0
        self._nar = hashlib.sha256()
        self._nar_size = 0
        self._decompression = Decompression(compression)
        self._checker = NarChecker(max_nar_size)

    def feed(self, data: bytes) -> None:
        """Measure the next piece of the file.

        Raises TooLargeError, MalformedError for what is no valid NAR of that compression.
        """
        self._file_size += len(data)
        if self._file_size > max_file_size(self.max_nar_size):
            raise TooLargeError(
                f"the file has more than {max_file_size(self.max_nar_size)} bytes, "
                f"for a NAR of at most {self.max_nar_size}"
            )
        self._file.update(data)
        hashing: Future[None] | None = None
        try:
            for piece in self._decompression.feed(data):
                if hashing is not None:
                    hashing.result()
                    hashing = None
                # First what refuses, then what costs: most bombs end at their first bytes.
                self._checker.feed(piece)
                self._nar_size += len(piece)
                if len(piece) < _LARGE_PIECE_BYTES:
                    self._nar.update(piece)
                else:
                    hashing = _hashers.submit(self._nar.update, piece)
        finally:
            if hashing is not None:
                hashing.result()

    def finish(self) -> Measured:
        """The file is complete. Raises MalformedError, for the hash or a NAR cut off."""
        actual = format_sha256(self._file.digest())
        if actual != self.expected_hash:
            raise MalformedError(
                f"the file's hash is {actual}, its name says {self.expected_hash}; nothing is kept"
            )
        self._decompression.finish()
        self._checker.finish()
        content = self._checker.content_hash
        return Measured(
            file_hash=actual,
            file_size=self._file_size,
            nar_hash=format_sha256(self._nar.digest()),
            nar_size=self._nar_size,
            compression=self.compression,
            content_hash=None if content is None else format_sha256(content),
        )
