"""Reading a build's log out of the object store, also while it is being written."""

from __future__ import annotations

import sys
import time
from typing import Any

from gradient.cli.context import Context
from gradient.cli.failures import REFUSED, Failure
from gradient.cli.output import note
from gradient.cli.storage import log_chunk, open_store

POLL_SECONDS = 0.3
_ENDED = ("FailedPermanent", "FailedTimeout", "DependencyFailed", "Aborted", "Skipped")


def print_log(context: Context, build: int, *, attempt: int | None, follow: bool) -> None:
    """Write a log's bytes to standard output; raises Failure, or exits with 1 (see `build log`)."""
    found = _attempt(context, build, attempt)
    while found is None and follow:
        _until_attempted(context, build)
        found = _attempt(context, build, attempt)
    if found is None:
        raise _nothing(context, build, attempt)
    store = open_store(context.config)
    out = sys.stdout.buffer
    number, position = found["attempt"], 0
    while True:
        # Read before the pieces: what was finished by then has all of them.
        finished = found["log_finished"]
        for chunk in context.rows(
            "select chunk_index, byte_start, byte_len from gradient.build_log_chunks(%s, %s)",
            [number, position],
        ):
            data = context.run(log_chunk(store, number, chunk["chunk_index"]))
            out.write(data[max(0, position - chunk["byte_start"]) :])
            position = chunk["byte_start"] + chunk["byte_len"]
        out.flush()
        if finished or not follow:
            break
        time.sleep(POLL_SECONDS)
        again = _attempt(context, build, number)
        if again is None:
            break
        found = again
    _epilogue(found, follow=follow)


def _epilogue(attempt: dict[str, Any], *, follow: bool) -> None:
    if attempt["log_truncated_bytes"]:
        note(
            f"{attempt['log_truncated_bytes']} bytes in the middle were over the limit and dropped"
        )
    if attempt["outcome"] == "Running":
        if not follow:
            note("the build goes on; --follow goes on with it")
        return
    if attempt["outcome"] in ("Failed", "Aborted"):
        message = attempt["failure_message"]
        reason = attempt["outcome_class"] or attempt["outcome"]
        note(f"attempt {attempt['attempt']}: {reason}{f': {message}' if message else ''}")
        if follow:
            sys.exit(REFUSED)


def _attempt(context: Context, build: int, attempt: int | None) -> dict[str, Any] | None:
    return context.row(
        "select * from gradient.build_attempts(%(build)s)"
        " where %(attempt)s::bigint is null or attempt = %(attempt)s limit 1",
        {"build": build, "attempt": attempt},
    )


def _until_attempted(context: Context, build: int) -> None:
    row = _status(context, build)
    if row["status"] in ("Completed", "Substituted", *_ENDED):
        raise _nothing(context, build, None)
    time.sleep(POLL_SECONDS)


def _status(context: Context, build: int) -> dict[str, Any]:
    row = context.row(
        "select b.name, b.status, b.failed_by, f.name as failed_by_name"
        " from gradient.build_overview b left join gradient.derivation f on f.id = b.failed_by"
        " where b.id = %s",
        [build],
    )
    if row is None:
        raise Failure(f"build {build} is gone")
    return row


def _nothing(context: Context, build: int, attempt: int | None) -> Failure:
    if attempt is not None:
        return Failure(
            f"build {build} has no attempt {attempt}", hint=f"gradient build show {build}"
        )
    row = _status(context, build)
    text = f"build {build} ({row['name']}) was never run: it is {row['status']}"
    if row["failed_by"] is not None:
        culprit = f"{row['failed_by_name']} (build {row['failed_by']})"
        return Failure(
            f"{text}, for it needs {culprit}", hint=f"gradient build log {row['failed_by']}"
        )
    return Failure(text, hint=f"gradient build show {build}")
