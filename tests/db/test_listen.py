"""The listener: topics arrive, and a lost connection costs nothing but a full pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gradient.db.listen import EVERYTHING, listen
from tests.support.database import Database


@asynccontextmanager
async def listening(database: Database, probe: float = 5.0) -> AsyncIterator[list[str]]:
    topics: list[str] = []
    task = asyncio.create_task(listen(database.dsn, topics.append, probe_seconds=probe))
    try:
        await until(lambda: EVERYTHING in topics)
        yield topics
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_topic_arrives_after_the_first_everything(clean_db: Database) -> None:
    async with listening(clean_db) as topics:
        clean_db.connect().execute("select pg_notify('gradient', 'builds')")
        await until(lambda: topics == [EVERYTHING, "builds"])


async def test_repeats_in_one_transaction_arrive_once(clean_db: Database) -> None:
    async with listening(clean_db) as topics:
        clean_db.connect().execute(
            "select pg_notify('gradient', 'builds') from generate_series(1, 100)"
        )
        clean_db.connect().execute("select pg_notify('gradient', 'waiting')")
        await until(lambda: topics == [EVERYTHING, "builds", "waiting"])


async def test_after_a_lost_connection_everything_is_due(clean_db: Database) -> None:
    async with listening(clean_db) as topics:
        admin = clean_db.connect()
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'gradient listener' and datname = current_database()"
        )
        await until(lambda: topics == [EVERYTHING, EVERYTHING])
        admin.execute("select pg_notify('gradient', 'builds')")
        await until(lambda: topics[-1] == "builds")


async def test_a_kick_that_comes_during_the_probe_is_not_lost(clean_db: Database) -> None:
    async with listening(clean_db, probe=0.01) as topics:
        admin = clean_db.connect()
        for number in range(200):
            admin.execute("select pg_notify('gradient', %s)", [str(number)])
        await until(lambda: topics[1:] == [str(number) for number in range(200)])
