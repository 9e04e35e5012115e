"""The SQL functions of the binary cache, as typed calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from gradient.cache.ingest import Measured
from gradient.db.call import Rules, call, document, is_passing
from gradient.db.connect import Pool


class DatabaseAwayError(Exception):
    """The database does not answer; the client tries again later."""


@contextmanager
def _outages() -> Iterator[None]:
    try:
        yield
    except (PoolTimeout, PoolClosed, TooManyRequests) as error:
        raise DatabaseAwayError(f"the database does not answer: {error}") from error
    except psycopg.Error as error:
        if not is_passing(error):
            raise
        raise DatabaseAwayError(f"the database does not answer: {error}") from error


class CacheAccess(msgspec.Struct, frozen=True):
    """What a token may do with a cache: the row of `graph.cache_access`."""

    cache: int
    readable: bool
    writable: bool
    public: bool
    key_name: str
    public_key: str
    private_key_encrypted: bytes
    max_nar_size: int
    priority: int


class JobAccess(msgspec.Struct, frozen=True):
    """The open assignment behind an upload token: the row of `graph.job_access`."""

    worker_id: str
    kind: str
    project: int
    max_nar_size: int


class StoredNar(msgspec.Struct, frozen=True):
    """A NAR file that may be handed out."""

    file_size: int
    compression: str


class Database:
    """Calls through a pool. Raises GradientError for refusals, DatabaseAwayError for an outage."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rules = Rules(pool)

    async def _value(self, function: str, *arguments: Any) -> Any:
        with _outages():
            return await self._rules.value(function, *arguments)

    async def _row(self, function: str, *arguments: Any) -> dict[str, Any] | None:
        with _outages():
            rows = await self._rules.rows(function, *arguments)
        return rows[0] if rows else None

    async def cache_access(self, cache: str, token: str | None) -> CacheAccess | None:
        """None when there is no active cache of that name."""
        row = await self._row("graph.cache_access", cache, token)
        return None if row is None else CacheAccess(**row)

    async def job_access(self, assignment: int, token: str) -> JobAccess | None:
        """None when the assignment is closed or the token is not its own."""
        row = await self._row("graph.job_access", assignment, token)
        return None if row is None else JobAccess(**row)

    async def narinfo(self, cache: str, hash_part: str) -> dict[str, Any] | None:
        """The path that the cache serves under a store hash."""
        path: dict[str, Any] | None = await self._value("graph.narinfo", cache, hash_part)
        return path

    async def job_narinfo(self, hash_part: str) -> dict[str, Any] | None:
        """The path that is backed under a store hash."""
        path: dict[str, Any] | None = await self._value("graph.job_narinfo", hash_part)
        return path

    async def store_signature(
        self, cache: str, hash_part: str, nar_hash: str, signature: str
    ) -> None:
        """Keep a signature for the next request."""
        await self._value("graph.store_signature", cache, hash_part, nar_hash, signature)

    async def stored_nar(self, cache: str, file_hash: str) -> StoredNar | None:
        """A NAR file that the cache hands out."""
        row = await self._row("graph.stored_nar", cache, file_hash)
        return None if row is None else StoredNar(**row)

    async def job_nar(self, file_hash: str) -> StoredNar | None:
        """A NAR file of a backed path."""
        row = await self._row("graph.job_nar", file_hash)
        return None if row is None else StoredNar(**row)

    async def nar_uploaded(self, measured: Measured) -> None:
        """Record a file that lies in the store."""
        await self._value("graph.nar_uploaded", document(measured))

    async def nar_object(self, file_hash: str) -> Measured | None:
        """What was measured of a file when it was received."""
        row = await self._row("graph.nar_object", file_hash)
        return None if row is None else Measured(**row)

    async def push_path(self, cache: int, nar: dict[str, Any]) -> dict[str, Any]:
        """A user's push into one cache."""
        report: dict[str, Any] = await self._value("graph.push_path", cache, document(nar))
        return report

    async def trusted_keys(self, cache: int) -> list[str]:
        """The public keys that may speak for the cache's projects."""
        with _outages():
            keys: list[str] = await self._rules.values("graph.trusted_keys", cache)
        return keys

    async def push_is_trusted(self, cache: int, hash_part: str, keys: list[str]) -> bool:
        """Whether a push signed by these keys may back the path."""
        return bool(await self._value("graph.push_is_trusted", cache, hash_part, keys))

    async def object_grace(self) -> float:
        """Age in seconds from which an object without a row is collected."""
        return float(await self._value("gradient.setting_int", "object_grace"))

    async def collect_objects(self, limit: int) -> list[tuple[str, str]]:
        """Forget files that no path has; returns their hashes and compressions."""
        with _outages():
            rows = await self._rules.rows("graph.collect_objects", limit)
        return [(row["file_hash"], row["compression"]) for row in rows]

    async def unrecorded_objects(self, file_hashes: list[str]) -> list[str]:
        """Of these files, those that no row knows."""
        with _outages():
            unknown: list[str] = await self._rules.values("graph.unrecorded_objects", file_hashes)
        return unknown

    @asynccontextmanager
    async def orphan_object(self, file_hash: str) -> AsyncIterator[bool]:
        """Whether the file is nobody's; that stays so until the block ends."""
        with _outages():
            async with self._pool.connection() as conn, conn.transaction():
                yield bool(await call(conn, "graph.is_orphan_object", file_hash))
