"""The one listening connection of a server: kicks in, topics out.

A kick is only a hint. One that is lost costs a tick; after every (re)connect the
topic EVERYTHING is reported, since nothing is kept for a listener that was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import structlog

from gradient.db.connect import connect

CHANNEL = "gradient"
EVERYTHING = "everything"
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 10.0
PROBE_SECONDS = 5.0

log = structlog.get_logger(__name__)


async def listen(
    dsn: str, on_topic: Callable[[str], None], *, probe_seconds: float = PROBE_SECONDS
) -> None:
    """Listen until cancelled, calling `on_topic` with each topic as it arrives.

    The connection is its own (autocommit, never pooled). Every `probe_seconds` without
    a kick it is tried with a statement; a broken one is replaced, with backoff.
    """
    backoff = FIRST_BACKOFF_SECONDS
    while True:
        try:
            conn = await connect(dsn, audience=None, name="gradient listener")
            async with conn:
                await conn.execute(f"listen {CHANNEL}")
                backoff = FIRST_BACKOFF_SECONDS
                on_topic(EVERYTHING)
                while True:
                    async for kick in conn.notifies(timeout=probe_seconds):
                        on_topic(kick.payload)
                    await conn.execute("select 1")
        except psycopg.OperationalError as error:
            log.warning("listener lost its connection", error=str(error), retry_seconds=backoff)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
