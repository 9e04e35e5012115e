"""Calling the functions of the database by name: the only way Python talks to the rules."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import psycopg
import structlog
from psycopg import errors
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import PoolTimeout

from gradient.db.connect import Connection, Pool
from gradient.db.transaction import ATTEMPTS, Failure, classify
from gradient.errors import translated

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0

_NAME = re.compile(r"(gradient|graph|scheduler)\.[a-z_][a-z0-9_]*")

log = structlog.get_logger(__name__)


@lru_cache(maxsize=256)
def _statement(function: str, arguments: int) -> bytes:
    if not _NAME.fullmatch(function):
        raise ValueError(f"{function!r} is not the qualified name of a function of ours")
    return f"select * from {function}({', '.join(['%s'] * arguments)})".encode()


def document(value: Any) -> Jsonb:
    """A jsonb argument: plain values and msgspec structs."""
    return Jsonb(value, dumps=msgspec.json.encode)


async def call(conn: Connection, function: str, *arguments: Any) -> Any:
    """The value of a function that returns one; raises psycopg.Error as it comes."""
    cursor = await conn.execute(_statement(function, len(arguments)), arguments)
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def call_rows(conn: Connection, function: str, *arguments: Any) -> list[dict[str, Any]]:
    """The rows of a function that returns a table; raises psycopg.Error as it comes."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_statement(function, len(arguments)), arguments)
        return await cursor.fetchall()


async def call_values(conn: Connection, function: str, *arguments: Any) -> list[Any]:
    """What a function returns that returns a set; raises psycopg.Error as it comes."""
    cursor = await conn.execute(_statement(function, len(arguments)), arguments)
    return [row[0] for row in await cursor.fetchall()]


class Rules:
    """Calls through a pool, each its own transaction, tried again after a conflict.

    `value`, `values` and `rows` raise GradientError for what the rules refuse, and psycopg.Error or
    PoolTimeout otherwise. The `patient` ones wait out a database that is away.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def value(self, function: str, *arguments: Any) -> Any:
        """The value that the function returns."""
        return await self._attempts(call, function, arguments)

    async def values(self, function: str, *arguments: Any) -> list[Any]:
        """The set of values that the function returns."""
        found: list[Any] = await self._attempts(call_values, function, arguments)
        return found

    async def rows(self, function: str, *arguments: Any) -> list[dict[str, Any]]:
        """The rows that the function returns, by column name."""
        found: list[dict[str, Any]] = await self._attempts(call_rows, function, arguments)
        return found

    async def patient_value(self, function: str, *arguments: Any) -> Any:
        """`value`, waiting as long as the database is away."""
        return await self._patiently(call, function, arguments)

    async def patient_values(self, function: str, *arguments: Any) -> list[Any]:
        """`values`, waiting as long as the database is away."""
        found: list[Any] = await self._patiently(call_values, function, arguments)
        return found

    async def patient_rows(self, function: str, *arguments: Any) -> list[dict[str, Any]]:
        """`rows`, waiting as long as the database is away."""
        found: list[dict[str, Any]] = await self._patiently(call_rows, function, arguments)
        return found

    async def _attempts(self, how: Any, function: str, arguments: Sequence[Any]) -> Any:
        with translated():
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    async with self._pool.connection() as conn:
                        return await how(conn, function, *arguments)
                except psycopg.Error as error:
                    if attempt == ATTEMPTS or classify(error) is not Failure.CONFLICT:
                        raise
                    await asyncio.sleep(random.uniform(0.01, 0.1) * attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _patiently(self, how: Any, function: str, arguments: Sequence[Any]) -> Any:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            try:
                return await self._attempts(how, function, arguments)
            except (psycopg.Error, PoolTimeout) as error:
                if not is_passing(error):
                    raise
                log.warning(
                    "database call is tried again",
                    function=function,
                    error=str(error),
                    retry_seconds=round(backoff, 1),
                )
            await asyncio.sleep(backoff * random.uniform(0.7, 1.3))
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)


def is_passing(error: psycopg.Error | PoolTimeout) -> bool:
    """Whether the same call may well succeed later: an outage, a conflict, a long wait."""
    if isinstance(error, PoolTimeout | errors.LockNotAvailable | errors.QueryCanceled):
        return True
    return classify(error) is not Failure.CONTENT
