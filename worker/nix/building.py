"""A build slot: builds one derivation at a time, within limits, and can be stopped.

    slot = BuildSlot(settings)
    report = await slot.build(request, limits, on_log)   # never raises for how a build ends
    await slot.stop(Stop.ABORTED)                        # from another task
    await slot.close()

The worker's own clocks are the real ones: through a daemon Nix ignores the limits of every build
but the first. The clock of the total limit starts when the builder starts. A stop ends the store
process with SIGTERM, which stops the builder within milliseconds; whatever is alive five seconds
later is killed; the next build starts a new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from worker.nix.classify import Outcome, Stop, Verdict, classify, stopped
from worker.nix.errors import StoreFaultError
from worker.nix.serve import BuildRequest, BuildResult, LogSink, ServeProcess
from worker.nix.settings import NixSettings

LOG_TAIL_BYTES: Final = 8 << 10
_START_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Time limits of one build in seconds; None or 0 for none."""

    total: float | None = None
    silent: float | None = None


@dataclass(frozen=True, slots=True)
class BuildReport:
    """How a build ended.

    Attributes:
        outcome, reason, missing_paths: see `worker.nix.classify`.
        result: Nix's own answer; None where it gave none (stopped, or a store fault).
        started, stopped: seconds since the epoch by the worker's clock; `started` is None when no
            builder was seen.
        outputs: output name to path, on success.
    """

    outcome: Outcome
    reason: str
    missing_paths: frozenset[str]
    result: BuildResult | None
    started: float | None
    stopped: float
    outputs: dict[str, str]

    @property
    def success(self) -> bool:
        """Whether the outputs are in the store."""
        return self.outcome.success


class BuildSlot:
    """One long-lived store process and the build that runs in it."""

    def __init__(self, settings: NixSettings) -> None:
        self._settings = settings
        self._serve: ServeProcess | None = None
        self._starting = asyncio.Lock()
        self._stop_asked: asyncio.Future[Stop] | None = None
        self._closed = False

    @property
    def building(self) -> bool:
        """Whether a build runs now."""
        return self._stop_asked is not None

    @property
    def supervisor_pid(self) -> int | None:
        """The root of everything that runs for this slot, for measuring; None between processes."""
        return self._serve.supervisor_pid if self._serve and self._serve.alive else None

    async def serve(self) -> ServeProcess:
        """The slot's store process, a new one when the last has ended.

        For queries and imports while no build runs.

        Raises:
            StoreFaultError: no process can be started.
        """
        async with self._starting:
            if self._closed:
                raise StoreFaultError("this build slot is closed")
            if self._serve is None or not self._serve.alive:
                await self._drop()
                self._serve = await ServeProcess.start(self._settings)
            return self._serve

    async def build(
        self,
        request: BuildRequest,
        limits: BuildLimits,
        on_log: LogSink,
        on_started: Callable[[], None] = lambda: None,
    ) -> BuildReport:
        """Build a derivation whose inputs are in the store, and report how that ended.

        A store fault is reported as `worker_fault`, never raised. A cancelled caller stops the
        build; nothing of it is left when the cancellation goes on.

        Parameters:
            on_log: gets every byte of the builder's output, raw, before this returns.
            on_started: called once, when the builder has started and the clocks run; not called
                when no builder ran.
        """
        if self._stop_asked is not None:
            raise RuntimeError("this slot is building already")
        self._stop_asked = stop_asked = asyncio.get_running_loop().create_future()
        clock = _Clock(limits, on_started)
        tail = bytearray()

        def on_bytes(piece: bytes) -> None:
            clock.heard()
            tail.extend(piece)
            del tail[:-LOG_TAIL_BYTES]
            on_log(piece)

        answer: BuildResult | Stop
        try:
            serve_before = self._serve
            try:
                answer = await self._run(request, clock, on_bytes, stop_asked)
            except StoreFaultError:
                # A process that died while it was idle is found dead only when it is used.
                if clock.started or self._serve is not serve_before or stop_asked.done():
                    raise
                answer = await self._run(request, clock, on_bytes, stop_asked)
        except StoreFaultError as fault:
            # What ends the process while a stop is under way is that stop.
            reason = stop_asked.result() if stop_asked.done() else None
            verdict = stopped(reason) if reason else Verdict(Outcome.WORKER_FAULT, str(fault))
            return _report(verdict, None, clock, request)
        finally:
            self._stop_asked = None
        if isinstance(answer, Stop):
            return _report(stopped(answer, clock.limit_of(answer)), None, clock, request)
        if answer.times_built:
            clock.start(answer.started)
        is_fixed_output = any(output.hash for output in request.outputs.values())
        verdict = classify(answer, log_tail=bytes(tail), is_fixed_output=is_fixed_output)
        return _report(verdict, answer, clock, request)

    async def _run(
        self,
        request: BuildRequest,
        clock: _Clock,
        on_log: LogSink,
        stop_asked: asyncio.Future[Stop],
    ) -> BuildResult | Stop:
        serve = await self.serve()
        if stop_asked.done():
            return stop_asked.result()
        work = asyncio.create_task(serve.build(request, on_log))
        watch = asyncio.create_task(self._watch(serve, clock, stop_asked))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                reason = watch.result()
                # Cancelling a build stops its store process and everything below it.
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError, StoreFaultError):
                    await work
                return reason
            result = work.result()
            serve.kill_leftovers()
            return result
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _watch(
        self, serve: ServeProcess, clock: _Clock, stop_asked: asyncio.Future[Stop]
    ) -> Stop:
        """Return when the build must be stopped, with the reason."""
        if self._settings.uses_daemon:
            # The builder is the daemon's child and cannot be seen.
            clock.start()
        while True:
            if not clock.started:
                seconds: float | None = _START_POLL_SECONDS
            else:
                seconds = clock.seconds_left()
            done, _ = await asyncio.wait((stop_asked,), timeout=seconds)
            if done:
                return stop_asked.result()
            if not clock.started:
                if serve.has_builder():
                    clock.start()
            elif expired := clock.expired():
                return expired

    async def stop(self, reason: Stop) -> None:
        """Stop the running build; `build` then reports the reason. Does nothing without a build."""
        if self._stop_asked is not None and not self._stop_asked.done():
            self._stop_asked.set_result(reason)

    async def close(self) -> None:
        """End the slot's process, and with it a running build."""
        self._closed = True
        await self.stop(Stop.WORKER_STOPPING)
        async with self._starting:
            await self._drop()

    async def _drop(self) -> None:
        serve, self._serve = self._serve, None
        if serve is not None:
            await serve.close()


class _Clock:
    """The two limits of one build. Both run from the moment the builder starts."""

    def __init__(self, limits: BuildLimits, on_started: Callable[[], None]) -> None:
        self._limits = limits
        self._on_started = on_started
        self._began = 0.0
        self._last_heard = 0.0
        self.started_at: float | None = None

    @property
    def started(self) -> bool:
        return self.started_at is not None

    def start(self, at: float | None = None) -> None:
        """The builder runs, since now or since a time in seconds since the epoch."""
        if self.started_at is None:
            self._began = self._last_heard = time.monotonic()
            self.started_at = time.time() if at is None else float(at)
            self._on_started()

    def heard(self) -> None:
        self.start()
        self._last_heard = time.monotonic()

    def limit_of(self, reason: Stop) -> float | None:
        return {Stop.TOTAL: self._limits.total, Stop.SILENT: self._limits.silent}.get(reason)

    def _deadlines(self) -> list[tuple[float, Stop]]:
        deadlines: list[tuple[float, Stop]] = []
        if self._limits.total:
            deadlines.append((self._began + self._limits.total, Stop.TOTAL))
        if self._limits.silent:
            deadlines.append((self._last_heard + self._limits.silent, Stop.SILENT))
        return deadlines

    def seconds_left(self) -> float | None:
        deadlines = self._deadlines()
        return max(0.0, min(deadlines)[0] - time.monotonic()) if deadlines else None

    def expired(self) -> Stop | None:
        now = time.monotonic()
        passed = [deadline for deadline in self._deadlines() if deadline[0] <= now]
        return min(passed)[1] if passed else None


def _report(
    verdict: Verdict, result: BuildResult | None, clock: _Clock, request: BuildRequest
) -> BuildReport:
    outputs: dict[str, str] = {}
    if verdict.outcome.success:
        outputs = {name: output.path for name, output in request.outputs.items()}
    return BuildReport(
        outcome=verdict.outcome,
        reason=verdict.reason,
        missing_paths=verdict.missing_paths,
        result=result,
        started=clock.started_at,
        stopped=time.time(),
        outputs=outputs,
    )
