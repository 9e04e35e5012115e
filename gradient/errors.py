"""The errors that the SQL functions raise, as Python exceptions.

Each SQLSTATE of class GR is one exception class; Python code catches classes and never
reads message texts. `translated` is the one place where a database error becomes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import psycopg


class GradientError(Exception):
    """A refusal by the rules: what happened, to which row, and what to do next.

    `code` is the SQLSTATE, `message` names the row, `detail` gives the state found,
    `hint` says what to type next; the last two may be empty.
    """

    code: ClassVar[str] = "GR000"

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return "\n".join(part for part in (self.message, self.detail, self.hint) if part)


class WrongStateError(GradientError):
    """GR001: the row is in a state that does not allow this."""

    code = "GR001"


class NotFoundError(GradientError):
    """GR002: there is no such row."""

    code = "GR002"


class StaleAssignmentError(GradientError):
    """GR003: the assignment is closed, or another worker's; the worker stops that job."""

    code = "GR003"


class EvaluationClosedError(GradientError):
    """GR004: the evaluation does not accept batches any more."""

    code = "GR004"


class MalformedContentError(GradientError):
    """GR005: a path, hash, name or document is not well-formed."""

    code = "GR005"


class NotAllowedError(GradientError):
    """GR006: the token or the login may not do this."""

    code = "GR006"


class ConflictError(GradientError):
    """GR007: something else is there: the name is taken, the path has other content."""

    code = "GR007"


class OverLimitError(GradientError):
    """GR008: the input is larger than a limit allows."""

    code = "GR008"


class BadSettingError(GradientError):
    """GR010: a setting is missing or its value makes no sense."""

    code = "GR010"


BY_CODE: dict[str, type[GradientError]] = {
    error.code: error
    for error in (
        WrongStateError,
        NotFoundError,
        StaleAssignmentError,
        EvaluationClosedError,
        MalformedContentError,
        NotAllowedError,
        ConflictError,
        OverLimitError,
        BadSettingError,
    )
}


def from_database(error: psycopg.Error) -> GradientError | None:
    """The exception for a database error of class GR; None for any other error."""
    state = error.sqlstate
    if state is None or not state.startswith("GR"):
        return None
    diagnosis = error.diag
    return BY_CODE.get(state, GradientError)(
        diagnosis.message_primary or str(error),
        detail=diagnosis.message_detail or "",
        hint=diagnosis.message_hint or "",
    )


@contextmanager
def translated() -> Iterator[None]:
    """Raise a database error of class GR as its GradientError; let others pass."""
    try:
        yield
    except psycopg.Error as error:
        refusal = from_database(error)
        if refusal is None:
            raise
        raise refusal from error
