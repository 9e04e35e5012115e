"""A scripted worker: speaks the real protocol over a real socket, and does only what it is told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import websockets
from websockets.asyncio.client import ClientConnection, connect

from gradient.protocol import (
    SUBPROTOCOL,
    AssignJob,
    AssignJobResponse,
    EvalResult,
    EvaluatingDerivations,
    EvaluatingFlake,
    Fetching,
    InitAck,
    InitConnection,
    JobKind,
    JobOffer,
    LogFrame,
    Ping,
    Pong,
    Report,
    ReportAck,
    ReportEvent,
    RequestJob,
    ResumeAck,
    RunningJob,
    RunningJobs,
    ServerMessage,
    WorkerCapabilities,
    WorkerMessage,
    decode_server_message,
    encode,
    encode_log,
)

_T = TypeVar("_T")
SECONDS = 15.0


class WorkerClient:
    """One connection; what arrives is kept until it is asked for.

    `expect` takes the first message of a type that fits and leaves the others.
    """

    def __init__(self, socket: ClientConnection, worker: str) -> None:
        self.socket = socket
        self.worker = worker
        self.received: list[ServerMessage] = []
        self.closed: tuple[int, str] | None = None
        self._arrived = asyncio.Condition()
        self._numbers: dict[int, itertools.count[int]] = {}
        self._pings = itertools.count(1)
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self.socket:
                async with self._arrived:
                    self.received.append(decode_server_message(frame))
                    self._arrived.notify_all()
        except websockets.ConnectionClosed:
            pass
        async with self._arrived:
            self.closed = (self.socket.close_code or 1006, self.socket.close_reason or "")
            self._arrived.notify_all()

    async def send(self, message: WorkerMessage) -> None:
        """Send one message."""
        await self.socket.send(encode(message))

    async def send_raw(self, frame: str | bytes) -> None:
        """Send a frame as it is."""
        await self.socket.send(frame)

    async def expect(self, kind: type[_T], seconds: float = SECONDS, **fields: Any) -> _T:
        """The first message of that type whose fields have these values."""

        def found() -> _T | None:
            for position, message in enumerate(self.received):
                if isinstance(message, kind) and all(
                    getattr(message, name) == value for name, value in fields.items()
                ):
                    del self.received[position]
                    return message
            return None

        try:
            async with asyncio.timeout(seconds), self._arrived:
                while (message := found()) is None:
                    if self.closed is not None:
                        raise AssertionError(f"closed with {self.closed} before {kind.__name__}")
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(
                f"no {kind.__name__} {fields} within {seconds} s; there are {self.received}"
            ) from None
        return message

    def none_of(self, kind: type[_T]) -> bool:
        """Whether no message of that type waits to be taken."""
        return not any(isinstance(message, kind) for message in self.received)

    async def wait_closed(self, seconds: float = SECONDS) -> tuple[int, str]:
        """Wait until the server has closed the connection: the code and the reason."""
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: self.closed is not None)
        assert self.closed is not None
        return self.closed

    async def close(self) -> None:
        """Close the connection in an orderly way."""
        await self.socket.close()
        await self._reader

    async def cut(self) -> None:
        """Lose the connection without a word."""
        self.socket.transport.abort()
        await self._reader

    # Steps --------------------------------------------------------------------------------------

    async def ping(self) -> None:
        """One heartbeat and its answer; everything that was sent before it has been read then."""
        number = next(self._pings)
        await self.send(Ping(number=number))
        await self.expect(Pong, number=number)

    async def capabilities(
        self,
        architectures: Sequence[str] = ("x86_64-linux",),
        features: Sequence[str] = (),
        *,
        build_slots: int = 8,
        eval_slots: int = 4,
    ) -> None:
        """Say what the worker can build."""
        await self.send(
            WorkerCapabilities(
                architectures=list(architectures),
                system_features=list(features),
                build_slots=build_slots,
                eval_slots=eval_slots,
            )
        )

    async def resume(self, *jobs: RunningJob) -> ResumeAck:
        """Name the running jobs."""
        await self.send(RunningJobs(jobs=list(jobs)))
        return await self.expect(ResumeAck)

    async def request(self, kind: JobKind, slots: int = 1) -> None:
        """Ask for jobs."""
        await self.send(RequestJob(kind=kind, slots=slots))

    async def take(self, kind: JobKind) -> AssignJob:
        """Ask for one job, wait for it, and accept it."""
        await self.request(kind)
        job = await self.expect(AssignJob)
        await self.send(AssignJobResponse(assignment=job.assignment, accepted=True))
        return job

    async def offered(self, job: str, seconds: float = SECONDS) -> None:
        """Wait until the job was offered."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            offer = await self.expect(JobOffer, seconds=left)
            if job in {candidate.job for candidate in offer.candidates}:
                return

    async def send_report(self, assignment: int, event: ReportEvent) -> int:
        """Send a report with the next number of the assignment; its number."""
        number = next(self._numbers.setdefault(assignment, itertools.count(1)))
        await self.send(Report(assignment=assignment, number=number, event=event))
        return number

    async def report(self, assignment: int, *events: ReportEvent) -> None:
        """Send reports and wait until all are acknowledged."""
        for event in events:
            number = await self.send_report(assignment, event)
            await self.expect(ReportAck, assignment=assignment, number=number)

    async def send_log(self, assignment: int, offset: int, data: bytes) -> None:
        """Send a piece of log."""
        await self.send_raw(encode_log(LogFrame(assignment=assignment, offset=offset, data=data)))

    async def walk(self, assignment: int, *batches: EvalResult) -> None:
        """Report the steps of an evaluation up to the walk, then the batches."""
        await self.report(
            assignment, Fetching(), EvaluatingFlake(), EvaluatingDerivations(), *batches
        )


def hello(worker: str, token: str, **fields: Any) -> InitConnection:
    """The first frame."""
    can: dict[str, Any] = {"can_fetch": True, "can_eval": True, "can_build": True} | fields
    return InitConnection(worker_id=worker, tokens=[token], version="test", **can)


@asynccontextmanager
async def connected(url: str, worker: str = "w1") -> AsyncIterator[WorkerClient]:
    """A connection without a greeting, to a server's URL (http)."""
    socket = await connect(
        url.replace("http", "ws", 1) + "/proto",
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
        max_size=None,
        ping_interval=None,
        compression=None,
    )
    client = WorkerClient(socket, worker)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def worker_client(
    url: str,
    worker: str = "w1",
    token: str = "secret",
    *running: RunningJob,
    architectures: Sequence[str] = ("x86_64-linux",),
) -> AsyncIterator[WorkerClient]:
    """A worker that has greeted, said what it can build, and named its running jobs."""
    async with connected(url, worker) as client:
        await client.send(hello(worker, token))
        await client.expect(InitAck)
        await client.capabilities(architectures)
        await client.resume(*running)
        yield client
