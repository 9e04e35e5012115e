"""The SQL functions of the binary cache, as typed calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from gradient.cache.ingest import Measured
from gradient.db.connect import Pool
from gradient.db.transaction import Connection, Failure, classify
from gradient.errors import translated


class DatabaseAwayError(Exception):
    """The database does not answer; the client tries again later."""


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

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, with its failures as this class raises them."""
        try:
            with translated():
                async with self._pool.connection() as conn:
                    yield conn
        except (PoolTimeout, PoolClosed, TooManyRequests) as error:
            raise DatabaseAwayError(str(error)) from error
        except psycopg.Error as error:
            if classify(error) is Failure.CONTENT:
                raise
            raise DatabaseAwayError(str(error)) from error

    async def _row(
        self, query: LiteralString, parameters: Sequence[Any] = ()
    ) -> tuple[Any, ...] | None:
        async with self.connection() as conn:
            return await (await conn.execute(query, parameters)).fetchone()

    async def cache_access(self, cache: str, token: str | None) -> CacheAccess | None:
        """None when there is no active cache of that name."""
        row = await self._row(
            "select cache, readable, writable, public, key_name, public_key,"
            " private_key_encrypted, max_nar_size, priority from graph.cache_access(%s, %s)",
            [cache, token],
        )
        return None if row is None else CacheAccess(*row)

    async def job_access(self, assignment: int, token: str) -> JobAccess | None:
        """None when the assignment is closed or the token is not its own."""
        row = await self._row(
            "select worker_id, kind, project, max_nar_size from graph.job_access(%s, %s)",
            [assignment, token],
        )
        return None if row is None else JobAccess(*row)

    async def narinfo(self, cache: str, hash_part: str) -> dict[str, Any] | None:
        """The path that the cache serves under a store hash."""
        row = await self._row("select graph.narinfo(%s, %s)", [cache, hash_part])
        return row[0] if row else None

    async def job_narinfo(self, hash_part: str) -> dict[str, Any] | None:
        """The path that is backed under a store hash."""
        row = await self._row("select graph.job_narinfo(%s)", [hash_part])
        return row[0] if row else None

    async def store_signature(
        self, cache: str, hash_part: str, nar_hash: str, signature: str
    ) -> None:
        """Keep a signature for the next request."""
        await self._row(
            "select graph.store_signature(%s, %s, %s, %s)", [cache, hash_part, nar_hash, signature]
        )

    async def stored_nar(self, cache: str, file_hash: str) -> StoredNar | None:
        """A NAR file that the cache hands out."""
        row = await self._row(
            "select file_size, compression from graph.stored_nar(%s, %s)", [cache, file_hash]
        )
        return None if row is None else StoredNar(*row)

    async def job_nar(self, file_hash: str) -> StoredNar | None:
        """A NAR file of a backed path."""
        row = await self._row("select file_size, compression from graph.job_nar(%s)", [file_hash])
        return None if row is None else StoredNar(*row)

    async def nar_uploaded(self, measured: Measured) -> None:
        """Record a file that lies in the store."""
        await self._row("select graph.nar_uploaded(%s)", [Jsonb(msgspec.to_builtins(measured))])

    async def nar_object(self, file_hash: str) -> Measured | None:
        """What was measured of a file when it was received."""
        row = await self._row(
            "select file_hash, file_size, nar_hash, nar_size, compression, content_hash"
            " from graph.nar_object(%s)",
            [file_hash],
        )
        if row is None:
            return None
        return Measured(
            file_hash=row[0],
            file_size=row[1],
            nar_hash=row[2],
            nar_size=row[3],
            compression=row[4],
            content_hash=row[5],
        )

    async def push_path(self, cache: int, nar: dict[str, Any]) -> dict[str, Any]:
        """A user's push into one cache."""
        row = await self._row("select graph.push_path(%s, %s)", [cache, Jsonb(nar)])
        assert row is not None
        report: dict[str, Any] = row[0]
        return report

    async def trusted_keys(self, cache: int) -> list[str]:
        """The public keys that may speak for the cache's projects."""
        async with self.connection() as conn:
            rows = await conn.execute("select graph.trusted_keys(%s)", [cache])
            return [row[0] for row in await rows.fetchall()]

    async def push_is_trusted(self, cache: int, hash_part: str, keys: list[str]) -> bool:
        """Whether a push signed by these keys may back the path."""
        row = await self._row("select graph.push_is_trusted(%s, %s, %s)", [cache, hash_part, keys])
        return bool(row and row[0])

    async def object_grace(self) -> float:
        """Age in seconds from which an object without a row is collected."""
        row = await self._row("select gradient.setting_int('object_grace')")
        assert row is not None
        return float(row[0])

    async def collect_objects(self, limit: int) -> list[tuple[str, str]]:
        """Forget files that no path has; returns their hashes and compressions."""
        async with self.connection() as conn:
            rows = await conn.execute(
                "select file_hash, compression from graph.collect_objects(%s)", [limit]
            )
            return [(row[0], row[1]) for row in await rows.fetchall()]

    async def unrecorded_objects(self, file_hashes: list[str]) -> list[str]:
        """Of these files, those that no row knows."""
        async with self.connection() as conn:
            rows = await conn.execute("select graph.unrecorded_objects(%s)", [file_hashes])
            return [row[0] for row in await rows.fetchall()]

    @asynccontextmanager
    async def orphan_object(self, file_hash: str) -> AsyncIterator[bool]:
        """Whether the file is nobody's; that stays so until the block ends."""
        async with self.connection() as conn, conn.transaction():
            row = await (
                await conn.execute("select graph.is_orphan_object(%s)", [file_hash])
            ).fetchone()
            yield bool(row and row[0])
