"""Following an evaluation to its verdict.

Twice a second one call to `gradient.evaluation_progress`, one query for what has finished since. A
terminal gets a progress bar below the lines, anything else the lines alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import psycopg
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradient.cli.context import Context, Record
from gradient.cli.failures import Failure, from_postgres
from gradient.cli.output import (
    cell,
    clean,
    complain,
    console,
    duration,
    note,
    print_json,
    status_text,
)
from gradient.cli.waiting import waiting_text

POLL_SECONDS = 0.5
# Counting many builds twice a second would be felt by the database.
MANY_BUILDS = 2000
SLOW_POLL_SECONDS = 2.0
# How long a database may be away before watching gives up.
PATIENCE_SECONDS = 60.0
VERDICTS = {"Completed": 0, "Failed": 1, "Aborted": 2}
NOT_FOUND_OUT = 3

_SUCCESS = ("Completed", "Substituted")
_DONE = (*_SUCCESS, "FailedPermanent", "FailedTimeout", "DependencyFailed", "Aborted", "Skipped")
_PHASES = {
    "Queued": "queued",
    "Fetching": "fetching the repository",
    "EvaluatingFlake": "evaluating the flake",
    "EvaluatingDerivation": "walking the derivations",
    "Building": "building",
    "Waiting": "waiting",
}
_LINES_OF_BUILDING = 8

# What finished since a moment; the margin is for transactions that began before it.
_FINISHED = """
  select b.id, b.name, b.status::text, b.outcome_shown, b.failure_message, b.failed_by,
         f.name as failed_by_name, b.build_started_at, b.build_finished_at, b.updated_at
    from gradient.build_job j
    join gradient.build_overview b on b.id = j.derivation_build
    left join gradient.derivation f on f.id = b.failed_by
   where j.evaluation = %s and b.status::text = any(%s)
     and (%s::timestamptz is null or b.updated_at > %s::timestamptz - interval '10 seconds')
   order by b.updated_at, b.id
"""


class _Screen(Protocol):
    """Where the lines go, and what stands below them."""

    def line(self, text: Text) -> None:
        """Print a line that stays."""

    def state(self, progress: Record) -> None:
        """Show the state that changes."""


class _Plain:
    """Lines only."""

    def __init__(self, out: Console) -> None:
        self._out = out

    def line(self, text: Text) -> None:
        self._out.print(text, soft_wrap=True)

    def state(self, progress: Record) -> None:
        """A pipe has no place for what changes."""


class _Terminal(_Plain):
    """Lines, and below them a bar with what is being built."""

    def __init__(self, out: Console, live: Live) -> None:
        super().__init__(out)
        self._live = live

    def state(self, progress: Record) -> None:
        self._live.update(_panel(progress))


class _Silent(_Plain):
    """Nothing before the end."""

    def line(self, text: Text) -> None:
        pass


@dataclass
class _Watch:
    """What has been said already about one evaluation."""

    context: Context
    evaluation: int
    screen: _Screen
    status: str = ""
    waiting: Any = None
    messages: int = 0
    since: datetime | None = None
    finished: dict[int, str] = field(default_factory=dict)

    def look(self) -> Record:
        """Say what is new, and return the state."""
        progress: Record = self.context.value(
            "select gradient.evaluation_progress(%s)", [self.evaluation]
        )
        # After the state was read: what is finished in it is among these.
        self._say_finished(progress)
        self._say_status(progress)
        self._say_messages(progress)
        self.screen.state(progress)
        return progress

    def _say_status(self, progress: Record) -> None:
        status, waiting = progress["status"], progress["waiting_reason"]
        if (status, waiting) == (self.status, self.waiting):
            return
        self.status, self.waiting = status, waiting
        phase = _PHASES.get(status)
        if phase is None:
            return
        text = Text(f"evaluation {self.evaluation}: {phase}", style="bold")
        if waiting is not None:
            text.append(f": {clean(waiting_text(waiting) or '')}", style="yellow")
        elif status == "Building":
            text.append(f" {sum(progress['builds'].values())} derivations")
        elif progress["worker"]:
            text.append(f" on {clean(progress['worker'])}")
        self.screen.line(text)

    def _say_messages(self, progress: Record) -> None:
        messages = progress["messages"]
        for message in messages[self.messages :]:
            text = status_text(str(message["level"]).capitalize())
            if message["attribute"]:
                text.append(f" {clean(message['attribute'])}", style="bold")
            text.append(f": {clean(message['message'])}", style="default")
            self.screen.line(text)
        self.messages = len(messages)

    def _say_finished(self, progress: Record) -> None:
        rows = self.context.rows(_FINISHED, [self.evaluation, list(_DONE), self.since, self.since])
        created = datetime.fromisoformat(progress["created_at"])
        for row in rows:
            self.since = max(self.since or row["updated_at"], row["updated_at"])
            if self.finished.get(row["id"]) == row["status"]:
                continue
            self.finished[row["id"]] = row["status"]
            # What was there before is counted at the end; it is no news.
            if row["updated_at"] >= created:
                self.screen.line(_finished_line(row))


def _finished_line(row: Record) -> Text:
    text = status_text(row["status"])
    text.pad_right(max(0, 16 - len(row["status"])))
    text.append(f" {clean(row['name'])}", style="default")
    started, finished = row["build_started_at"], row["build_finished_at"]
    if row["status"] == "Completed" and started and finished:
        text.append(f"  {duration((finished - started).total_seconds())}", style="dim")
    if row["status"] not in _SUCCESS:
        text.append(f"  {failure_text(row)}", style="dim")
    return text


def failure_text(row: Record) -> str:
    """Why a build did not succeed, on one line."""
    if row["failed_by"] is not None and row["status"] == "DependencyFailed":
        return clean(f"needs {row['failed_by_name']} (build {row['failed_by']})")
    message = clean(row["failure_message"] or "").strip().splitlines()
    said = row["outcome_shown"] or ""
    return f"{said}: {message[0]}" if said and message else said or (message[0] if message else "")


def _panel(progress: Record) -> Table:
    builds = progress["builds"]
    total, done = sum(builds.values()), sum(builds.get(status, 0) for status in _DONE)
    panel = Table.grid(padding=(0, 1))
    head = Table.grid(padding=(0, 1))
    started = datetime.fromisoformat(progress["created_at"])
    elapsed = duration((datetime.now(UTC) - started).total_seconds())
    head.add_row(
        status_text(progress["status"]),
        ProgressBar(total=max(total, 1), completed=done, width=30),
        Text(f"{done}/{total} in {elapsed}"),
        Text(counts_text(builds), style="dim"),
    )
    panel.add_row(head)
    building = progress["building"]
    for item in building[:_LINES_OF_BUILDING]:
        since = datetime.fromisoformat(item["started_at"] or item["dispatched_at"])
        seconds = duration((datetime.now(UTC) - since).total_seconds())
        panel.add_row(Text(f"  {clean(item['name'])}  {seconds}  {clean(item['worker'])}", "cyan"))
    if len(building) > _LINES_OF_BUILDING:
        panel.add_row(Text(f"  and {len(building) - _LINES_OF_BUILDING} more", style="dim"))
    return panel


def counts_text(builds: dict[str, int]) -> str:
    """`36 Completed, 2 Building`, most first."""
    ordered = sorted(builds.items(), key=lambda item: -item[1])
    return ", ".join(f"{number} {status}" for status, number in ordered)


@contextmanager
def _screen(*, silent: bool) -> Iterator[_Screen]:
    out = console()
    if silent:
        yield _Silent(out)
    elif out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            yield _Terminal(out, live)
    else:
        yield _Plain(out)


def watch_evaluation(context: Context, evaluation: int, *, as_json: bool = False) -> int:
    """Follow an evaluation to its end; returns the exit code.

    0 Completed, 1 Failed, 2 Aborted, 3 when the verdict could not be found out.
    """
    try:
        with _screen(silent=as_json) as screen:
            progress = _follow(_Watch(context, evaluation, screen))
    except (Failure, psycopg.Error) as error:
        failure = error if isinstance(error, Failure) else from_postgres(error)
        complain(failure.message, detail=failure.detail, hint=failure.hint)
        return NOT_FOUND_OUT
    except KeyboardInterrupt:
        note(f"evaluation {evaluation} goes on: gradient eval watch {evaluation}")
        return NOT_FOUND_OUT
    if as_json:
        print_json(progress)
    else:
        _summary(context, progress)
    return VERDICTS[progress["verdict"]]


def _follow(watch: _Watch) -> Record:
    lost_at: float | None = None
    pause = POLL_SECONDS
    while True:
        try:
            progress = watch.look()
            lost_at = None
            if progress["verdict"] is not None:
                return progress
            many = sum(progress["builds"].values()) > MANY_BUILDS
            pause = SLOW_POLL_SECONDS if many else POLL_SECONDS
        except psycopg.OperationalError as error:
            now = time.monotonic()
            if lost_at is None:
                # The first look must succeed: a wrong address does not get better.
                if not watch.status:
                    raise
                lost_at = now
                watch.screen.line(Text("the database is away; waiting for it", style="yellow"))
            if now - lost_at > PATIENCE_SECONDS:
                raise error
            watch.context.forget_connection()
        time.sleep(pause)


def _summary(context: Context, progress: Record) -> None:
    out = console()
    created = datetime.fromisoformat(progress["created_at"])
    finished = datetime.fromisoformat(progress["finished_at"])
    text = Text.assemble(
        (f"evaluation {progress['evaluation']} ", "bold"),
        status_text(progress["verdict"]),
        f" after {duration((finished - created).total_seconds())}",
    )
    counts = counts_text(progress["builds"])
    text.append(f": {counts}" if counts else ": nothing to build")
    out.print(text, soft_wrap=True)
    if progress["verdict"] != "Completed":
        _failed_builds(context, progress)
        return
    for entry in progress["entry_points"]:
        out.print(
            Text("  ")
            .append_text(status_text(entry["status"]))
            .append("  ")
            .append_text(cell(entry["attribute"])),
            soft_wrap=True,
        )


def _failed_builds(context: Context, progress: Record) -> None:
    failed = ["FailedPermanent", "FailedTimeout"]
    rows = context.rows(_FINISHED + " limit 20", [progress["evaluation"], failed, None, None])
    out = console()
    for row in rows:
        out.print(Text("  ").append_text(_finished_line(row)), soft_wrap=True)
        out.print(Text(f"    gradient build log {row['id']}", style="dim"), soft_wrap=True)
