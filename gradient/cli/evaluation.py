"""`gradient eval`: starting, watching, listing, stopping and retrying evaluations."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

from gradient.cli.context import Context, pass_context
from gradient.cli.failures import Failure
from gradient.cli.options import TaskName, TaskNameType, json_option
from gradient.cli.output import (
    Column,
    age,
    cell,
    console,
    duration,
    print_details,
    print_json,
    print_table,
    say,
    status_text,
)
from gradient.cli.waiting import waiting_text
from gradient.cli.watch import watch_evaluation

STATUSES = (
    "Queued",
    "Fetching",
    "EvaluatingFlake",
    "EvaluatingDerivation",
    "Building",
    "Waiting",
    "Completed",
    "Failed",
    "Aborted",
)


@click.group("eval")
def evaluation() -> None:
    """Start, watch and list evaluations: one commit of a task's flake, from fetch to verdict."""


@evaluation.command()
@click.argument("task", type=TaskNameType())
@click.option("--revision", help="Commit, branch or tag; the task's own without.")
@click.option("--wildcard", help="Attributes to build, instead of the task's own.")
@click.option("--watch", is_flag=True, help="Follow it to its end, as eval watch does.")
@json_option
@pass_context
def start(
    context: Context,
    *,
    task: TaskName,
    revision: str | None,
    wildcard: str | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Queue an evaluation of a task.

    With --watch the exit code is the verdict: 0 Completed, 1 Failed, 2 Aborted, 3 not found out.

    \b
    Examples:
      gradient eval start acme/site
      gradient eval start acme/site --revision v1.2 --watch
      gradient eval start acme/site --wildcard 'packages.x86_64-linux.default'
    """
    number = context.value(
        "select gradient.start_evaluation(%s, %s, %s, %s)",
        [task.project, task.task, revision, wildcard],
    )
    if watch:
        sys.exit(watch_evaluation(context, number, as_json=as_json))
    if as_json:
        print_json({"id": number, "project": task.project, "task": task.task})
        return
    say(f"evaluation {number} of {task} is queued")
    say(f"next: gradient eval watch {number}")


@evaluation.command()
@click.argument("evaluation_id", metavar="ID", type=click.IntRange(1))
@json_option
@pass_context
def watch(context: Context, *, evaluation_id: int, as_json: bool) -> None:
    """Follow an evaluation to its end.

    Live on a terminal, plain lines otherwise, with --json the final state only. Exit codes:
    0 Completed, 1 Failed, 2 Aborted, 3 the verdict could not be found out (no database, or no
    such evaluation). Ctrl-C stops watching, not the evaluation.

    \b
    Examples:
      gradient eval watch 12
      gradient eval watch 12 --json > verdict.json
    """
    sys.exit(watch_evaluation(context, evaluation_id, as_json=as_json))


@evaluation.command("list")
@click.option("--task", type=TaskNameType(), help="Only evaluations of this task.")
@click.option(
    "--status",
    type=click.Choice(STATUSES, case_sensitive=False),
    multiple=True,
    help="Only this status (may be repeated).",
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Latest.")
@json_option
@pass_context
def list_(
    context: Context,
    *,
    task: TaskName | None,
    status: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List evaluations, the latest first.

    \b
    Examples:
      gradient eval list
      gradient eval list --task acme/site --limit 5
      gradient eval list --status Building --status Waiting --json
    """
    rows = context.rows(
        "select * from gradient.evaluation_overview"
        " where (%(project)s::text is null or project = %(project)s and task = %(task)s)"
        " and (%(status)s::text[] is null or status::text = any(%(status)s))"
        " order by id desc limit %(limit)s",
        {
            "project": task.project if task else None,
            "task": task.task if task else None,
            "status": list(status) or None,
            "limit": limit,
        },
    )
    if as_json:
        print_json(rows)
        return
    shown = [{**row, "of": f"{row['project']}/{row['task']}", "took": took(row)} for row in rows]
    columns = [
        Column("EVALUATION", "id", right=True),
        Column("TASK", "of"),
        Column("STATUS", "status", status_text),
        Column("COMMIT", "commit", _short),
        Column("BUILDS", "builds", right=True),
        Column("LEFT", "active", right=True),
        Column("FAILED", "failed", right=True),
        Column("STARTED", "created_at", age),
        Column("TOOK", "took"),
    ]
    print_table(shown, columns, empty="No evaluation: gradient eval start <project>/<task>")


def took(row: dict[str, Any]) -> str:
    """How long an evaluation took, or has taken so far."""
    end = row["finished_at"] or datetime.now(UTC)
    return duration((end - row["created_at"]).total_seconds())


def _short(commit: str | None) -> Text:
    return cell(None if commit is None else commit[:12])


@evaluation.command()
@click.argument("evaluation_id", metavar="ID", type=click.IntRange(1))
@json_option
@pass_context
def show(context: Context, *, evaluation_id: int, as_json: bool) -> None:
    """Show one evaluation: its state, entry points and messages.

    \b
    Examples:
      gradient eval show 12
      gradient eval show 12 --json
    """
    row = context.row("select * from gradient.evaluation_overview where id = %s", [evaluation_id])
    if row is None:
        raise Failure(f"there is no evaluation {evaluation_id}", hint="gradient eval list")
    progress = context.value("select gradient.evaluation_progress(%s)", [evaluation_id])
    if as_json:
        parts = ("entry_points", "messages", "building")
        counts = {"builds_by_status": progress["builds"]}
        print_json({**row, **counts, **{part: progress[part] for part in parts}})
        return
    counts_text = ", ".join(f"{number} {name}" for name, number in progress["builds"].items())
    print_details(
        [
            ("evaluation", row["id"]),
            ("task", f"{row['project']}/{row['task']}"),
            ("status", status_text(row["status"])),
            ("waits", waiting_text(row["waiting_reason"])),
            ("repository", row["repository"]),
            ("commit", row["commit"]),
            ("attributes", row["wildcard"]),
            ("builds", counts_text or "none"),
            ("started", row["created_at"]),
            ("took", took(row)),
        ]
    )
    if progress["entry_points"]:
        console().print()
        columns = [
            Column("ATTRIBUTE", "attribute"),
            Column("STATUS", "status", status_text),
            Column("BUILD", "build", right=True),
            Column("DRV", "drv"),
        ]
        print_table(progress["entry_points"], columns, empty="")
    if progress["messages"]:
        console().print()
        for message in progress["messages"]:
            print_message(message)


def print_message(message: dict[str, Any]) -> None:
    """Print one message of an evaluation."""
    line = status_text(str(message["level"]).capitalize())
    where = f" {message['attribute']}" if message.get("attribute") else ""
    line.append_text(Text(f"{where}: ", style="bold"))
    line.append_text(cell(message["message"]))
    console().print(line, soft_wrap=True)


@evaluation.command()
@click.argument("evaluation_id", metavar="ID", type=click.IntRange(1))
@json_option
@pass_context
def abort(context: Context, *, evaluation_id: int, as_json: bool) -> None:
    """Abort an evaluation, and the builds that nobody else needs.

    \b
    Example:
      gradient eval abort 12
    """
    report = context.value("select gradient.abort_evaluation(%s)", [evaluation_id])
    if as_json:
        print_json({"id": evaluation_id, **report})
        return
    say(f"evaluation {evaluation_id} is aborted, and {report['aborted_builds']} builds with it")


@evaluation.command()
@click.argument("evaluation_id", metavar="ID", type=click.IntRange(1))
@json_option
@pass_context
def retry(context: Context, *, evaluation_id: int, as_json: bool) -> None:
    """Try everything again that failed in an evaluation, without evaluating anew.

    It takes up where it ended, Failed or Aborted, as long as its task has no newer one.

    \b
    Example:
      gradient eval retry 12
    """
    report = context.value("select gradient.retry_evaluation(%s)", [evaluation_id])
    if as_json:
        print_json({"id": evaluation_id, **report})
        return
    say(f"evaluation {evaluation_id} is {report['status']}; {report['builds']} builds came back")


@evaluation.command()
@click.argument("evaluation_id", metavar="ID", type=click.IntRange(1))
@json_option
@pass_context
def prioritize(context: Context, *, evaluation_id: int, as_json: bool) -> None:
    """Let the builds of an evaluation go first, now and as they become ready.

    \b
    Example:
      gradient eval prioritize 12
    """
    report = context.value("select gradient.prioritize_evaluation(%s)", [evaluation_id])
    if as_json:
        print_json({"id": evaluation_id, **report})
        return
    say(f"evaluation {evaluation_id} goes first; {report['builds']} of its builds are ready")
