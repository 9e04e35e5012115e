"""How a failure becomes one red line, a hint and an exit code.

Exit codes of every command: 0 done; 1 refused, or not found; 2 wrong usage, wrong configuration,
or a database that cannot be reached or is not set up. `eval watch` has codes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click
import psycopg
from psycopg import errors

from gradient.cli.output import complain
from gradient.config import ConfigError
from gradient.db.cluster import ClusterError
from gradient.errors import GradientError, from_database

REFUSED = 1
CANNOT_RUN = 2


class Failure(click.ClickException):
    """The end of a command without success: what happened, what was found, what to do."""

    def __init__(
        self, message: str, *, detail: str = "", hint: str = "", exit_code: int = REFUSED
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.hint = hint
        # click declares it a class variable, and reads it of the instance.
        self.__dict__["exit_code"] = exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it to standard error."""
        complain(self.message, detail=self.detail, hint=self.hint)


@contextmanager
def explained() -> Iterator[None]:
    """Raise every error that a person can cause as a Failure; let programming errors pass."""
    try:
        yield
    except GradientError as error:
        raise refusal(error) from error
    except ConfigError as error:
        raise Failure(
            str(error), hint="'gradient doctor' lists what is in force", exit_code=CANNOT_RUN
        ) from error
    except ClusterError as error:
        raise Failure(str(error), exit_code=CANNOT_RUN) from error
    except psycopg.Error as error:
        raise from_postgres(error) from error
    except BrokenPipeError:
        # The reader of our output has gone: `gradient ... | head`.
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise Failure(f"{place}{error.strerror or error}", exit_code=CANNOT_RUN) from error


def refusal(error: GradientError) -> Failure:
    """A refusal by the rules, in the words of the function that refused."""
    return Failure(error.message, detail=error.detail, hint=error.hint)


def from_postgres(error: psycopg.Error) -> Failure:
    """A database error of any kind as one line, with what usually helps."""
    refused = from_database(error)
    if refused is not None:
        return refusal(refused)
    message = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, errors.UndefinedFunction | errors.UndefinedTable | errors.UndefinedColumn):
        return Failure(
            f"the database does not have what this version needs: {message}",
            hint="'gradient db migrate' brings it up to date; 'gradient db status' says what lacks",
            exit_code=CANNOT_RUN,
        )
    if isinstance(error, errors.InvalidSchemaName):
        return Failure(
            "this database has never been set up for Gradient",
            hint="gradient db migrate",
            exit_code=CANNOT_RUN,
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return Failure(
            f"the database login may not do this: {message}",
            hint="grant gradient_operator to that login, or use another one (--database)",
            exit_code=CANNOT_RUN,
        )
    if error.sqlstate is None or error.sqlstate[:2] in ("08", "28", "3D", "53", "57"):
        return Failure(
            f"cannot reach the database: {_last_line(message)}",
            hint="check database.url (GRADIENT_DATABASE_URL, --database), and that "
            "PostgreSQL runs; 'gradient doctor' checks each step",
            exit_code=CANNOT_RUN,
        )
    return Failure(
        message, detail=error.diag.message_detail or "", hint=error.diag.message_hint or ""
    )


def _last_line(message: str) -> str:
    """The line that says why: libpq tries several addresses and puts the reason last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
