"""The worker's end of the connection to the server.

    session = Session(config, host)
    await session.run()        # until `session.stop()`; reconnects for as long as it takes

The session knows the wire, the host knows the jobs. A connection is *served* once the server has
answered RunningJobs; from then on reports flow. When it breaks, jobs go on: their channels keep
what the server has not acknowledged, and the next connection carries it again. A worker that the
server has not confirmed for the grace stops its jobs, since the server has given them to others
by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidURI, WebSocketException
from websockets.typing import Subprotocol

from gradient.protocol import (
    HANDSHAKE_SECONDS,
    HEARTBEAT_SECONDS,
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    AbortJob,
    AssignJob,
    AssignJobResponse,
    BuildJob,
    Draining,
    Error,
    InitAck,
    InitConnection,
    JobCandidate,
    JobKind,
    JobOffer,
    JobScore,
    JobScores,
    KnownDerivations,
    LogAck,
    Ping,
    Pong,
    ProtocolError,
    QueryKnownDerivations,
    Reject,
    ReportAck,
    RequestJob,
    RequestJobList,
    ResumeAck,
    RunningJob,
    RunningJobs,
    ServerMessage,
    StaleAssignment,
    WorkerCapabilities,
    WorkerMessage,
    decode_server_message,
    encode,
)
from worker.channel import Channel
from worker.metrics import live_metrics

FIRST_DELAY_SECONDS: Final = 1.0
LONGEST_DELAY_SECONDS: Final = 60.0
DEFAULT_GRACE_SECONDS: Final = 120.0
# Names in one question to the server; a wave with more asks several.
QUERY_NAMES: Final = 10_000

log = structlog.get_logger("worker.session")


class RefusedError(Exception):
    """The server did not take this worker; the text says why and what to do."""


class ConnectionLostError(Exception):
    """The connection is of no further use; the text says what happened."""


@dataclass(frozen=True)
class SessionConfig:
    """Where the server is and who calls.

    Attributes:
        server: `http(s)://host[:port]` or `ws(s)://host[:port]`.
        state_dir: where the builds run, for the free space that the heartbeat tells.
    """

    server: str
    worker_id: str
    tokens: Sequence[str]
    version: str
    can_fetch: bool
    can_eval: bool
    can_build: bool
    state_dir: str = "/"


class Host(Protocol):
    """What the session needs from the worker that it speaks for."""

    @property
    def channels(self) -> Collection[Channel]:
        """The assignments that the server has not closed."""

    @property
    def capabilities(self) -> WorkerCapabilities:
        """What to announce."""

    def free_slots(self) -> dict[JobKind, int]:
        """How many jobs of each kind to ask for."""

    def assigned(self, job: AssignJob) -> str | None:
        """Take a job; returns the reason when it is refused."""

    def stop_job(self, assignment: int, *, report: bool, reason: str) -> None:
        """Stop a job: `report` tells whether its end is reported (as aborted) or dropped."""

    def resumed(self, keep: Collection[int], welcome: InitAck) -> None:
        """A connection is served."""

    async def score(self, candidates: Sequence[JobCandidate]) -> list[JobScore]:
        """What the worker knows of these candidates."""


class Session:
    """Keeps one connection to the server for as long as the worker runs."""

    def __init__(self, config: SessionConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._control: deque[str] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._draining: str | None = None
        self._served = self._was_served = False
        self._grace = DEFAULT_GRACE_SECONDS
        self._confirmed_at = 0.0
        self._asked: dict[JobKind, int] = {}
        self._queries: dict[int, tuple[QueryKnownDerivations, asyncio.Future[list[str]]]] = {}
        self._next_query = 1
        self._pings = 0

    # -- the worker's side ---------------------------------------------------------------------

    @property
    def served(self) -> bool:
        """Whether the server takes reports right now."""
        return self._served

    @property
    def grace(self) -> float:
        """Seconds without the server after which it returns this worker's jobs."""
        return self._grace

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def request_jobs(self) -> None:
        """Tell the server how many slots are free, where that changed."""
        if not self._served:
            return
        for kind, slots in self._host.free_slots().items():
            wanted = 0 if self._draining is not None else slots
            if self._asked.get(kind, 0) != wanted:
                self._asked[kind] = wanted
                self._send(RequestJob(kind=kind, slots=wanted))

    async def known_derivations(self, assignment: int, drvs: Sequence[str]) -> set[str]:
        """Which of these `.drv` names need not be walked; waits through lost connections."""
        known: set[str] = set()
        for start in range(0, len(drvs), QUERY_NAMES):
            number = self._next_query
            self._next_query += 1
            question = QueryKnownDerivations(
                query=number, assignment=assignment, drvs=list(drvs[start : start + QUERY_NAMES])
            )
            answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            self._queries[number] = (question, answer)
            if self._served:
                self._send(question)
            try:
                known.update(await answer)
            finally:
                self._queries.pop(number, None)
        return known

    def drain(self, reason: str) -> None:
        """Announce that this worker takes no more jobs."""
        self._draining = reason
        if self._served:
            self._send(Draining(reason=reason))
            for kind in self._host.free_slots():
                self._asked[kind] = 0
                self._send(RequestJob(kind=kind, slots=0))

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()
        self.wake()

    async def run(self) -> None:
        """Connect, serve, reconnect; returns after `stop`."""
        self._confirmed_at = self._now()
        watch = asyncio.create_task(self._stop_unconfirmed_jobs())
        delay = FIRST_DELAY_SECONDS
        try:
            while not self._stop.is_set():
                was_served = False
                try:
                    was_served = await self._connect_once()
                except RefusedError as error:
                    log.error("The server refused this worker.", reason=str(error))
                except ConnectionLostError as error:
                    was_served = self._was_served
                    log.warning("No connection to the server.", reason=str(error))
                if self._stop.is_set():
                    break
                if was_served:
                    delay = FIRST_DELAY_SECONDS
                log.info("Connecting again.", seconds=delay)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._stop.wait()
                delay = min(2 * delay, LONGEST_DELAY_SECONDS)
        finally:
            watch.cancel()

    # -- one connection ------------------------------------------------------------------------

    async def _connect_once(self) -> bool:
        """Run one connection to its end.

        Returns:
            Whether it was served.

        Raises:
            RefusedError: the server does not take this worker.
            ConnectionLostError: there is no connection, or no longer.
        """
        self._was_served = False
        url = websocket_url(self._config.server)
        try:
            async with connect(
                url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                ping_interval=None,
                max_size=MAX_FRAME_BYTES,
                open_timeout=HANDSHAKE_SECONDS,
                close_timeout=2,
            ) as socket:
                if socket.subprotocol != SUBPROTOCOL:
                    raise RefusedError(
                        f"the server at {url} does not speak {SUBPROTOCOL}: "
                        "worker and server must be of the same generation"
                    )
                await self._shake_hands(socket)
                await self._serve(socket)
        except InvalidURI:
            raise RefusedError(f"{self._config.server!r} is not the address of a server") from None
        except InvalidHandshake as error:
            raise ConnectionLostError(
                f"{url} answered, but not as a Gradient server: {error}"
            ) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise ConnectionLostError(f"{url}: {error or type(error).__name__}") from None
        finally:
            self._served = False
            for channel in self._host.channels:
                channel.disconnected()
        return self._was_served

    async def _shake_hands(self, socket: ClientConnection) -> None:
        config = self._config
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await socket.send(
                    encode(
                        InitConnection(
                            worker_id=config.worker_id,
                            tokens=list(config.tokens),
                            version=config.version,
                            can_fetch=config.can_fetch,
                            can_eval=config.can_eval,
                            can_build=config.can_build,
                        )
                    )
                )
                welcome = await self._receive(socket)
                if isinstance(welcome, Reject):
                    raise RefusedError(_explain(welcome, config.worker_id))
                if not isinstance(welcome, InitAck):
                    raise RefusedError(f"the server answered with {type(welcome).__name__}")
                await socket.send(encode(self._host.capabilities))
                running = [
                    RunningJob(job=channel.job, assignment=channel.assignment)
                    for channel in self._host.channels
                ]
                await socket.send(encode(RunningJobs(jobs=running)))
                answer = await self._receive(socket)
                while not isinstance(answer, ResumeAck):
                    if isinstance(answer, Reject):
                        raise RefusedError(_explain(answer, config.worker_id))
                    answer = await self._receive(socket)
        except TimeoutError:
            raise ConnectionLostError(
                f"the server did not finish the greeting within {HANDSHAKE_SECONDS:g} s"
            ) from None
        self._resume(answer, welcome)

    def _resume(self, answer: ResumeAck, welcome: InitAck) -> None:
        """The server has said which jobs are still ours."""
        keep = set(answer.keep)
        for channel in list(self._host.channels):
            if channel.assignment not in keep:
                self._host.stop_job(
                    channel.assignment,
                    report=False,
                    reason="the server has closed this assignment meanwhile",
                )
        self._grace = max(1.0, float(welcome.worker_grace_secs))
        self._control.clear()
        self._asked.clear()
        self._served = self._was_served = True
        self._confirmed_at = self._now()
        for channel in self._host.channels:
            channel.connected()
        self._host.resumed(keep, welcome)
        for question, _ in self._queries.values():
            self._send(question)
        if self._draining is None:
            self._send(RequestJobList())
        else:
            self._send(Draining(reason=self._draining))
        self.request_jobs()
        self.wake()

    async def _serve(self, socket: ClientConnection) -> None:
        offers: asyncio.Queue[JobOffer] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._read(socket, offers), name="read"),
            asyncio.create_task(self._write(socket), name="write"),
            asyncio.create_task(self._beat(socket), name="heartbeat"),
            asyncio.create_task(self._score(offers), name="score"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._served = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, socket: ClientConnection, offers: asyncio.Queue[JobOffer]) -> None:
        while True:
            message = await self._receive(socket)
            self._confirmed_at = self._now()
            self._take(message, offers)

    def _take(self, message: ServerMessage, offers: asyncio.Queue[JobOffer]) -> None:
        match message:
            case ReportAck():
                if channel := self._channel(message.assignment):
                    channel.acknowledge(message.number)
            case LogAck():
                if channel := self._channel(message.assignment):
                    channel.acknowledge_log(message.offset)
            case AssignJob():
                kind: JobKind = "build" if isinstance(message.spec, BuildJob) else "evaluation"
                self._asked[kind] = max(0, self._asked.get(kind, 0) - 1)
                reason = self._host.assigned(message)
                self._send(
                    AssignJobResponse(
                        assignment=message.assignment, accepted=reason is None, reason=reason
                    )
                )
                if channel := self._channel(message.assignment):
                    channel.connected()
                self.request_jobs()
            case JobOffer():
                offers.put_nowait(message)
            case KnownDerivations():
                asked = self._queries.get(message.query)
                if asked is not None and not asked[1].done():
                    asked[1].set_result(message.known)
            case AbortJob():
                self._host.stop_job(message.assignment, report=True, reason=message.reason)
            case StaleAssignment():
                self._host.stop_job(message.assignment, report=False, reason=message.reason)
            case Draining():
                log.info("The server is stopping; jobs go on.", reason=message.reason)
            case Error():
                log.error(
                    "The server could not take a message.",
                    reason=message.message,
                    field=message.field,
                )
            case Pong():
                pass
            case Reject():
                raise RefusedError(_explain(message, self._config.worker_id))
            case InitAck() | ResumeAck():
                log.warning("An answer came twice.", message=type(message).__name__)

    async def _write(self, socket: ClientConnection) -> None:
        """Send what there is: control first, then a report or else some log of each job in turn."""
        while True:
            self._wake.clear()
            while self._control:
                await socket.send(self._control.popleft())
            sent = False
            due: float | None = None
            for channel in list(self._host.channels):
                if (report := channel.next_report()) is not None:
                    await socket.send(report)
                    sent = True
                    continue
                frame, again = channel.next_log_frame(self._now())
                if frame is not None:
                    await socket.send(frame)
                    sent = True
                elif again is not None:
                    due = again if due is None else min(due, again)
            if sent or self._control:
                continue
            if self._stop.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()

    async def _beat(self, socket: ClientConnection) -> None:
        interval = min(HEARTBEAT_SECONDS, max(self._grace / 4, 0.1))
        while True:
            self._pings += 1
            metrics = live_metrics(self._config.state_dir)
            self._send(
                Ping(
                    number=self._pings,
                    cpu_usage_pct=metrics.cpu_usage_pct,
                    ram_free_mb=metrics.ram_free_mb,
                    disk_free_mb=metrics.disk_free_mb,
                )
            )
            await asyncio.sleep(interval)
            if self._now() - self._confirmed_at >= self._grace:
                socket.transport.abort()
                raise ConnectionLostError(f"the server was silent for {self._grace:g} s")

    async def _score(self, offers: asyncio.Queue[JobOffer]) -> None:
        while True:
            offer = await offers.get()
            scores = await self._host.score(offer.candidates)
            if scores:
                self._send(JobScores(scores=scores))

    # -- parts ---------------------------------------------------------------------------------

    async def _stop_unconfirmed_jobs(self) -> None:
        while True:
            silent = self._now() - self._confirmed_at
            if silent >= self._grace:
                for channel in list(self._host.channels):
                    self._host.stop_job(
                        channel.assignment,
                        report=False,
                        reason=f"no server has confirmed it for {self._grace:g} s",
                    )
            await asyncio.sleep(max(0.05, min(1.0, self._grace / 4)))

    async def _receive(self, socket: ClientConnection) -> ServerMessage:
        frame = await socket.recv()
        try:
            return decode_server_message(frame)
        except ProtocolError as error:
            raise ConnectionLostError(
                f"the server sent a frame that is no message: {error.message}"
                + (f" (at {error.field})" if error.field else "")
            ) from None

    def _send(self, message: WorkerMessage) -> None:
        self._control.append(encode(message))
        self._wake.set()

    def _channel(self, assignment: int) -> Channel | None:
        for channel in self._host.channels:
            if channel.assignment == assignment:
                return channel
        return None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def websocket_url(server: str) -> str:
    """The address of the control connection of a server given as http(s) or ws(s)."""
    parts = urlsplit(server if "://" in server else f"http://{server}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/").removesuffix("/proto") + "/proto"
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def http_url(server: str) -> str:
    """The address that the cache paths of jobs are below of."""
    parts = urlsplit(server if "://" in server else f"http://{server}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/").removesuffix("/proto")
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def _explain(message: Reject, worker_id: str) -> str:
    advice = {
        400: "worker and server do not speak the same language; update the older one",
        401: f"register this worker on the server (`gradient worker-token create`) "
        f"as {worker_id} and give it that token",
        403: f"the registration of {worker_id} is missing or switched off on the server",
        495: "give the project a cache first (`gradient cache create`)",
        503: "it will be tried again",
    }.get(message.code)
    return f"{message.code}: {message.reason}" + (f" ({advice})" if advice else "")
