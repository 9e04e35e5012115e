"""/healthz and /readyz."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import psycopg

from gradient.app import Server
from tests.support.database import Database, with_database
from tests.support.server_running import running_server


async def ready(server: Server) -> tuple[int, dict[str, str | None]]:
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{server.url}/readyz", timeout=20)
    body = answer.json()
    assert body["ready"] == (answer.status_code == 200)
    return answer.status_code, body["checks"]


async def test_a_server_that_works_is_ready(clean_db: Database, tmp_path: Path) -> None:
    async with running_server(clean_db, tmp_path) as server:
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{server.url}/healthz")).text == "ok\n"
        status, checks = await ready(server)
    assert status == 200
    assert checks == {"database": None, "graph_writer": None, "object_store": None, "server": None}


async def test_a_store_that_cannot_be_written_is_named(clean_db: Database, tmp_path: Path) -> None:
    async with running_server(clean_db, tmp_path) as server:
        (tmp_path / "objects" / "probe").write_text("in the way")
        status, checks = await ready(server)
    assert status == 503
    assert "object store cannot write" in str(checks.pop("object_store"))
    assert set(checks.values()) == {None}


async def test_a_database_that_is_away_is_named_and_comes_back(
    clean_db: Database, tmp_path: Path
) -> None:
    async with running_server(clean_db, tmp_path) as server:
        with psycopg.connect(with_database(clean_db.dsn, "postgres"), autocommit=True) as admin:
            admin.execute(f"alter database {clean_db.name} with allow_connections false")
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                [clean_db.name],
            )
            # The writer notices with its next message.
            waiting = asyncio.create_task(server.writer.message("graph.requeue"))
            async with asyncio.timeout(15):
                while server.writer.health.reason is None:
                    await asyncio.sleep(0.01)
            status, checks = await ready(server)
            assert status == 503
            assert checks["database"]
            assert "no database" in str(checks["graph_writer"])
            async with httpx2.AsyncClient() as client:
                assert (await client.get(f"{server.url}/healthz")).status_code == 200
            admin.execute(f"alter database {clean_db.name} with allow_connections true")
        await waiting
        async with asyncio.timeout(20):
            while (await ready(server))[0] != 200:
                await asyncio.sleep(0.1)
