"""Checks a NAR while it streams through: its syntax (Nix's manual, Nix archive format).

Nothing is kept but the names of the directories that are open, so that an archive of any size
is checked in little memory. Nix itself would refuse, at every client, what is refused here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator
from typing import Final

from gradient.cache.store_path import MalformedError

MAX_NAME_BYTES: Final = 255
MAX_TARGET_BYTES: Final = 4095
MAX_DEPTH: Final = 2000

_LENGTH: Final = struct.Struct("<Q")


class TooLargeError(Exception):
    """The archive is larger than its cache allows, or says that it will be."""


def _word(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text + bytes(-len(text) % 8)


_MAGIC: Final = _word(b"nix-archive-1")
_NODE: Final = _word(b"(") + _word(b"type")
_REGULAR: Final = _NODE + _word(b"regular")
_CLOSE: Final = _word(b")")
_CLOSE_BOTH: Final = _CLOSE + _CLOSE
_ENTRY: Final = _word(b"entry") + _word(b"(") + _word(b"name")
_ENTRY_NODE: Final = _word(b"node")
_EXECUTABLE: Final = _word(b"executable") + _word(b"")
_CONTENTS: Final = _word(b"contents")
_TARGET: Final = _word(b"target")

_Wait = Generator[None, None, None]


class NarChecker:
    """Feed it the archive in pieces of any size, then call `finish`.

    `max_size` in bytes. Afterwards `content_hash` is the SHA-256 of the file, if the archive is
    one file that is not executable, else None.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self._before = 0  # bytes of the archive in front of the buffer
        self._buffer = b""
        self._at = 0
        self._done = False
        self._content = hashlib.sha256()
        self._single_file = False
        self._parser = self._archive()

    @property
    def content_hash(self) -> bytes | None:
        """SHA-256 of the only file, if the archive is one file that is not executable."""
        return self._content.digest() if self._single_file else None

    def feed(self, data: bytes) -> None:
        """Check the next piece. Raises MalformedError or TooLargeError."""
        if self._before + len(self._buffer) + len(data) > self.max_size:
            raise TooLargeError(f"the NAR has more than {self.max_size} bytes")
        self._before += self._at
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        if not self._done:
            try:
                next(self._parser)
            except StopIteration:
                self._done = True
        if self._done and self._at < len(self._buffer):
            self._fail("something follows the end of the archive")

    def finish(self) -> None:
        """The archive has no more pieces. Raises MalformedError when it is not complete."""
        if not self._done:
            raise MalformedError(
                f"the NAR ends in the middle, after {self._before + len(self._buffer)} bytes"
            )

    def _fail(self, problem: str) -> None:
        raise MalformedError(f"not a valid NAR: {problem}, at byte {self._before + self._at}")

    def _more(self, size: int) -> _Wait:
        """Wait until `size` bytes lie in the buffer."""
        while len(self._buffer) - self._at < size:
            yield

    def _next_is(self, words: bytes) -> Generator[None, None, bool]:
        """Whether `words` come next; steps over them if so."""
        if len(self._buffer) - self._at < len(words):
            # The words that end an archive are shorter than those that would go on.
            seen = self._buffer[self._at :]
            while words.startswith(seen) and len(seen) < len(words):
                yield
                seen = self._buffer[self._at :]
        if self._buffer.startswith(words, self._at):
            self._at += len(words)
            return True
        return False

    def _stepped(self, words: bytes) -> bool:
        """`_next_is` where the words lie in the buffer already; False otherwise.

        Most do, and a call costs a fraction of what a generator does.
        """
        if self._buffer.startswith(words, self._at):
            self._at += len(words)
            return True
        return False

    def _expect(self, words: bytes, what: str) -> _Wait:
        if not (yield from self._next_is(words)):
            self._fail(f"{what} is expected")

    def _text(self, longest: int, what: str) -> Generator[None, None, bytes]:
        """A short string."""
        if len(self._buffer) - self._at < 8:
            yield from self._more(8)
        (size,) = _LENGTH.unpack_from(self._buffer, self._at)
        if not 0 < size <= longest:
            self._fail(f"{what} of {size} bytes")
        padded = 8 + size + -size % 8
        if len(self._buffer) - self._at < padded:
            yield from self._more(padded)
        start = self._at + 8
        text = self._buffer[start : start + size]
        if any(self._buffer[start + size : self._at + padded]):
            self._fail("padding that is not zero")
        self._at += padded
        return text

    def _contents(self, *, hashed: bool) -> _Wait:
        """The bytes of a file, however many; stepped over as they come."""
        yield from self._more(8)
        (size,) = _LENGTH.unpack_from(self._buffer, self._at)
        self._at += 8
        if self._before + self._at + size > self.max_size:
            raise TooLargeError(
                f"the NAR holds a file of {size} bytes; it may have {self.max_size} in all"
            )
        left = size
        while left:
            here = min(left, len(self._buffer) - self._at)
            if hashed and here:
                self._content.update(memoryview(self._buffer)[self._at : self._at + here])
            self._at += here
            left -= here
            if left:
                yield
        padding = -size % 8
        yield from self._more(padding)
        if any(self._buffer[self._at : self._at + padding]):
            self._fail("padding that is not zero")
        self._at += padding

    def _archive(self) -> _Wait:
        yield from self._expect(_MAGIC, "the word nix-archive-1")
        # One item for each open directory: the name of its latest entry.
        open_directories: list[bytes] = []
        while True:
            if (yield from self._node(is_root=not open_directories)):
                open_directories.append(b"")
                if len(open_directories) > MAX_DEPTH:
                    self._fail(f"directories nested more than {MAX_DEPTH} deep")
            else:
                yield from self._leave(open_directories)
            while open_directories:
                if self._stepped(_ENTRY) or (yield from self._next_is(_ENTRY)):
                    name = yield from self._text(MAX_NAME_BYTES, "a name")
                    self._check_name(name, open_directories[-1])
                    open_directories[-1] = name
                    if not self._stepped(_ENTRY_NODE):
                        yield from self._expect(_ENTRY_NODE, "the word node")
                    break
                open_directories.pop()
                yield from self._leave(open_directories)
            else:
                return

    def _leave(self, open_directories: list[bytes]) -> _Wait:
        """The end of a node, and of the entry that holds it."""
        if open_directories and self._stepped(_CLOSE_BOTH):
            return
        yield from self._expect(_CLOSE, "the end of a node")
        if open_directories:
            yield from self._expect(_CLOSE, "the end of an entry")

    def _node(self, *, is_root: bool) -> Generator[None, None, bool]:
        """A node up to its end; True for a directory, whose entries follow."""
        if self._stepped(_REGULAR):
            yield from self._regular(is_root=is_root)
            return False
        yield from self._expect(_NODE, "a node")
        kind = yield from self._text(16, "a type")
        if kind == b"directory":
            return True
        if kind == b"symlink":
            yield from self._expect(_TARGET, "the word target")
            target = yield from self._text(MAX_TARGET_BYTES, "a link's target")
            if b"\0" in target:
                self._fail("a link's target with a NUL byte")
        elif kind == b"regular":
            yield from self._regular(is_root=is_root)
        else:
            self._fail(f"a node of type {kind!r}")
        return False

    def _regular(self, *, is_root: bool) -> _Wait:
        """The rest of a file's node, up to its end."""
        executable = False
        if not self._stepped(_CONTENTS):
            executable = yield from self._next_is(_EXECUTABLE)
            yield from self._expect(_CONTENTS, "the word contents")
        self._single_file = is_root and not executable
        yield from self._contents(hashed=self._single_file)

    def _check_name(self, name: bytes, previous: bytes) -> None:
        if name in (b".", b"..") or b"/" in name or b"\0" in name:
            self._fail(f"the file name {name!r}")
        if name <= previous:
            self._fail(f"the file name {name!r} after {previous!r}")
