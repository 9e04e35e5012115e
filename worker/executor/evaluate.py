"""An evaluation job: fetch the flake, evaluate its attributes, walk below them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gradient.protocol import (
    CachedSource,
    EvalResult,
    EvaluatingDerivations,
    EvaluatingFlake,
    EvaluationMessage,
    Fetching,
    FetchResult,
    FlakeJob,
)
from worker.cache_client import CacheError, CacheRefusedError
from worker.executor.job import JobContext, JobError
from worker.executor.walk import PART_BYTES, Walk, by_bytes
from worker.nix.errors import NixError, StoreFaultError
from worker.nix.evaluate import EvaluationLimits, NothingMatchedError, evaluate
from worker.nix.flake import FetchError, FlakeSource, fetch_repository, with_inputs
from worker.nix.patterns import parse_patterns
from worker.nix.processes import ProcessTimeoutError
from worker.transfer import MissingPathsError

# The wire takes names of up to this many characters.
LONGEST_ATTRIBUTE: Final = 255


async def run_evaluation(job: FlakeJob, context: JobContext) -> None:
    """Read a flake and report every derivation of it that the server does not hold.

    Raises:
        JobError: it did not come to that; the class says why.
    """
    walk = Walk(context, job.walk_mode)
    try:
        parse_patterns(job.wildcard)
        if job.input_overrides:
            raise JobError(
                "evaluation_failed",
                "this worker cannot override flake inputs "
                f"({', '.join(sorted(job.input_overrides))}): pin them in flake.lock instead",
            )
        source = await _fetch(job, context, walk)
        if "evaluate_flake" not in job.steps:
            return
        await context.channel.report(EvaluatingFlake())
        with context.spans.phase("evaluate"):
            found = await _evaluate(job, source, context)
        if "evaluate_derivations" not in job.steps:
            return
        await context.channel.report(EvaluatingDerivations())
        with context.spans.phase("walk"):
            await walk.run(found.entry_points, found.messages, found.built)
    except MissingPathsError as error:
        raise JobError("missing_input", str(error), error.paths) from None
    except CacheRefusedError as error:
        raise JobError("worker_fault", str(error)) from None
    except CacheError as error:
        raise JobError("network", str(error)) from None
    except StoreFaultError as error:
        raise JobError("worker_fault", str(error)) from None
    except NixError as error:
        raise JobError("evaluation_failed", str(error)) from None


@dataclass
class _Evaluated:
    """What the evaluation found: attributes with their `.drv` paths, and what it said and built."""

    entry_points: list[tuple[str, str]] = field(default_factory=list)
    messages: list[EvaluationMessage] = field(default_factory=list)
    built: set[str] = field(default_factory=set)


async def _fetch(job: FlakeJob, context: JobContext, walk: Walk) -> FlakeSource:
    """Bring the flake and its inputs into the store, and the flake into the cache."""
    step = "fetch_flake" in job.steps
    if step:
        await context.channel.report(Fetching())
    with context.spans.phase("fetch"):
        if isinstance(job.source, CachedSource):
            await context.fetcher.fetch([job.source.path], context.cache, context.slot.serve)
            source = await with_inputs(
                context.settings, FlakeSource(job.source.path, job.source.revision)
            )
        else:
            try:
                source = await fetch_repository(
                    context.settings, job.source.url, job.source.revision
                )
            except ProcessTimeoutError as error:
                raise JobError("network", str(error)) from None
            except FetchError as error:
                outcome = "network" if error.transient else "evaluation_failed"
                raise JobError(outcome, str(error)) from None
    if step:
        with context.spans.phase("upload_source"):
            # Whoever evaluates elsewhere needs the inputs as well.
            alone = "evaluate_flake" not in job.steps
            await walk.upload_sources({source.path, *(source.inputs if alone else ())})
        await context.channel.report(
            FetchResult(
                flake_source=source.path,
                commit=source.revision,
                commit_message=source.commit_message,
                commit_author=source.commit_author,
            )
        )
    return source


async def _evaluate(job: FlakeJob, source: FlakeSource, context: JobContext) -> _Evaluated:
    """The attributes that the patterns select, with their `.drv` paths, and what went wrong."""
    result = _Evaluated()
    entry_points, messages = result.entry_points, result.messages
    limits = EvaluationLimits(
        seconds=job.timeout_secs or None,
        memory_bytes=job.memory_mb << 20 or None,
        allow_import_from_derivation=job.allow_import_from_derivation,
    )
    try:
        async for batch in evaluate(context.settings, source, job.wildcard, limits):
            for found in batch.attrs:
                result.built.update(found.ifd)
                if len(found.attr) <= LONGEST_ATTRIBUTE:
                    entry_points.append((found.attr, found.drv_path))
                else:
                    messages.append(_too_long(found.attr))
            messages += [
                EvaluationMessage(level="error", message=error.message, attribute=error.attr)
                for error in batch.errors
            ]
            messages += [
                EvaluationMessage(level="warning", message=warning) for warning in batch.warnings
            ]
            if batch.attrs:
                serve = await context.slot.serve()
                await serve.valid_paths([found.drv_path for found in batch.attrs])
    except NothingMatchedError:
        for part in by_bytes(messages, PART_BYTES):
            await context.channel.report(EvalResult(derivations=[], messages=part))
        raise
    return result


def _too_long(attribute: str) -> EvaluationMessage:
    return EvaluationMessage(
        level="error",
        message=f"the attribute {attribute[:80]}… has {len(attribute)} characters; "
        f"at most {LONGEST_ATTRIBUTE} can be recorded",
    )
