"""A proxy in front of PostgreSQL that cuts a connection at a chosen moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class CuttingProxy:
    """Forwards bytes; once armed, cuts the first connection whose client says `word`.

    `before` cuts without passing the word on. Otherwise the word is passed on and the connection
    is cut when the server's answer comes, which the client never sees.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._word: bytes | None = None
        self._before = False
        self.cuts = 0

    def arm(self, word: bytes, *, before: bool) -> None:
        """Cut at the next occurrence of `word`."""
        self._word = word
        self._before = before

    async def handle(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter
    ) -> None:
        """Serve one connection."""
        server_in, server_out = await asyncio.open_connection(*self._target)
        doomed = asyncio.Event()

        async def upwards() -> None:
            while data := await client_in.read(65536):
                if self._word is not None and self._word in data:
                    self._word = None
                    self.cuts += 1
                    if self._before:
                        return
                    doomed.set()
                server_out.write(data)
                await server_out.drain()

        async def downwards() -> None:
            while data := await server_in.read(65536):
                if doomed.is_set():
                    return
                client_out.write(data)
                await client_out.drain()

        tasks = [asyncio.create_task(upwards()), asyncio.create_task(downwards())]
        with contextlib.suppress(ConnectionError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in (client_out, server_out):
            writer.transport.abort()


@asynccontextmanager
async def cutting_proxy(dsn: str) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """A proxy before the server of `dsn`, and the connection string through it."""
    parts = conninfo_to_dict(dsn)
    proxy = CuttingProxy("127.0.0.1", int(parts["port"] or 5432))
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy, make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=str(port))
