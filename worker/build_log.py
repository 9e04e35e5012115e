"""The log of one build on its way to the server.

Bytes are kept as the builder wrote them, in a temporary file without a name, until the build's
assignment is over: a lost connection costs nothing, and memory stays small. Over the limit the
beginning and the end are kept; what lies between is dropped and a line says how much.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Final

# Of the limit, this part is kept for the end of a log that is too long.
_TAIL_SHARE: Final = 8


class BuildLog:
    """A log that grows at one end and is read by offset.

    Up to seven eighths of the limit can be read at once; the rest only after `finish`, when it is
    known whether it is the end.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """Make an empty log.

        Parameters:
            folder: where the temporary file lies; made when it is missing.
            limit: bytes to keep, 0 for all.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # Closed with the log; a `with` would end before the first byte is written.
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._limit = limit
        self._tail_size = limit // _TAIL_SHARE
        self._head_size = limit - self._tail_size
        self._tail = bytearray()
        self._tail_written = 0
        self.size = 0
        self.finished = False
        self.lost: str | None = None

    def write(self, data: bytes) -> None:
        """Append what the builder wrote. A disk that refuses it costs the log, not the build."""
        if self.finished:
            return
        if self._limit:
            room = max(0, self._head_size - self.size)
            self._append(data[:room])
            rest = data[room:]
            if rest:
                self._tail += rest
                self._tail_written += len(rest)
                if len(self._tail) > 2 * self._tail_size:
                    del self._tail[: -self._tail_size]
        else:
            self._append(data)

    def finish(self) -> None:
        """Nothing more comes: the end, or what is kept of it, can be read from now on."""
        if self.finished:
            return
        tail = bytes(self._tail[-self._tail_size :]) if self._tail_size else b""
        dropped = self._tail_written - len(tail)
        if dropped > 0:
            self._append(
                f"\n[{dropped} bytes of log were dropped here: "
                f"the log is longer than {self._limit} bytes]\n".encode()
            )
        self._append(tail)
        self._tail.clear()
        self.finished = True

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset` on."""
        return os.pread(self._file.fileno(), min(length, max(0, self.size - offset)), offset)

    def close(self) -> None:
        """Give the file's space back."""
        self.finished = True
        self._file.close()

    def _append(self, data: bytes) -> None:
        if not data or self.lost is not None:
            return
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(
                    self._file.fileno(), memoryview(data)[written:], self.size + written
                )
        except OSError as error:
            self.lost = f"the rest of the build log is lost: {error}"
            return
        self.size += len(data)
