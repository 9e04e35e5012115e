"""One worker's session: a reader that never stops for work, lanes, and the market for jobs.

The reader takes every frame off the socket, answers heartbeats itself, and puts the rest into
lanes: one for each assignment, one for the session's own affairs, one for queries. So a report
that waits for the graph writer delays nothing but its own assignment. When the unfinished frames
reach SESSION_BYTES the reader stops, and the session's silence clock stops with it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, assert_never

import msgspec
import psycopg
import structlog
from psycopg_pool import PoolTimeout
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gradient.cache.objects import ObjectStore, StoreUnavailableError, put_log
from gradient.db.call import Rules, document, is_passing
from gradient.errors import GradientError, StaleAssignmentError
from gradient.graph.writer import GraphTimeoutError, GraphWriter, RecordBatch, WriterClosedError
from gradient.protocol import (
    OFFER_CHUNK,
    AbortJob,
    AssignJob,
    AssignJobResponse,
    Draining,
    Error,
    EvalResult,
    FlakeJob,
    InitConnection,
    JobCandidate,
    JobFailed,
    JobKind,
    JobOffer,
    JobScores,
    KnownDerivations,
    LogAck,
    LogFrame,
    Ping,
    Pong,
    ProtocolError,
    QueryKnownDerivations,
    Report,
    ReportAck,
    RequestJob,
    RequestJobList,
    ResumeAck,
    RunningJobs,
    ServerMessage,
    StaleAssignment,
    WorkerCapabilities,
    WorkerMessage,
    decode_log,
    decode_worker_message,
    encode,
)
from gradient.sessions.handshake import Welcome
from gradient.sessions.lanes import ByteBudget, Lanes
from gradient.sessions.reports import graph_message
from gradient.tasks import Crew
from gradient.timing import Timing

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SESSION_BYTES: Final = 2 * 1024 * 1024
MOST_SLOTS: Final = 10_000
# A look at the offers is followed by a rest of this many times its length at least.
OFFERS_REST: Final = 20
LARGEST_ID: Final = 2**63 - 1
SESSION_LANE: Final = "session"
QUERY_LANE: Final = "queries"
KINDS: Final[tuple[JobKind, ...]] = ("evaluation", "build")

CLOSE_RESTART: Final = 1012
CLOSE_FAULT: Final = 1011
CLOSE_REPLACED: Final = 4409

_LOG_STORE_ATTEMPTS: Final = 5
_FIRST_BACKOFF_SECONDS: Final = 0.2
_LONGEST_BACKOFF_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class SessionParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session works with; `may_assign` tells whether the server may hand out jobs now."""

    rules: Rules
    writer: GraphWriter
    store: ObjectStore
    timing: Timing
    may_assign: Callable[[], bool]


class _Owned(msgspec.Struct):
    """An assignment that is this session's."""

    kind: JobKind
    evaluation: int | None = None
    # The last batch on its way through the graph writer; what follows waits for it.
    last_batch: asyncio.Task[None] | None = None
    # Why a batch was refused: after it the job can only fail.
    refused: str | None = None


class _EndedError(Exception):
    """The session is over."""


class Session:
    """The session of one connected worker; `run` serves it until it ends."""

    def __init__(self, socket: WebSocket, welcome: Welcome, parts: SessionParts) -> None:
        self.worker = welcome.worker
        self.connection = welcome.connection
        self.grace_seconds = welcome.grace_seconds
        self.metrics: dict[str, Any] = {}
        self._socket = socket
        self._parts = parts
        self._rules = parts.rules
        self._writer = parts.writer
        self._log = log.bind(worker=self.worker, connection=self.connection)
        self._bytes = ByteBudget(SESSION_BYTES)
        self._last_frame = time.monotonic()
        self._end = asyncio.Event()
        self._close_code = CLOSE_RESTART
        self._close_reason = ""
        self._crew = Crew()
        self._lanes = Lanes(self._crew)
        self._owned: dict[int, _Owned] = {}
        self._aborts_sent: set[int] = set()
        self._resumed = False
        self._draining = False
        self._wake = asyncio.Event()
        self._due: set[JobKind] = set()
        self._requests: dict[JobKind, int] = {}
        self._wants_offers = False
        self._visible: dict[str, int] = {}
        self._next_offers = 0.0
        self._look_again: asyncio.TimerHandle | None = None

    # From outside -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the worker until its socket closes or `close` is called."""
        self._crew.start(self._read())
        self._crew.start(self._market())
        self._crew.start(self._wait_for_end())
        try:
            failure = await self._crew.failure()
        finally:
            if self._look_again is not None:
                self._look_again.cancel()
            await self._crew.dismiss()
        if not isinstance(failure, _EndedError | WriterClosedError):
            self._log.error("session failed", exc_info=failure)
            self._close_code = CLOSE_FAULT
            self._close_reason = "fault in the server, see its log"
        await self._hang_up()

    def close(self, code: int, reason: str) -> None:
        """End the session; the socket closes with `code` and `reason` (at most 123 bytes)."""
        self._close_code = code
        self._close_reason = reason
        self._end.set()

    def wake(self, *kinds: JobKind) -> None:
        """There may be jobs of these kinds (any, when none is given) that the worker waits for."""
        self._due.update(kinds or KINDS)
        self._wake.set()

    async def drain(self, reason: str) -> None:
        """Tell the worker that the server stops; it gets no more jobs."""
        self._draining = True
        await self._try_send(Draining(reason=reason))

    async def abort(self, assignment: int, reason: str) -> None:
        """Tell the worker to stop a job, once."""
        if assignment not in self._aborts_sent:
            self._aborts_sent.add(assignment)
            await self._try_send(AbortJob(assignment=assignment, reason=reason))

    @property
    def busy(self) -> bool:
        """Whether the worker holds jobs of this session."""
        return bool(self._owned)

    @property
    def silence(self) -> float:
        """Seconds since the last frame; 0 while the reader itself is what waits."""
        return 0.0 if self._bytes.stopped else time.monotonic() - self._last_frame

    # Frames -------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                event = await self._socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                raise _EndedError from None
            if event["type"] == "websocket.disconnect":
                raise _EndedError
            self._last_frame = time.monotonic()
            text: str | None = event.get("text")
            frame: str | bytes = event["bytes"] if text is None else text
            try:
                message = _decode(frame)
            except ProtocolError as error:
                await self._send(Error(message=error.message, field=error.field))
                continue
            if isinstance(message, Ping):
                self.metrics = _metrics(message)
                await self._send(Pong(number=message.number))
                continue
            size = len(frame)
            await self._bytes.acquire(size)
            self._last_frame = time.monotonic()
            await self._dispatch(message, size)

    async def _dispatch(self, message: WorkerMessage | LogFrame, size: int) -> None:
        """Put a frame into its lane."""
        match message:
            case Report(event=EvalResult()):
                self._add(message.assignment, partial(self._batch, message, size), 0)
            case Report():
                self._add(message.assignment, partial(self._report, message), size)
            case LogFrame():
                self._add(message.assignment, partial(self._log_frame, message), size)
            case QueryKnownDerivations():
                self._add(QUERY_LANE, partial(self._known_derivations, message), size)
            case AssignJobResponse():
                self._add(SESSION_LANE, partial(self._response, message), size)
            case JobScores():
                self._add(SESSION_LANE, partial(self._scores, message), size)
            case RunningJobs():
                self._add(SESSION_LANE, partial(self._resume, message), size)
            case WorkerCapabilities():
                self._add(SESSION_LANE, partial(self._capabilities, message), size)
            case Draining():
                self._add(SESSION_LANE, partial(self._worker_drains, message), size)
            case RequestJob():
                self._add(SESSION_LANE, partial(self._request, message), size)
            case RequestJobList():
                self._add(SESSION_LANE, self._all_offers, size)
            case InitConnection():
                self._bytes.release(size)
                await self._send(Error(message="This connection has greeted already."))
            case Ping():
                raise AssertionError("the reader answers heartbeats")
            case _:
                assert_never(message)

    def _add(self, lane: str | int, work: Callable[[], Awaitable[None]], size: int) -> None:
        async def accounted() -> None:
            try:
                await work()
            finally:
                self._bytes.release(size)

        self._lanes.add(lane, accounted)

    async def _send(self, message: ServerMessage) -> None:
        try:
            await self._socket.send_text(encode(message))
        except (WebSocketDisconnect, RuntimeError):
            raise _EndedError from None

    async def _try_send(self, message: ServerMessage) -> None:
        """Send from outside of the session's own tasks, where its end is no error."""
        try:
            await self._send(message)
        except _EndedError:
            self._end.set()

    async def _wait_for_end(self) -> None:
        await self._end.wait()
        raise _EndedError

    async def _hang_up(self) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            try:
                await self._socket.close(self._close_code, self._close_reason)
            except (WebSocketDisconnect, RuntimeError):
                return

    # The session's own affairs ------------------------------------------------------------------

    async def _capabilities(self, message: WorkerCapabilities) -> None:
        values = {field: getattr(message, field) for field in WorkerCapabilities.__struct_fields__}
        await self._answered(
            self._rules.patient_value(
                "scheduler.worker_capabilities", self.worker, self.connection, document(values)
            )
        )
        self.wake()

    async def _resume(self, message: RunningJobs) -> None:
        if self._resumed:
            await self._send(Error(message="running_jobs was sent before; it is sent once."))
            return
        running = {job.assignment: _owned_job(job.job) for job in message.jobs}
        answer = await self._reconcile([each for each in running if each <= LARGEST_ID])
        keep = [assignment for assignment in answer["keep"] if running.get(assignment)]
        for assignment in keep:
            owned = running[assignment]
            assert owned is not None
            self._owned[assignment] = owned
        stop = [assignment for assignment in running if assignment not in keep]
        await self._send(ResumeAck(keep=keep, stop=stop))
        self._resumed = True
        self.wake()

    async def _reconcile(self, running: list[int]) -> dict[str, Any]:
        """Return the assignments that the worker does not run; which of the others are open."""
        try:
            answer: dict[str, Any] = await self._through_writer(
                "scheduler.resume", self.worker, self.connection, running
            )
        except StaleAssignmentError as error:
            self.close(CLOSE_REPLACED, "this connection was replaced")
            raise _EndedError from error
        return answer

    async def _worker_drains(self, message: Draining) -> None:
        self._draining = True
        self._requests.clear()
        self._log.info("worker drains", reason=message.reason)
        await self._answered(
            self._rules.patient_value("scheduler.worker_draining", self.worker, self.connection)
        )

    async def _known_derivations(self, message: QueryKnownDerivations) -> None:
        owned = self._owned.get(message.assignment)
        if owned is None or owned.evaluation is None:
            await self._stale(message.assignment)
            return
        known = await self._answered(
            self._rules.patient_values("graph.known_derivations", owned.evaluation, message.drvs)
        )
        await self._send(KnownDerivations(query=message.query, known=known or []))

    async def _answered(self, calling: Awaitable[Any]) -> Any:
        """The answer of a call; what the rules refuse is told to the worker, None returned."""
        try:
            return await calling
        except (GradientError, psycopg.Error) as error:
            self._log.warning("frame refused", error=str(error))
            await self._send(Error(message=str(error)))
            return None

    async def _through_writer(self, function: str, *arguments: Any) -> Any:
        """A graph message of the session; over budget it is sent again, as it must be done."""
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                return await self._writer.message(function, *arguments)
            except GraphTimeoutError as error:
                self._log.warning("sending again", function=function, error=str(error))
            except psycopg.Error as error:
                if not is_passing(error):
                    raise
                self._log.warning("sending again", function=function, error=str(error))
            await asyncio.sleep(backoff * random.uniform(0.7, 1.3))
            backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)

    # Offers and assignments ---------------------------------------------------------------------

    async def _all_offers(self) -> None:
        self._wants_offers = True
        self._visible.clear()
        self._next_offers = 0.0
        self._wake.set()

    async def _scores(self, message: JobScores) -> None:
        await self._answered(
            self._rules.patient_value(
                "scheduler.offer_scores", self.worker, document(message.scores)
            )
        )

    async def _request(self, message: RequestJob) -> None:
        self._requests[message.kind] = min(message.slots, MOST_SLOTS)
        self.wake(message.kind)

    async def _response(self, message: AssignJobResponse) -> None:
        if message.accepted:
            return
        self._owned.pop(message.assignment, None)
        reason = message.reason or "no reason given"
        self._log.info("worker refused a job", assignment=message.assignment, reason=reason)
        try:
            await self._through_writer("scheduler.reject", message.assignment, self.worker, reason)
        except StaleAssignmentError as error:
            await self._stale(message.assignment, str(error))
        except (GradientError, psycopg.Error) as error:
            await self._send(Error(message=str(error)))

    async def _market(self) -> None:
        """Serve the standing requests and keep the offers up to date, whenever woken."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._resumed or self._draining or not self._parts.may_assign():
                continue
            due, self._due = self._due, set()
            for kind in KINDS:
                if kind in due and self._requests.get(kind):
                    await self._assign(kind)
            if self._wants_offers:
                await self._offer()

    async def _assign(self, kind: JobKind) -> None:
        slots = self._requests[kind]
        try:
            rows = await self._rules.values(
                "scheduler.assign", self.worker, self.connection, kind, slots
            )
        except (GradientError, psycopg.Error, PoolTimeout) as error:
            if isinstance(error, GradientError) or not is_passing(error):
                self._log.error("nothing assigned", kind=kind, error=str(error))
                return
            # Whether jobs were assigned before the answer was lost is not known: what is open
            # and not owned goes back, then the next wake asks anew.
            self._log.warning("assignment interrupted", kind=kind, error=str(error))
            await self._reconcile(list(self._owned))
            self.wake(kind)
            return
        for row in rows:
            await self._hand_out(row)
        # A request that came meanwhile replaced the one that was served.
        self._requests[kind] = max(0, self._requests[kind] - len(rows))

    async def _hand_out(self, row: Any) -> None:
        try:
            job = msgspec.convert(row, AssignJob)
        except msgspec.ValidationError as error:
            self._log.exception("assignment cannot be sent", row=row)
            await self._through_writer(
                "scheduler.reject", row["assignment"], self.worker, f"not sent: {error}"
            )
            return
        self._owned[job.assignment] = (
            _Owned("evaluation", job.spec.evaluation)
            if isinstance(job.spec, FlakeJob)
            else _Owned("build")
        )
        self._log.info("assigned", job=job.job, assignment=job.assignment)
        await self._send(job)

    async def _offer(self) -> None:
        """Send what became visible since the last look, and remember exactly what is visible."""
        now = time.monotonic()
        if now < self._next_offers:
            if self._look_again is None:
                self._look_again = asyncio.get_running_loop().call_later(
                    self._next_offers - now, self._look
                )
            return
        rows = await self._rules.patient_rows("scheduler.offers", self.worker)
        took = time.monotonic() - now
        self._next_offers = now + max(self._parts.timing.pause, OFFERS_REST * took)
        fresh = [
            msgspec.convert(row["candidate"], JobCandidate)
            for row in rows
            if self._visible.get(row["job"]) != row["generation"]
        ]
        self._visible = {row["job"]: row["generation"] for row in rows}
        for start in range(0, len(fresh), OFFER_CHUNK):
            await self._send(JobOffer(candidates=fresh[start : start + OFFER_CHUNK]))

    def _look(self) -> None:
        self._look_again = None
        self._wake.set()

    # Reports ------------------------------------------------------------------------------------

    async def _batch(self, report: Report, size: int) -> None:
        """Hand a batch to the graph writer; its acknowledgement follows the commit."""
        assert isinstance(report.event, EvalResult)
        owned = self._owned.get(report.assignment)
        if owned is None or owned.evaluation is None:
            self._bytes.release(size)
            await self._stale(report.assignment)
            return
        try:
            recorded = await self._writer.submit_record(
                RecordBatch(
                    evaluation=owned.evaluation,
                    assignment=report.assignment,
                    derivations=report.event.derivations,
                    entry_points=report.event.entry_points,
                    messages=report.event.messages,
                )
            )
        except BaseException:
            self._bytes.release(size)
            raise
        owned.last_batch = self._crew.start(
            self._recorded(report, size, owned, recorded, owned.last_batch)
        )

    async def _recorded(
        self,
        report: Report,
        size: int,
        owned: _Owned,
        recorded: asyncio.Future[Any],
        previous: asyncio.Task[None] | None,
    ) -> None:
        try:
            await recorded
        except StaleAssignmentError as error:
            await self._stale(report.assignment, str(error))
            return
        except (GradientError, psycopg.Error, GraphTimeoutError) as error:
            # The writer has failed the evaluation with this text.
            owned.refused = str(error)
            await self.abort(report.assignment, owned.refused)
            return
        finally:
            self._bytes.release(size)
            if previous is not None:
                await previous
        await self._send(ReportAck(assignment=report.assignment, number=report.number))

    async def _report(self, report: Report) -> None:
        """Send a report to its graph message; acknowledged once that has committed."""
        owned = self._owned.get(report.assignment)
        if owned is not None and owned.last_batch is not None:
            await owned.last_batch
            owned = self._owned.get(report.assignment)
        if owned is None:
            await self._stale(report.assignment)
            return
        if owned.refused is not None and not isinstance(report.event, JobFailed):
            await self._refuse(report, owned, owned.refused)
            return
        message = graph_message(owned.kind, report.event)
        try:
            if message is None:
                text = f"A job of kind {owned.kind} reports no {type(report.event).__name__}."
                await self._refuse(report, owned, text)
                return
            answer = await self._through_writer(
                message.function,
                report.assignment,
                self.worker,
                *message.arguments(report.event),
            )
        except StaleAssignmentError as error:
            await self._stale(report.assignment, str(error))
        except (GradientError, psycopg.Error) as error:
            await self._refuse(report, owned, str(error))
        else:
            if message.ends:
                self._forget(report.assignment)
            await self._send(ReportAck(assignment=report.assignment, number=report.number))
            if isinstance(answer, dict) and answer.get("aborted"):
                await self.abort(report.assignment, "the build was aborted")

    async def _refuse(self, report: Report, owned: _Owned, reason: str) -> None:
        """A report that the rules do not take: the worker is at fault, and its job ends so."""
        self._log.warning("report refused", assignment=report.assignment, reason=reason)
        await self._send(Error(message=reason, field="event"))
        failure = JobFailed(outcome_class="worker_fault", error=f"Report refused: {reason}")
        message = graph_message(owned.kind, failure)
        assert message is not None
        try:
            await self._through_writer(
                message.function, report.assignment, self.worker, *message.arguments(failure)
            )
        except StaleAssignmentError:
            pass
        except (GradientError, psycopg.Error) as error:
            self._log.exception("refused job not failed", assignment=report.assignment)
            await self._send(Error(message=str(error)))
        await self._stale(report.assignment, reason)

    async def _stale(self, assignment: int, reason: str | None = None) -> None:
        self._forget(assignment)
        text = reason or f"Assignment {assignment} is not one of this worker's open jobs (GR003)."
        await self._send(StaleAssignment(assignment=assignment, reason=text))

    def _forget(self, assignment: int) -> None:
        self._owned.pop(assignment, None)
        self._aborts_sent.discard(assignment)

    # Logs ---------------------------------------------------------------------------------------

    async def _log_frame(self, frame: LogFrame) -> None:
        """Store a piece of log and acknowledge it. A lost piece is a warning, never a failure."""
        if frame.assignment not in self._owned:
            await self._stale(frame.assignment)
            return
        stored = zstd.compress(frame.data)
        try:
            chunk = await self._rules.patient_value(
                "graph.append_log",
                frame.assignment,
                self.worker,
                frame.offset,
                len(frame.data),
                frame.data.count(b"\n"),
                len(stored),
            )
        except StaleAssignmentError as error:
            await self._stale(frame.assignment, str(error))
            return
        except (GradientError, psycopg.Error) as error:
            await self._send(Error(message=str(error)))
        else:
            if not chunk.get("log_limit_reached"):
                await self._store_log(chunk["attempt"], chunk["chunk_index"], stored)
        offset = frame.offset + len(frame.data)
        await self._send(LogAck(assignment=frame.assignment, offset=offset))

    async def _store_log(self, attempt: int, chunk_index: int, stored: bytes) -> None:
        backoff = _FIRST_BACKOFF_SECONDS
        for _ in range(_LOG_STORE_ATTEMPTS):
            try:
                await put_log(self._parts.store, attempt, chunk_index, stored)
            except StoreUnavailableError as error:
                self._log.warning("log not stored yet", attempt=attempt, error=str(error))
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            else:
                return
        self._log.warning("log lost", attempt=attempt, chunk=chunk_index, bytes=len(stored))


def _decode(frame: str | bytes) -> WorkerMessage | LogFrame:
    return decode_log(frame) if isinstance(frame, bytes) else decode_worker_message(frame)


def _metrics(ping: Ping) -> dict[str, Any]:
    values = {
        "cpu_usage_pct": ping.cpu_usage_pct,
        "ram_free_mb": ping.ram_free_mb,
        "disk_free_mb": ping.disk_free_mb,
    }
    return {name: value for name, value in values.items() if value is not None}


def _owned_job(name: str) -> _Owned | None:
    """What a job name stands for: `eval:<evaluation>` or `build:<build>`; None for others."""
    kind, _, number = name.partition(":")
    if not number.isascii() or not number.isdigit():
        return None
    if kind == "eval":
        return _Owned("evaluation", int(number))
    return _Owned("build") if kind == "build" else None
