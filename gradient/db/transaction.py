"""One transaction with a budget, and what each kind of failure means for it.

Three kinds (design: the graph writer): a *content* error fails its caller, a *conflict*
is tried again, an *outage* fails nobody: the caller keeps its work and comes back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from gradient.errors import translated

Connection = psycopg.AsyncConnection[Any]
Result = TypeVar("Result")

# GRAPH_TX_BUDGET and GRAPH_TX_ATTEMPTS of the customer's page on shared builds.
BUDGET_SECONDS = 120.0
ATTEMPTS = 3

_CONFLICTS = {"40P01", "40001", "25P02"}
_OUTAGES = {"57P01", "57P02", "57P03", "53300"}


class Failure(StrEnum):
    """What kind of failure a database error is."""

    CONTENT = "content"
    CONFLICT = "conflict"
    OUTAGE = "outage"


def classify(error: psycopg.Error) -> Failure:
    """The kind of a database error.

    Without a SQLSTATE it is an outage only if the connection failed: psycopg itself
    refuses some values (a NUL in a text, say), and those are the caller's fault.
    """
    state = error.sqlstate
    if state is None:
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return (
            Failure.OUTAGE
            if broken and not isinstance(error, errors.PipelineAborted)
            else Failure.CONTENT
        )
    if state in _CONFLICTS:
        return Failure.CONFLICT
    if state in _OUTAGES or state.startswith("08"):
        return Failure.OUTAGE
    return Failure.CONTENT


async def set_budget(conn: Connection, seconds: float) -> None:
    """Limit every later statement of this transaction to `seconds`.

    A limit set inside the function that runs would do nothing to the running call.
    """
    milliseconds = str(max(1, round(seconds * 1000)))
    await conn.execute("select set_config('statement_timeout', %s, true)", [milliseconds])


async def transact(
    conn: Connection,
    work: Callable[[Connection], Awaitable[Result]],
    *,
    budget: float = BUDGET_SECONDS,
    attempts: int = ATTEMPTS,
) -> Result:
    """Run `work` in one transaction; run it again after a conflict, `attempts` times in all.

    `budget` in seconds limits each statement. `work` must not keep anything of an
    attempt that was rolled back. Errors of class GR are raised as GradientError, all
    others as they are: `classify` tells which.
    """
    with translated():
        for attempt in range(1, attempts + 1):
            try:
                async with conn.transaction():
                    await set_budget(conn, budget)
                    result = await work(conn)
                    # An error that was caught and only logged leaves the transaction
                    # aborted, and COMMIT would then be a silent rollback.
                    await conn.execute("select 1")
                return result
            except psycopg.Error as error:
                if attempt == attempts or classify(error) is not Failure.CONFLICT:
                    raise
                await asyncio.sleep(random.uniform(0.01, 0.1) * attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")
