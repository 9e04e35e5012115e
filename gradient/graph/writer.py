"""The graph writer: one task with one connection, through which every graph message goes.

Queued batches and NAR commits share a transaction; every other message is a transaction of
its own, after the flush of what was queued before it. Callers wait for their reply without a
deadline; a queue that is full makes them wait before they are queued (backpressure).

Three kinds of failure (customer: shared builds; design, section 5):

- *content* fails its caller only: a batch fails its evaluation, a NAR its upload;
- *conflict* retries the whole transaction, three attempts;
- *outage* fails nobody: the queue is kept, the writer reconnects and sends the work again,
  also when COMMIT was sent and its answer lost, since every message is idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
import psycopg
import structlog
from psycopg import errors

from gradient.db.call import call
from gradient.db.connect import Connection, connect
from gradient.db.transaction import ATTEMPTS, BUDGET_SECONDS, Failure, classify
from gradient.errors import (
    EvaluationClosedError,
    NotFoundError,
    StaleAssignmentError,
    from_database,
)
from gradient.protocol import DiscoveredDerivation, EntryPoint, EvaluationMessage

RECORD_ROW_BUDGET = 5000
NAR_COMMIT_BUDGET = 128
NAR_FLUSH_SECONDS = 0.1
SAVEPOINTS = 60
# What the source of the message says that a failed batch leaves at its evaluation.
FAILED_BATCH_SOURCE = "db-insert"

QUEUED_DERIVATIONS = 4 * RECORD_ROW_BUDGET
QUEUED_BYTES = 32 * 1024 * 1024
QUEUED_MESSAGES = 4096
FLUSH_BYTES = 16 * 1024 * 1024

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 5.0
# The server ends a statement at the budget; the client's own clock is the net below it.
CLIENT_MARGIN_SECONDS = 5.0

_TOO_LATE = (StaleAssignmentError, NotFoundError, EvaluationClosedError)

log = structlog.get_logger(__name__)


class RecordBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of an evaluation's walk, as `graph.record` takes it."""

    evaluation: int
    assignment: int | None = None
    derivations: list[DiscoveredDerivation] = []
    entry_points: list[EntryPoint] = []
    messages: list[EvaluationMessage] = []


class GraphTimeoutError(Exception):
    """A graph transaction ran over its budget and was rolled back."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"graph transaction exceeded {seconds:g}s")


class WriterClosedError(Exception):
    """The server stops: the message was not written."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; the message was not written, send it again")


@dataclass(frozen=True)
class WriterHealth:
    """How the writer is: `reason` says why it is not well and is None when it is.

    `last_success` is the Unix time of the last committed transaction, None before the first;
    `failures` counts by kind (content, conflict, outage, budget).
    """

    reason: str | None
    last_success: float | None
    failures: dict[str, int]
    queued: int


class _OutageError(Exception):
    """The database is away: nobody fails, the work is kept."""


class _Kind(StrEnum):
    BATCH = "batch"
    NAR = "nar"
    MESSAGE = "message"


@dataclass(eq=False)
class _Entry:
    kind: _Kind
    size: int
    done: asyncio.Future[Any]
    document: str = ""
    derivations: int = 0
    evaluation: int = 0
    function: str = ""
    arguments: Sequence[Any] = ()
    # Written however long it takes: without it an incomplete graph would look complete.
    must: bool = False

    def succeed(self, report: Any) -> None:
        if not self.done.done():
            self.done.set_result(report)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # A caller that went away must not make the loop complain of an unread error.
            self.done.exception()


@dataclass
class _Outcome:
    """What one transaction did: replies to give after COMMIT, and work that it left over."""

    reports: list[tuple[_Entry, Any]] = field(default_factory=list)
    failures: list[tuple[_Entry, Exception]] = field(default_factory=list)
    left: list[_Entry] = field(default_factory=list)


class GraphWriter:
    """The one writer of a server; `start` before use, `close` flushes the queue.

    `budget` in seconds limits each transaction (GRAPH_TX_BUDGET).
    """

    def __init__(self, dsn: str, *, budget: float = BUDGET_SECONDS) -> None:
        self._dsn = dsn
        self._budget = budget
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0
        self._queued_derivations = 0
        self._room = asyncio.Condition()
        self._work = asyncio.Event()
        self._closing = False
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._outage: str | None = "the graph writer has not connected yet"
        self._last_success: float | None = None
        self._failures: Counter[str] = Counter()

    # What callers use ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to serve the queue."""
        self._task = asyncio.create_task(self._run(), name="graph writer")

    async def close(self, patience: float = 30.0) -> None:
        """Take nothing more, write what is queued, and stop.

        After `patience` seconds (a database that is away) the callers of what is left get
        WriterClosedError.
        """
        async with self._room:
            self._closing = True
            self._room.notify_all()
        self._work.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await asyncio.shield(self._task)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._queue:
            self._queue.popleft().fail(WriterClosedError())
        await self._disconnect()

    async def submit_record(self, batch: RecordBatch) -> asyncio.Future[Any]:
        """Queue a batch and return its reply to come, `graph.record`'s report of it.

        Waits only for room in the queue. The reply raises GradientError, psycopg.Error or
        GraphTimeoutError after the evaluation was failed with that text; it is not failed where
        the batch only came too late (GR002, GR003, GR004).
        """
        document = msgspec.json.encode(batch).decode()
        return await self._enqueue(
            _Entry(
                kind=_Kind.BATCH,
                size=len(document),
                done=asyncio.get_running_loop().create_future(),
                document=document,
                derivations=len(batch.derivations),
                evaluation=batch.evaluation,
            )
        )

    async def record(self, batch: RecordBatch) -> Any:
        """`submit_record`, waiting for the reply."""
        return await (await self.submit_record(batch))

    async def commit_nar(self, nar: Any) -> Any:
        """Commit one NAR (an object as `graph.commit_nars` lists them); returns its report.

        Raises GradientError (GR003, GR005, GR006, GR007), psycopg.Error, GraphTimeoutError.
        """
        document = msgspec.json.encode(nar).decode()
        done = await self._enqueue(
            _Entry(
                kind=_Kind.NAR,
                size=len(document),
                done=asyncio.get_running_loop().create_future(),
                document=document,
            )
        )
        return await done

    async def message(self, function: str, *arguments: Any) -> Any:
        """Send any other message: call `function`, after everything queued before it.

        Returns its value. Raises GradientError, psycopg.Error or GraphTimeoutError.
        """
        done = await self._enqueue(
            _Entry(
                kind=_Kind.MESSAGE,
                size=0,
                done=asyncio.get_running_loop().create_future(),
                function=function,
                arguments=arguments,
            )
        )
        return await done

    @property
    def health(self) -> WriterHealth:
        """How the writer is right now."""
        return WriterHealth(
            reason=self._outage,
            last_success=self._last_success,
            failures=dict(self._failures),
            queued=len(self._queue),
        )

    # The queue ----------------------------------------------------------------------------------

    async def _enqueue(self, entry: _Entry) -> asyncio.Future[Any]:
        async with self._room:
            await self._room.wait_for(lambda: self._closing or self._has_room(entry))
            if self._closing:
                raise WriterClosedError
            self._queue.append(entry)
            self._queued_bytes += entry.size
            self._queued_derivations += entry.derivations
        self._work.set()
        return entry.done

    def _has_room(self, entry: _Entry) -> bool:
        return not self._queue or (
            self._queued_bytes + entry.size <= QUEUED_BYTES
            and self._queued_derivations + entry.derivations <= QUEUED_DERIVATIONS
            and len(self._queue) < QUEUED_MESSAGES
        )

    def _take(self) -> list[_Entry]:
        """The work of the next transaction: one message, or what shares a flush."""
        taken = [self._pop()]
        if taken[0].kind is _Kind.MESSAGE:
            return taken
        size, derivations = taken[0].size, taken[0].derivations
        nars = int(taken[0].kind is _Kind.NAR)
        while self._queue and self._queue[0].kind is not _Kind.MESSAGE:
            entry = self._queue[0]
            size += entry.size
            derivations += entry.derivations
            nars += entry.kind is _Kind.NAR
            if size > FLUSH_BYTES or derivations > RECORD_ROW_BUDGET or nars > NAR_COMMIT_BUDGET:
                break
            taken.append(self._pop())
        return taken

    def _pop(self) -> _Entry:
        entry = self._queue.popleft()
        self._queued_bytes -= entry.size
        self._queued_derivations -= entry.derivations
        return entry

    def _put_back(self, entries: Iterable[_Entry]) -> None:
        for entry in reversed(list(entries)):
            self._queue.appendleft(entry)
            self._queued_bytes += entry.size
            self._queued_derivations += entry.derivations

    # The task -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            try:
                await self._connected()
                while await self._next_work():
                    await self._turn(self._take())
                    backoff = FIRST_BACKOFF_SECONDS
                return
            except _OutageError as error:
                self._failures[Failure.OUTAGE] += 1
                self._outage = f"the graph writer has no database: {error}".strip()
                log.warning(
                    "graph writer lost the database, the queue is kept",
                    error=str(error),
                    queued=len(self._queue),
                    retry_seconds=round(backoff, 1),
                )
                await self._disconnect()
                await asyncio.sleep(backoff * random.uniform(0.7, 1.3))
                backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)

    async def _next_work(self) -> bool:
        """Wait for work; False when there is none left and the writer closes."""
        while not self._queue:
            if self._closing:
                return False
            self._work.clear()
            await self._work.wait()
        # Whoever is ready to queue something now joins this flush instead of the next.
        await asyncio.sleep(0)
        return True

    async def _turn(self, taken: list[_Entry]) -> None:
        """One transaction and its replies. An outage puts the work back and is raised."""
        try:
            outcome = await self._transact(taken)
        except _OutageError:
            self._put_back(taken)
            raise
        except psycopg.Error as error:
            outcome = self._failed(taken, from_database(error) or error)
        except Exception as error:  # ours or a fault of ours: its callers hear of it
            if taken[0].must and isinstance(error, GraphTimeoutError):
                log.warning("graph transaction is tried again", error=str(error))
                self._put_back(taken)
                return
            outcome = self._failed(taken, error)
        except BaseException:
            self._put_back(taken)
            raise
        self._put_back(outcome.left)
        for entry, report in outcome.reports:
            entry.succeed(report)
        for entry, failure in outcome.failures:
            entry.fail(failure)
        async with self._room:
            self._room.notify_all()

    def _failed(self, taken: list[_Entry], error: Exception) -> _Outcome:
        """A whole transaction failed: its callers get the error, its batches their evaluations."""
        log.error("graph transaction failed", entries=len(taken), error=str(error))
        outcome = _Outcome()
        for entry in taken:
            if entry.kind is _Kind.BATCH:
                outcome.left.append(self._evaluation_failure(entry, error))
            else:
                outcome.failures.append((entry, error))
        return outcome

    def _evaluation_failure(self, batch: _Entry, error: Exception) -> _Entry:
        """The message that fails the evaluation of a batch, before the batch's caller hears."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def told(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and (failure := future.exception()) is not None:
                log.error("evaluation not failed", evaluation=batch.evaluation, error=str(failure))
            batch.fail(error)

        done.add_done_callback(told)
        return _Entry(
            kind=_Kind.MESSAGE,
            size=0,
            done=done,
            function="graph.fail_evaluation",
            arguments=(batch.evaluation, str(error), FAILED_BATCH_SOURCE),
            must=True,
        )

    # Transactions -------------------------------------------------------------------------------

    async def _transact(self, taken: list[_Entry]) -> _Outcome:
        """The work in one transaction, tried again after a conflict."""
        work = self._message if taken[0].kind is _Kind.MESSAGE else self._flush
        for attempt in range(1, ATTEMPTS + 1):
            conn = await self._connected()
            started = time.monotonic()
            try:
                async with asyncio.timeout(self._budget + CLIENT_MARGIN_SECONDS):
                    await conn.execute(
                        f"begin; set local statement_timeout = {self._milliseconds(started)}"
                    )
                    outcome = await work(conn, taken, started)
                    # An error that was only logged leaves the transaction aborted, and a bare
                    # COMMIT would answer with a silent rollback.
                    await conn.execute("select 1; commit")
            except TimeoutError:
                await self._roll_back(conn)
                self._failures["budget"] += 1
                raise GraphTimeoutError(self._budget) from None
            except psycopg.Error as error:
                await self._roll_back(conn)
                if self._ran_out(error, started):
                    self._failures["budget"] += 1
                    raise GraphTimeoutError(self._budget) from error
                kind = _kind(error)
                if kind is Failure.OUTAGE:
                    raise _OutageError(str(error)) from error
                self._failures[kind] += 1
                if kind is not Failure.CONFLICT or attempt == ATTEMPTS:
                    raise
                log.info("graph transaction is tried again", error=str(error), attempt=attempt)
                await asyncio.sleep(random.uniform(0.01, 0.1) * attempt)
            except BaseException:
                await self._roll_back(conn)
                raise
            else:
                self._last_success = time.time()
                return outcome
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _message(self, conn: Connection, taken: list[_Entry], _: float) -> _Outcome:
        (entry,) = taken
        return _Outcome(reports=[(entry, await call(conn, entry.function, *entry.arguments))])

    async def _flush(self, conn: Connection, taken: list[_Entry], started: float) -> _Outcome:
        """The batches first, then the NARs, each kind set-based in one call."""
        outcome = _Outcome()
        flush = _Flush(conn, started, self._milliseconds, self._count)
        batches = [entry for entry in taken if entry.kind is _Kind.BATCH]
        nars = [entry for entry in taken if entry.kind is _Kind.NAR]
        await flush.together("graph.record", batches, outcome)
        if outcome.left:
            # What is left of the batches goes first in the next transaction.
            outcome.left += nars
        else:
            await flush.together("graph.commit_nars", nars, outcome)
        return outcome

    def _count(self, kind: Failure) -> None:
        self._failures[kind] += 1

    def _milliseconds(self, started: float) -> int:
        """What is left of the budget."""
        return max(1, round((self._budget - (time.monotonic() - started)) * 1000))

    def _ran_out(self, error: psycopg.Error, started: float) -> bool:
        late = time.monotonic() - started >= self._budget * 0.95
        return late and isinstance(error, errors.QueryCanceled)

    # The connection -----------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            # Whatever keeps the writer from connecting is nobody's content.
            try:
                self._connection = await connect(self._dsn, name="gradient writer")
                # The turn may be held for long; the transaction's budget is the only limit.
                await self._connection.execute("set lock_timeout = 0")
            except psycopg.Error as error:
                raise _OutageError(str(error)) from error
            self._outage = None
        return self._connection

    async def _roll_back(self, conn: Connection) -> None:
        try:
            async with asyncio.timeout(CLIENT_MARGIN_SECONDS):
                await conn.execute("rollback")
        except (psycopg.Error, TimeoutError):
            await self._disconnect()

    async def _disconnect(self) -> None:
        conn, self._connection = self._connection, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                await conn.close()


def _kind(error: psycopg.Error) -> Failure:
    """`classify`, where a cancel that somebody else sent is a conflict: it may succeed again."""
    return Failure.CONFLICT if isinstance(error, errors.QueryCanceled) else classify(error)


@dataclass
class _Flush:
    """The queued entries of one transaction, within its bounds of savepoints and time."""

    conn: Connection
    started: float
    milliseconds: Callable[[float], int]
    count: Callable[[Failure], None]
    savepoints: int = 0

    async def together(self, function: str, entries: list[_Entry], outcome: _Outcome) -> None:
        """All entries in one call under one savepoint; one by one if one of them is bad."""
        if not entries:
            return
        documents = ",".join(entry.document for entry in entries)
        try:
            reports = await self._under_savepoint(
                partial(call, self.conn, function, f"[{documents}]")
            )
        except psycopg.Error as error:
            if _kind(error) is not Failure.CONTENT:
                raise
            if len(entries) == 1:
                await self._refused(entries[0], error, outcome)
            else:
                await self._one_by_one(function, entries, outcome)
            return
        outcome.reports.extend(zip(entries, reports, strict=True))

    async def _one_by_one(self, function: str, entries: list[_Entry], outcome: _Outcome) -> None:
        began = time.monotonic()
        for position, entry in enumerate(entries):
            # A batch that fails takes a second savepoint for its evaluation.
            full = self.savepoints + 2 > SAVEPOINTS
            if position and (full or time.monotonic() - began > NAR_FLUSH_SECONDS):
                outcome.left.extend(entries[position:])
                return
            try:
                (report,) = await self._under_savepoint(
                    partial(call, self.conn, function, f"[{entry.document}]")
                )
            except psycopg.Error as error:
                if _kind(error) is not Failure.CONTENT:
                    raise
                await self._refused(entry, error, outcome)
            else:
                outcome.reports.append((entry, report))

    async def _refused(self, entry: _Entry, error: psycopg.Error, outcome: _Outcome) -> None:
        """Fail the caller for the content of its entry; a batch fails its evaluation."""
        self.count(Failure.CONTENT)
        failure = from_database(error) or error
        log.warning("graph writer refused content", kind=entry.kind, error=str(failure))
        # A batch that comes too late is no fault of the evaluation, which may be another's by now.
        if entry.kind is _Kind.BATCH and not isinstance(failure, _TOO_LATE):
            try:
                await self._under_savepoint(
                    partial(
                        call,
                        self.conn,
                        "graph.fail_evaluation",
                        entry.evaluation,
                        str(failure),
                        FAILED_BATCH_SOURCE,
                    )
                )
            except psycopg.Error as error_of_failing:
                if _kind(error_of_failing) is not Failure.CONTENT:
                    raise
                log.exception("evaluation not failed", evaluation=entry.evaluation)
        outcome.failures.append((entry, failure))

    async def _under_savepoint(self, work: Callable[[], Awaitable[Any]]) -> Any:
        self.savepoints += 1
        remaining = self.milliseconds(self.started)
        await self.conn.execute(f"savepoint entry; set local statement_timeout = {remaining}")
        try:
            result = await work()
        except psycopg.Error as error:
            if _kind(error) is Failure.CONTENT:
                await self.conn.execute("rollback to savepoint entry; release savepoint entry")
            raise
        await self.conn.execute("release savepoint entry")
        return result
