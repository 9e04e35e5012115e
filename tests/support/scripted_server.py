"""A scripted peer for the worker: a WebSocket and a binary cache over real sockets.

It is no server: it decides nothing, keeps no rules, and says what the test tells it to say. What
the worker sends is collected; what the cache was given is kept in memory. The real server is used
by tests/end_to_end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gradient import protocol as wire
from tests.support.server import free_port
from worker.narinfo import NarInfo
from worker.nix.serve import PathInfo
from worker.nix.store_path import hash_part, nix32_encode

Message = TypeVar("Message")
TOKEN = "5" * 64


class Connection:
    """One connection of the worker; the test reads and writes it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._kept: list[Any] = []
        self.closed = asyncio.Event()
        self.pong = True
        self.acknowledge = True
        self.received: list[Any] = []

    async def send(self, message: Any) -> None:
        """Send a message of the wire."""
        await self._socket.send_text(wire.encode(message))

    async def send_text(self, text: str) -> None:
        """Send a frame as it is."""
        await self._socket.send_text(text)

    async def expect(
        self,
        kind: type[Message],
        where: Callable[[Message], bool] = lambda _: True,
        timeout: float = 20.0,
    ) -> Message:
        """The next message of a kind; others are kept for later calls."""
        for index, message in enumerate(self._kept):
            if isinstance(message, kind) and where(message):
                del self._kept[index]
                return message
        try:
            async with asyncio.timeout(timeout):
                while True:
                    message = await self._inbox.get()
                    if isinstance(message, kind) and where(message):
                        return message
                    self._kept.append(message)
        except TimeoutError:
            raise AssertionError(
                f"no {kind.__name__} within {timeout} s; there were {self._kept}"
            ) from None

    async def expect_report(
        self, event: type[Message], assignment: int, timeout: float = 20.0
    ) -> Message:
        """The next report of an event about an assignment."""
        report = await self.expect(
            wire.Report,
            lambda r: r.assignment == assignment and isinstance(r.event, event),
            timeout,
        )
        assert isinstance(report.event, event)
        return report.event

    def has(self, kind: type[Any]) -> bool:
        """Whether a message of that kind has ever come on this connection."""
        return any(isinstance(message, kind) for message in self.received)

    async def welcome(self, keep: list[int] | None = None, grace: int = 120) -> wire.RunningJobs:
        """Do the server's half of the greeting; confirms all running jobs unless told which."""
        await self.expect(wire.InitConnection)
        await self.send(
            wire.InitAck(
                projects=["main"],
                can_fetch=True,
                can_eval=True,
                can_build=True,
                worker_grace_secs=grace,
            )
        )
        await self.expect(wire.WorkerCapabilities)
        running = await self.expect(wire.RunningJobs)
        named = [job.assignment for job in running.jobs]
        kept = named if keep is None else keep
        await self.send(wire.ResumeAck(keep=kept, stop=[one for one in named if one not in kept]))
        return running

    async def cut(self) -> None:
        """Drop the connection."""
        with contextlib.suppress(RuntimeError):
            await self._socket.close(1011)
        await self.closed.wait()

    async def run(self) -> None:
        """Collect what comes until the worker goes; answer what a test does not care for."""
        try:
            while True:
                frame = await self._socket.receive()
                if frame["type"] == "websocket.disconnect":
                    return
                await self._take(frame)
        except (WebSocketDisconnect, RuntimeError):
            return
        finally:
            self.closed.set()

    async def _take(self, frame: Any) -> None:
        message: Any
        if frame.get("text") is not None:
            message = wire.decode_worker_message(frame["text"])
        else:
            message = wire.decode_log(frame["bytes"])
        self.received.append(message)
        self._inbox.put_nowait(message)
        if self.pong and isinstance(message, wire.Ping):
            await self.send(wire.Pong(number=message.number))
        if self.acknowledge and isinstance(message, wire.Report):
            await self.send(wire.ReportAck(assignment=message.assignment, number=message.number))
        if self.acknowledge and isinstance(message, wire.LogFrame):
            await self.send(
                wire.LogAck(
                    assignment=message.assignment, offset=message.offset + len(message.data)
                )
            )


class ScriptedServer:
    """The peer: hands out connections as the worker makes them, and holds a cache.

    Attributes:
        objects: packed NARs by their URL below the cache.
        narinfos: narinfo text by hash part.
        refuse: answers a cache request instead of the cache: (method, path) to a status or None.
        uploads: while it is cleared, uploads are not answered.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.objects: dict[str, bytes] = {}
        self.narinfos: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.refuse: Callable[[str, str], int | None] = lambda method, path: None
        self.uploads = asyncio.Event()
        self.uploads.set()
        self._connections: asyncio.Queue[Connection] = asyncio.Queue()
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        """What the worker is told."""
        return f"http://127.0.0.1:{self.port}"

    async def connection(self, timeout: float = 20.0) -> Connection:
        """The worker's next connection."""
        async with asyncio.timeout(timeout):
            return await self._connections.get()

    async def accepted(self, **options: Any) -> Connection:
        """The worker's next connection, after the greeting."""
        connection = await self.connection()
        await connection.welcome(**options)
        return connection

    async def assign(
        self, connection: Connection, spec: wire.FlakeJob | wire.BuildJob, assignment: int = 0
    ) -> int:
        """Give the worker a job; returns the assignment once the worker has answered."""
        number = assignment or next(self._numbers)
        kind = "build" if isinstance(spec, wire.BuildJob) else "eval"
        await connection.send(
            wire.AssignJob(
                assignment=number,
                job=f"{kind}:{number}",
                spec=spec,
                cache_path=f"/jobs/{number}/cache",
                token=TOKEN,
            )
        )
        answer = await connection.expect(wire.AssignJobResponse, lambda m: m.assignment == number)
        assert answer.accepted, answer.reason
        return number

    def put(self, info: PathInfo, nar: bytes) -> None:
        """Lay a path into the cache."""
        digest = nix32_encode(hashlib.sha256(nar).digest())
        narinfo = NarInfo(
            info=info,
            url=f"nar/{digest}.nar",
            compression="none",
            file_hash=f"sha256:{digest}",
            file_size=len(nar),
        )
        self.objects[narinfo.url] = nar
        self.narinfos[hash_part(info.path)] = narinfo.text()

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept(subprotocol=wire.SUBPROTOCOL)
        connection = Connection(socket)
        self._connections.put_nowait(connection)
        await connection.run()

    async def _cache(self, request: Request) -> Response:
        method, name = request.method, request.path_params["name"]
        self.requests.append((method, name))
        if (status := self.refuse(method, name)) is not None:
            return PlainTextResponse("the test says no", status)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return PlainTextResponse("no token", 401)
        if method == "PUT":
            await self.uploads.wait()
            body = await request.body()
            if name.endswith(".narinfo"):
                self.narinfos[name.removesuffix(".narinfo")] = body.decode()
            else:
                self.objects[name] = body
            return PlainTextResponse("stored", 201)
        if name.endswith(".narinfo"):
            text = self.narinfos.get(name.removesuffix(".narinfo"))
            return PlainTextResponse(text) if text else PlainTextResponse("absent", 404)
        data = self.objects.get(name)
        return Response(data) if data is not None else PlainTextResponse("absent", 404)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedServer]:
        """Listen until the block ends."""
        app = Starlette(
            routes=[
                WebSocketRoute("/proto", self._socket),
                Route(
                    "/jobs/{assignment:int}/cache/{name:path}", self._cache, methods=["GET", "PUT"]
                ),
            ]
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                host="127.0.0.1",
                port=self.port,
                log_level="error",
                lifespan="off",
                ws_ping_interval=None,
                ws_max_size=wire.MAX_FRAME_BYTES,
                timeout_graceful_shutdown=1,
            )
        )
        # The test's own signals and loop stay as they are.
        task = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            await task
