"""Whether the server lives, and whether it can work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gradient.cache.objects import ObjectStore, StoreUnavailableError
from gradient.db.connect import Pool
from gradient.graph.writer import GraphWriter

CHECK_SECONDS: Final = 3.0
PROBE_KEY: Final = "probe/readyz"

Check = Callable[[], Awaitable[str | None]]


def health_routes(
    pool: Pool, writer: GraphWriter, store: ObjectStore, serving: Callable[[], str | None]
) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: 200 when everything works, else 503.

    The body of `/readyz` is JSON: `ready`, and for each check None or what is wrong.
    `serving` says why the server takes no workers now; None when it does.
    """

    async def database() -> str | None:
        async with pool.connection(timeout=CHECK_SECONDS) as conn:
            await conn.execute("select 1")
        return None

    async def graph_writer() -> str | None:
        return writer.health.reason

    async def object_store() -> str | None:
        await store.put(PROBE_KEY, b"gradient writes here\n")
        return None

    async def server() -> str | None:
        return serving()

    checks: dict[str, Check] = {
        "database": database,
        "graph_writer": graph_writer,
        "object_store": object_store,
        "server": server,
    }

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        answers = await asyncio.gather(*(_answer(check) for check in checks.values()))
        problems = dict(zip(checks, answers, strict=True))
        ready = not any(problems.values())
        return JSONResponse({"ready": ready, "checks": problems}, 200 if ready else 503)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


async def _answer(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS:g} seconds"
    except (psycopg.Error, PoolTimeout, StoreUnavailableError) as error:
        return str(error) or type(error).__name__
