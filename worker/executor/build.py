"""A build job: inputs from the cache, the builder, outputs to the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gradient.protocol import Building, BuildJob, BuildMetrics, BuildOutput
from worker.build_log import BuildLog
from worker.cache_client import CacheError, CacheRefusedError, Upload
from worker.derivations import MissingDerivationError, input_paths
from worker.executor.job import JobContext, JobError, gather_or_cancel
from worker.nix import processes
from worker.nix.building import BuildLimits, BuildReport, BuildSlot
from worker.nix.classify import Outcome
from worker.nix.derivation import Derivation, InvalidDerivationError, UnsupportedDerivationError
from worker.nix.serve import BuildRequest
from worker.nix.store_path import STORE_DIR
from worker.transfer import MissingPathsError, pack, path_infos, send

MEMORY_SAMPLE_SECONDS: Final = 0.5
UPLOADS: Final = 8


async def run_build(job: BuildJob, context: JobContext) -> Callable[[], Awaitable[None]]:
    """Build one derivation and pack its outputs.

    Outputs that this machine's store holds already are not built again, only uploaded.

    Returns:
        What is left to do, and no longer needs the slot: sending the outputs to the cache.

    Raises:
        JobError: it did not come to that; the class says why.
    """
    await context.channel.report(Building())
    if job.build_kind == "substitute":
        raise JobError("substitute_miss", "this worker has no upstream cache to substitute from")
    drv_path = f"{STORE_DIR}/{job.drv}"
    built: _Built | None = None
    try:
        derivation = await context.derivations.get(drv_path, context.cache)
        outputs = _outputs(job, derivation)
        if await (await context.slot.serve()).valid_paths(outputs) != outputs:
            with context.spans.phase("fetch_inputs"):
                inputs = await _fetch_inputs(derivation, context)
            built = await _build(job, drv_path, derivation, inputs, context)
    except MissingDerivationError as error:
        raise JobError("missing_input", str(error), [error.path]) from None
    except MissingPathsError as error:
        raise JobError("missing_input", str(error), error.paths) from None
    except (InvalidDerivationError, UnsupportedDerivationError) as error:
        raise JobError("worker_fault", f"{job.drv}: {error}") from None
    except CacheRefusedError as error:
        raise JobError("worker_fault", str(error)) from None
    except CacheError as error:
        # The cache is away, in whichever direction: no word about the build, and not charged.
        raise JobError("upload_failed", str(error)) from None
    context.channel.finish_log()
    uploads = await _pack_outputs(outputs, built, context)
    return lambda: _send(uploads, context)


def _outputs(job: BuildJob, derivation: Derivation) -> set[str]:
    """The output paths, on which job and derivation must agree."""
    stated = {output.path for output in derivation.outputs.values()}
    asked = {output.path for output in job.outputs}
    if asked and asked != stated:
        raise JobError(
            "worker_fault",
            f"{job.drv} has the outputs {', '.join(sorted(stated))}, "
            f"but the job asks for {', '.join(sorted(asked))}",
        )
    return stated


async def _fetch_inputs(derivation: Derivation, context: JobContext) -> frozenset[str]:
    names = list(derivation.input_drvs)
    found = await asyncio.gather(*(context.derivations.get(name, context.cache) for name in names))
    inputs = input_paths(derivation, dict(zip(names, found, strict=True)))
    await context.fetcher.fetch(inputs, context.cache, context.slot.serve)
    return inputs


async def _build(
    job: BuildJob,
    drv_path: str,
    derivation: Derivation,
    inputs: frozenset[str],
    context: JobContext,
) -> _Built:
    channel = context.channel
    request = BuildRequest.of(
        drv_path,
        derivation,
        inputs,
        timeout=job.timeout_secs,
        max_silent=job.max_silent_secs,
    )
    write = channel.open_log(BuildLog(context.scratch, job.log_limit))
    memory = _MemoryPeak(context.slot)
    try:
        with context.spans.phase("build"):
            report = await context.slot.build(
                request,
                BuildLimits(total=job.timeout_secs or None, silent=job.max_silent_secs or None),
                write,
                on_started=lambda: channel.report_now(Building(builder_started=True)),
            )
    finally:
        memory.stop()
    if not report.success:
        raise JobError(
            report.outcome.value,
            report.reason or report.outcome.value,
            report.missing_paths,
        )
    return _Built(report, memory.peak_mb)


async def _pack_outputs(
    outputs: set[str], built: _Built | None, context: JobContext
) -> list[Upload]:
    """Report that the outputs exist, and take out of the store what the cache lacks of them."""
    infos = await path_infos(outputs, context.slot.serve)
    size = sum(info.nar_size for info in infos.values())
    await context.channel.report(
        BuildOutput(
            substituted=built is None or built.report.outcome is Outcome.ALREADY_VALID,
            metrics=built.metrics(size) if built else None,
        )
    )
    with _upload_failures(), context.spans.phase("pack"):
        packed = [await pack(info, context.cache, context.slot.serve) for info in infos.values()]
    return [one for one in packed if one is not None]


async def _send(uploads: list[Upload], context: JobContext) -> None:
    room = asyncio.Semaphore(UPLOADS)

    async def put(one: Upload) -> None:
        async with room:
            await send(one, context.cache)

    try:
        with _upload_failures(), context.spans.phase("upload"):
            await gather_or_cancel(map(put, uploads))
    finally:
        for one in uploads:
            one.packed.close()


@contextmanager
def _upload_failures() -> Iterator[None]:
    """What it means for the job when an output does not get into the cache."""
    try:
        yield
    except CacheRefusedError as error:
        # Not for now but for good: only another build can change what is refused.
        raise JobError("worker_fault", str(error)) from None
    except CacheError as error:
        raise JobError("upload_failed", str(error)) from None


@dataclass(frozen=True)
class _Built:
    """A build that ran here; memory in MiB, None where it could not be measured."""

    report: BuildReport
    peak_mb: int | None

    def metrics(self, output_bytes: int) -> BuildMetrics:
        took = self.report.stopped - (self.report.started or self.report.stopped)
        return BuildMetrics(
            build_time_ms=max(0, round(took * 1000)),
            peak_ram_mb=self.peak_mb,
            output_bytes=output_bytes,
        )


class _MemoryPeak:
    """Samples the memory of a slot's processes while a build runs.

    Through a daemon the builder is not among them, and nothing is measured.
    """

    def __init__(self, slot: BuildSlot) -> None:
        self._slot = slot
        self._peak = 0
        self._task = asyncio.create_task(self._sample())

    @property
    def peak_mb(self) -> int | None:
        return self._peak >> 20 or None

    def stop(self) -> None:
        self._task.cancel()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_SAMPLE_SECONDS)
            pid = self._slot.supervisor_pid
            if pid is not None:
                self._peak = max(self._peak, processes.resident_bytes(pid))
