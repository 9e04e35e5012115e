"""What the cache's routes need of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gradient.cache.database import Database
from gradient.cache.objects import ObjectStore
from gradient.db.connect import Pool
from gradient.secrets import Secrets

CommitNar = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

# Uploads that are received at once; the others wait in their sockets. Each may hold a
# decompressor's window and two parts of a multipart upload in memory.
UPLOADS_AT_ONCE = 32


@dataclass
class CacheContext:
    """The parts that the routes work with.

    Parameters:
        pool: connections acting as the server's role.
        store: where NARs lie.
        commit_nar: the graph writer's: takes one element of `graph.commit_nars`, returns its
            report after the commit, raises GradientError for a refusal.
        secrets: decrypts the caches' signing keys.
    """

    pool: Pool
    store: ObjectStore
    commit_nar: CommitNar
    secrets: Secrets
    database: Database = field(init=False)
    uploads: asyncio.Semaphore = field(init=False)
    # Hashing and decompressing happen here, so that the event loop keeps answering.
    threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.database = Database(self.pool)
        self.uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="nar")

    def close(self) -> None:
        """Let the threads end; called when the server has stopped answering."""
        self.threads.shutdown(wait=False, cancel_futures=True)
