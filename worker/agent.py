"""The worker: takes jobs from the session, runs them in slots, and stops them.

    agent = Agent(settings)
    exit_code = await agent.run()      # until `agent.stop()`, such as by SIGTERM

An assignment lives here from AssignJob until the server has acknowledged its last report. A job
is stopped by cancelling its task; nothing of its processes is left when the task ends. Why it was
stopped decides what is reported: *aborted* or *worker stopping*, or nothing when the assignment is
no longer ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import math
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import httpx2
import structlog

from gradient.protocol import (
    AssignJob,
    BuildJob,
    CachedSource,
    FlakeJob,
    InitAck,
    JobCandidate,
    JobCompleted,
    JobFailed,
    JobKind,
    JobScore,
    WorkerCapabilities,
)
from worker.cache_client import CacheClient, CacheError
from worker.channel import Channel
from worker.config import WorkerConfig
from worker.derivations import Derivations, input_paths
from worker.executor.build import run_build
from worker.executor.evaluate import run_evaluation
from worker.executor.job import JobContext, JobError, Spans
from worker.metrics import ram_total_mb
from worker.nix.building import BuildSlot
from worker.nix.derivation import InvalidDerivationError
from worker.nix.errors import NixError
from worker.nix.settings import NixInstallation, NixSettings
from worker.nix.store_path import STORE_DIR
from worker.session import Session, SessionConfig, http_url
from worker.slots import SlotPool
from worker.transfer import Fetcher

# How long a stopping worker waits for the server to acknowledge its last words.
FAREWELL_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
# Reading derivations for one offer's scores takes at most this long; the rest stays unscored.
SCORING_SECONDS: Final = 1.0
# Builds that are done but for sending their outputs, for each slot.
SENDING_PER_SLOT: Final = 2
HTTP_TIMEOUT_SECONDS: Final = 60.0
HTTP_CONNECTIONS: Final = 64

log = structlog.get_logger("worker")

Ending = Literal["aborted", "worker_stopping", "dropped"]


@dataclass
class _Job:
    """An assignment and what works on it."""

    assign: AssignJob
    kind: JobKind
    channel: Channel
    spans: Spans = field(default_factory=Spans)
    ending: Ending | None = None
    reason: str = ""
    finished: bool = False
    vacated: bool = False
    work: asyncio.Task[None] = field(init=False)
    task: asyncio.Task[None] = field(init=False)


class Agent:
    """One worker process."""

    def __init__(
        self, config: WorkerConfig, settings: NixSettings, installation: NixInstallation
    ) -> None:
        self._config = config
        self._settings = settings
        self._installation = installation
        self._jobs: dict[int, _Job] = {}
        self._pools: dict[JobKind, SlotPool] = {
            "build": SlotPool(settings, config.build_slots),
            "evaluation": SlotPool(settings, config.eval_slots),
        }
        self._look = BuildSlot(settings)
        self._sending = asyncio.Semaphore(max(1, SENDING_PER_SLOT * config.build_slots))
        self._fetcher = Fetcher()
        self._derivations = Derivations()
        self._may: dict[JobKind, bool] = {"build": False, "evaluation": False}
        self._stop_asked = asyncio.Event()
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(HTTP_TIMEOUT_SECONDS, pool=None),
            limits=httpx2.Limits(max_connections=HTTP_CONNECTIONS),
            follow_redirects=False,
        )
        self._http_url = http_url(config.server)
        self._session = Session(
            SessionConfig(
                server=config.server,
                worker_id=config.worker_id,
                tokens=config.tokens,
                version=(
                    f"{importlib.metadata.version('gradient-ci')} (Nix {installation.version})"
                ),
                can_fetch=config.eval_slots > 0,
                can_eval=config.eval_slots > 0,
                can_build=config.build_slots > 0,
                state_dir=str(config.state_dir),
            ),
            self,
        )

    async def run(self) -> None:
        """Serve until `stop`; then hand the running jobs back. Leaves no process behind."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        session = asyncio.create_task(self._session.run())
        stop = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait((session, stop), return_when=asyncio.FIRST_COMPLETED)
            if session.done():
                session.result()
            await self._hand_back()
            self._session.stop()
            # It may be waiting for a server that does not answer; that ends with us.
            await asyncio.wait((session,), timeout=CLOSE_SECONDS)
        finally:
            session.cancel()
            stop.cancel()
            for job in list(self._jobs.values()):
                self._end(job, "dropped", "the worker ends")
            tasks = [job.task for job in self._jobs.values()]
            await asyncio.gather(session, stop, *tasks, return_exceptions=True)
            await asyncio.gather(*(pool.close() for pool in self._pools.values()))
            await self._look.close()
            await self._http.aclose()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def stop(self) -> None:
        """Hand the jobs back and end `run`."""
        self._stop_asked.set()

    async def _hand_back(self) -> None:
        """Stop every job, report it as stopped, and wait until the server knows."""
        log.info("Stopping: handing back what runs.", jobs=len(self._jobs))
        self._session.drain("the worker is stopping")
        for job in list(self._jobs.values()):
            self._end(job, "worker_stopping", "the worker was stopped")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                jobs = list(self._jobs.values())
                await asyncio.gather(*(job.work for job in jobs), return_exceptions=True)
                if self._session.served:
                    await asyncio.gather(*(job.task for job in jobs))

    # -- what the session asks -----------------------------------------------------------------

    @property
    def channels(self) -> Collection[Channel]:
        """The assignments that are still this worker's; what it dropped it does not name again."""
        return [job.channel for job in self._jobs.values() if job.ending != "dropped"]

    @property
    def capabilities(self) -> WorkerCapabilities:
        """What this worker can build and how much at once."""
        config, nix = self._config, self._installation
        return WorkerCapabilities(
            architectures=sorted(config.architectures or nix.systems),
            system_features=sorted(
                nix.features if config.system_features is None else config.system_features
            ),
            build_slots=config.build_slots,
            eval_slots=config.eval_slots,
            cpu_count=os.cpu_count(),
            ram_total_mb=ram_total_mb(),
            zone=config.zone,
            endpoint=config.endpoint,
        )

    def free_slots(self) -> dict[JobKind, int]:
        """How many jobs of each kind to ask for."""
        return {
            kind: pool.free if self._may[kind] and not self._stop_asked.is_set() else 0
            for kind, pool in self._pools.items()
        }

    def resumed(self, keep: Collection[int], welcome: InitAck) -> None:
        """A connection is served."""
        self._may = {"build": welcome.can_build, "evaluation": welcome.can_eval}
        log.info(
            "Connected.",
            server=welcome.server or self._config.server,
            projects=", ".join(welcome.projects),
            resumed=len(keep),
        )

    def assigned(self, job: AssignJob) -> str | None:
        """Take a job; returns the reason when it is refused."""
        kind: JobKind = "build" if isinstance(job.spec, BuildJob) else "evaluation"
        pool = self._pools[kind]
        if job.assignment in self._jobs:
            return None
        if self._stop_asked.is_set():
            return "the worker is stopping"
        if pool.full:
            return f"all {pool.count} {kind} slots are taken"
        taken = _Job(job, kind, Channel(job.job, job.assignment, self._session.wake))
        self._jobs[job.assignment] = taken
        pool.take()
        taken.work = asyncio.create_task(self._work(taken), name=f"work on {job.job}")
        taken.task = asyncio.create_task(self._run(taken), name=job.job)
        return None

    def stop_job(self, assignment: int, *, report: bool, reason: str) -> None:
        """Stop a job, and report it as aborted unless its assignment is no longer ours."""
        job = self._jobs.get(assignment)
        if job is not None:
            log.warning("Stopping a job.", job=job.assign.job, reason=reason)
            self._end(job, "aborted" if report else "dropped", reason)

    async def score(self, candidates: Sequence[JobCandidate]) -> list[JobScore]:
        """How much of each candidate's inputs this machine lacks, as far as it can tell itself."""
        needs: dict[str, set[str]] = {}
        unknown: dict[str, int] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SCORING_SECONDS
        for candidate in candidates:
            if candidate.drv is not None and loop.time() < deadline:
                needs[candidate.job], unknown[candidate.job] = self._needs(candidate.drv)
                # Reading takes the loop's time; heartbeats come first.
                await asyncio.sleep(0)
        asked = set().union(*needs.values(), *(candidate.outputs for candidate in candidates))
        try:
            valid = await (await self._look.serve()).valid_paths(asked, lock=False)
        except NixError as error:
            log.warning("Cannot tell what is in the store.", reason=str(error))
            return []
        return [
            JobScore(
                job=candidate.job,
                missing_count=len(needs.get(candidate.job, set()) - valid)
                + unknown.get(candidate.job, 0),
                outputs_present=bool(candidate.outputs) and set(candidate.outputs) <= valid,
            )
            for candidate in candidates
            if candidate.drv is None or candidate.job in needs
        ]

    def _needs(self, drv: str) -> tuple[set[str], int]:
        """The inputs of a derivation that can be named without the network, and how many cannot."""
        derivation = self._derivations.local(f"{STORE_DIR}/{drv}")
        if derivation is None:
            return set(), 1
        found = {path: self._derivations.local(path) for path in derivation.input_drvs}
        inputs = {path: one for path, one in found.items() if one is not None}
        if len(inputs) < len(found):
            return set(derivation.input_srcs), len(found) - len(inputs)
        try:
            return set(input_paths(derivation, inputs)), 0
        except InvalidDerivationError:
            return set(), 1

    # -- one job -------------------------------------------------------------------------------

    @property
    def _scratch(self) -> Path:
        return self._config.state_dir / "scratch"

    async def _run(self, job: _Job) -> None:
        """Wait for the end of a job's work, report it, and forget it when the server knows."""
        await asyncio.wait((job.work,))
        if job.ending != "dropped":
            last = self._last_report(job)
            if job.ending is None and not await job.channel.flush_log():
                log.warning("A part of the build log is lost.", job=job.assign.job)
            job.channel.report_now(last)
        job.finished = True
        self._vacate(job)
        await job.channel.wait_acknowledged()
        job.channel.close()
        self._jobs.pop(job.assign.assignment, None)

    def _last_report(self, job: _Job) -> JobCompleted | JobFailed:
        """The report that ends the assignment."""
        outcome: str
        missing: list[str] = []
        error = None if job.work.cancelled() else job.work.exception()
        match error:
            case None if not job.work.cancelled():
                log.info("Done.", job=job.assign.job, what=_named(job.assign))
                return JobCompleted(spans=job.spans.report())
            case None:
                outcome, message = job.ending or "worker_fault", job.reason or "it was cancelled"
            case JobError():
                outcome, message, missing = error.outcome_class, str(error), error.missing_paths
            case CacheError():
                outcome, message = "network", str(error)
            case NixError():
                outcome, message = "worker_fault", str(error)
            case _:
                log.error(
                    "A job met an error that nobody thought of.",
                    job=job.assign.job,
                    exc_info=error,
                )
                outcome, message = "worker_fault", f"{type(error).__name__}: {error}"
        log.info(
            "Failed.",
            job=job.assign.job,
            what=_named(job.assign),
            outcome=outcome,
            reason=message,
        )
        return JobFailed(
            outcome_class=outcome,
            error=message,
            missing_paths=missing,
            spans=job.spans.report(),
        )

    async def _work(self, job: _Job) -> None:
        """Do a job in a slot of its own; what is left to send does not hold the slot."""
        async with contextlib.AsyncExitStack() as sending:
            async with self._pools[job.kind].slot() as slot:
                log.info("Started.", job=job.assign.job, what=_named(job.assign))
                rest = await self._execute(job, slot)
                if rest is None:
                    return
                # Packed outputs lie on this machine's disk, so there are only so many.
                await sending.enter_async_context(self._sending)
            self._vacate(job)
            await rest()

    def _vacate(self, job: _Job) -> None:
        """Count a job's slot as free, once, and ask for work for it."""
        if not job.vacated:
            job.vacated = True
            self._pools[job.kind].release()
        self._session.request_jobs()

    async def _execute(self, job: _Job, slot: BuildSlot) -> Callable[[], Awaitable[None]] | None:
        assign = job.assign
        # A build is handed back when the cache stays away. An evaluation has only so many tries,
        # so it waits, however long, until it is told otherwise.
        grace = self._session.grace if job.kind == "build" else math.inf
        context = JobContext(
            channel=job.channel,
            cache=CacheClient(
                self._http,
                self._http_url + assign.cache_path,
                assign.token,
                self._scratch,
                grace,
            ),
            slot=slot,
            settings=self._settings,
            fetcher=self._fetcher,
            derivations=self._derivations,
            known=lambda drvs: self._session.known_derivations(assign.assignment, drvs),
            scratch=self._scratch,
            spans=job.spans,
        )
        match assign.spec:
            case BuildJob() as spec:
                return await run_build(spec, context)
            case FlakeJob() as spec:
                await run_evaluation(spec, context)
                return None

    def _end(self, job: _Job, ending: Ending, reason: str) -> None:
        """Stop a job's work. The first ending counts, but what is dropped stays dropped."""
        if ending == "dropped":
            job.ending = ending
            job.channel.close()
        elif job.finished or job.ending is not None:
            return
        else:
            job.ending, job.reason = ending, reason
        job.work.cancel()


def _named(assign: AssignJob) -> str:
    """What a job is about, for people."""
    spec = assign.spec
    if isinstance(spec, BuildJob):
        return spec.drv[33:].removesuffix(".drv")
    if isinstance(spec.source, CachedSource):
        return spec.source.path
    # A password in the URL is nobody's business here.
    return re.sub(r"(://)[^/@]*@", r"\1", spec.source.url)
