"""NARs of one regular file, in memory.

A `.drv` is fetched as an object, checked and parsed here and never imported: Nix takes it into a
store only with all its references. Whole trees go through `ServeProcess.dump` and `.add`.

A NAR is a sequence of strings (length in 64 bits, little endian; bytes; zeros to a multiple of
eight); for one file: `nix-archive-1 ( type regular [executable ""] contents <bytes> )`.
"""

from __future__ import annotations

import struct
from typing import Final

_LENGTH: Final = struct.Struct("<Q")


class InvalidNarError(ValueError):
    """Not the NAR of exactly one regular file; the text names the offset."""


def _string(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value + b"\0" * (-len(value) % 8)


def _strings(*values: bytes) -> bytes:
    return b"".join(map(_string, values))


_HEADER: Final = _strings(b"nix-archive-1", b"(", b"type", b"regular")
_EXECUTABLE: Final = _strings(b"executable", b"")
_CONTENTS: Final = _strings(b"contents")
_END: Final = _strings(b")")


def write_file_nar(content: bytes, *, executable: bool = False) -> bytes:
    """The NAR of a regular file with this content."""
    flag = _EXECUTABLE if executable else b""
    return _HEADER + flag + _CONTENTS + _string(content) + _END


def read_file_nar(nar: bytes) -> bytes:
    """The content of the regular file that a NAR holds.

    Raises:
        InvalidNarError: it holds something else, is cut short, or something follows.
    """
    if not nar.startswith(_HEADER):
        raise InvalidNarError("at byte 0: this is not the NAR of a regular file")
    offset = len(_HEADER)
    if nar.startswith(_EXECUTABLE, offset):
        offset += len(_EXECUTABLE)
    if not nar.startswith(_CONTENTS, offset):
        raise InvalidNarError(f"at byte {offset}: no contents")
    offset += len(_CONTENTS)
    if len(nar) < offset + _LENGTH.size:
        raise InvalidNarError(f"at byte {offset}: the NAR ends within a length")
    (length,) = _LENGTH.unpack_from(nar, offset)
    start = offset + _LENGTH.size
    end = start + length
    content = nar[start:end]
    if nar[end:] != b"\0" * (-length % 8) + _END:
        raise InvalidNarError(f"at byte {start}: the contents do not end after {length} bytes")
    return content
