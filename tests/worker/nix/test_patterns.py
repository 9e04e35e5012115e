"""Attribute patterns: what is read, and what is refused with a reason."""

from __future__ import annotations

import pytest

from worker.nix.patterns import (
    DEFAULT_PATTERNS,
    InvalidPatternError,
    Segment,
    attr_name,
    parse_patterns,
)

ANY = Segment(None)
ANY_AND_DEEPER = Segment(None, deeper=True)


def segments(text: str) -> list[Segment | str]:
    """The segments of one pattern, plain names as strings."""
    (pattern,) = parse_patterns(text).selected
    return [segment.name if segment.name is not None else segment for segment in pattern.segments]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEFAULT_PATTERNS, ["packages", "x86_64-linux", ANY_AND_DEEPER]),
        ("packages.x86_64-linux.hello", ["packages", "x86_64-linux", "hello"]),
        ("packages.*.hello", ["packages", ANY, "hello"]),
        ("packages.#", ["packages", ANY]),
        ("packages.#.#", ["packages", ANY, ANY]),
        ("packages.*.*", ["packages", ANY_AND_DEEPER]),
        ("packages.*.*.hello.*", ["packages", ANY, "hello", ANY_AND_DEEPER]),
        ("packages.*.#", ["packages", ANY, ANY]),
        ("packages.#.*", ["packages", ANY, ANY_AND_DEEPER]),
        ("*", [ANY_AND_DEEPER]),
        ('packages."a.b,c"', ["packages", "a.b,c"]),
        ("packages.a-b_c'd+", ["packages", "a-b_c'd+"]),
    ],
)
def test_a_pattern_is_read_as(text: str, expected: list[Segment | str]) -> None:
    assert segments(text) == expected


def test_several_patterns_are_separated_by_commas_and_exclusions_kept_apart() -> None:
    parsed = parse_patterns('packages.x.*,!packages.x.bad,checks.#,!packages.x."a.b"')
    assert [pattern.text for pattern in parsed.selected] == ["packages.x.*", "checks.#"]
    assert parsed.excluded == {("packages", "x", "bad"), ("packages", "x", "a.b")}


def test_only_a_pattern_without_wildcard_is_explicit() -> None:
    explicit, wildcard = parse_patterns("packages.x.a,packages.#.a").selected
    assert explicit.explicit
    assert not wildcard.explicit


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no attribute pattern"),
        ("packages.x, checks", "whitespace"),
        (" packages", "whitespace"),
        ("packages.a b", "whitespace"),
        ('packages."a b"', "whitespace"),
        ("packages\n", "whitespace"),
        ("packages,,checks", "empty pattern"),
        ("packages,", "empty pattern"),
        ("packages..x", "empty segment"),
        ("packages.", "empty segment"),
        (".packages", "leading dot"),
        ("!", "excludes nothing"),
        ("packages.*,!", "excludes nothing"),
        ("#", "'#' alone"),
        ("packages.*,!packages.*", "cannot hold a wildcard"),
        ("packages.*,!packages.#", "cannot hold a wildcard"),
        ("packages.!x", "'!' inside"),
        ("packages.x!", "'!' inside"),
        ("!!packages.x,checks", "'!' inside"),
        ("packages.py*", r"'\*' inside"),
        ("packages.a#b", "'#' inside"),
        ('packages."*"', "in quotes"),
        ('packages."#"', "in quotes"),
        ('packages."!"', "in quotes"),
        ('packages.""', "quoted segment"),
        ('packages."open', "quoted segment"),
        ('packages.a"b"', "inside"),
        ("!packages.x", "selects nothing"),
    ],
)
def test_a_malformed_pattern_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidPatternError, match=reason):
        parse_patterns(text)


def test_an_attribute_is_named_as_nix_writes_it() -> None:
    assert attr_name(("packages", "x86_64-linux", "a'b-c")) == "packages.x86_64-linux.a'b-c"
    assert attr_name(("a.b", "1x", 'q"\\', "")) == '"a.b"."1x"."q\\"\\\\".""'
