"""What `gradient doctor` says: one finding a check."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    """Whether what was checked is as it should be."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the doctor: what was checked, what was found, what to do about it."""

    check: str
    state: State
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(check=check, state=State.OK, found=found)


def warn(check: str, found: str, advice: str) -> Finding:
    """It works, but a person should know."""
    return Finding(check=check, state=State.WARN, found=found, advice=advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """It does not work until somebody does something."""
    return Finding(check=check, state=State.FAIL, found=found, advice=advice)
