"""Attribute patterns: which attributes of a flake an evaluation reads.

    packages.x86_64-linux.*, checks.*.*, !packages.x86_64-linux.broken, packages.*."with.dot"

Patterns are separated by commas, segments by dots; a segment in double quotes may hold anything
but a quote. `*` is any name, and as the last segment also one level further, where the value is no
derivation; several in a row count as one. `#` is any name, this level only. A leading `!` excludes
exactly the attribute that it names. In the first segment a wildcard stands for the roots below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from worker.nix.errors import NixError

DEFAULT_PATTERNS: Final = "packages.x86_64-linux.*"
ROOTS: Final = (
    "checks",
    "packages",
    "formatter",
    "legacyPackages",
    "nixosConfigurations",
    "devShells",
    "hydraJobs",
)

_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_'\-]*")

AttrPath = tuple[str, ...]


class InvalidPatternError(NixError):
    """A pattern that cannot be read; the text names it and what is wrong."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One step: a name, or any name.

    Attributes:
        name: None for a wildcard.
        deeper: for a wildcard in the last place, whether one more level belongs to it.
    """

    name: str | None
    deeper: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that selects attributes; `text` is how it was written."""

    text: str
    segments: tuple[Segment, ...]

    @property
    def explicit(self) -> bool:
        """Whether it names one attribute; then a miss is an error."""
        return all(segment.name is not None for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Patterns:
    """A parsed list: what is selected, and what is left out of that."""

    selected: tuple[Pattern, ...]
    excluded: frozenset[AttrPath]


def parse_patterns(text: str) -> Patterns:
    """Read a list of patterns.

    Raises:
        InvalidPatternError: whitespace, an empty pattern or segment, a leading dot, a bare `!`, a
            `#` or `*` that is no whole segment, a wildcard in an exclusion, a `!` inside, a
            wildcard or `!` in quotes, or nothing but exclusions.
    """
    if not text:
        raise InvalidPatternError("there is no attribute pattern")
    selected: list[Pattern] = []
    excluded: set[AttrPath] = set()
    for written in _split(text, ","):
        if not written:
            raise InvalidPatternError(f"an empty pattern in {text!r}")
        exclusion = written.startswith("!")
        body = written[1:] if exclusion else written
        if not body:
            raise InvalidPatternError(f"{written!r} excludes nothing: name an attribute after it")
        if body == "#":
            raise InvalidPatternError("'#' alone selects nothing: write '#.…' below a root")
        names = [_segment(segment, written) for segment in _split(body, ".")]
        if exclusion:
            if any(name is None or name == "#" for name, _ in names):
                raise InvalidPatternError(f"{written!r}: an exclusion cannot hold a wildcard")
            excluded.add(tuple(name for name, _ in names if name is not None))
        else:
            selected.append(Pattern(written, tuple(_segments(names))))
    if not selected:
        raise InvalidPatternError(f"{text!r} selects nothing: it holds exclusions only")
    return Patterns(tuple(selected), frozenset(excluded))


def attr_name(path: Iterable[str]) -> str:
    """An attribute path as Nix writes it, with quotes where a name needs them."""
    return ".".join(
        name
        if _BARE_NAME.fullmatch(name)
        else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for name in path
    )


# A segment as read: the name (None for a wildcard) and the wildcard's sign.
_Read = tuple[str | None, str]


def _segments(names: list[_Read]) -> Iterable[Segment]:
    previous = ""
    for index, (name, sign) in enumerate(names):
        if sign == "*" and previous == "*":
            continue
        previous = sign
        rest_is_stars = all(later == "*" for _, later in names[index:])
        yield Segment(name, deeper=sign == "*" and rest_is_stars)


def _segment(text: str, pattern: str) -> _Read:
    if not text:
        raise InvalidPatternError(f"{pattern!r} has an empty segment or a leading dot")
    if text in ("*", "#"):
        return None, text
    if text.startswith('"'):
        name = text[1:-1]
        if len(text) < 3 or not text.endswith('"') or '"' in name:
            raise InvalidPatternError(
                f"{pattern!r} has a quoted segment that is empty or not closed"
            )
        if name in ("*", "#", "!"):
            raise InvalidPatternError(f"{pattern!r}: {text} in quotes selects nothing")
        if any(character.isspace() for character in name):
            raise InvalidPatternError(f"{pattern!r} has whitespace")
        return name, ""
    if any(character.isspace() for character in text):
        raise InvalidPatternError(f"{pattern!r} has whitespace")
    for sign in '!*#"':
        if sign in text:
            raise InvalidPatternError(f"{pattern!r} has a {sign!r} inside a segment")
    return text, ""


def _split(text: str, separator: str) -> list[str]:
    """Split outside of quotes."""
    parts = [""]
    quoted = False
    for character in text:
        if character == '"':
            quoted = not quoted
        if character == separator and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts
