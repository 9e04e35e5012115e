"""The listening socket: what every connection of the server inherits."""

from __future__ import annotations

import asyncio
import socket

from gradient.app import _bind


async def test_an_answer_in_two_writes_does_not_wait_for_the_clients_acknowledgement() -> None:
    switched_off: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        switched_off.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = _bind("127.0.0.1", 0)
    async with await asyncio.start_server(handle, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await asyncio.wait_for(switched_off, 5)
        writer.close()
