"""`gradient build`: shared builds and their logs; stopping, retrying and hurrying them."""

from __future__ import annotations

from typing import Any

import click

from gradient.cli.build_log import print_log
from gradient.cli.build_name import find_build
from gradient.cli.context import Context, pass_context
from gradient.cli.failures import Failure
from gradient.cli.options import json_option
from gradient.cli.output import (
    Column,
    age,
    console,
    duration,
    print_details,
    print_json,
    print_table,
    say,
    status_text,
)
from gradient.cli.watch import failure_text

STATUSES = (
    "Created",
    "Queued",
    "Building",
    "Completed",
    "FailedPermanent",
    "Aborted",
    "DependencyFailed",
    "Substituted",
    "FailedTransient",
    "FailedTimeout",
    "Skipped",
)

_NAMES = """
  BUILD is an id, a .drv (name or path), an output path, the beginning of a .drv's hash, or
  attribute@evaluation, like packages.x86_64-linux.default@12.
"""


@click.group()
def build() -> None:
    """List, stop and retry builds, read logs: each derivation is built once, for everybody."""


@build.command("list")
@click.option("--eval", "evaluation", type=click.IntRange(1), help="Only those it names.")
@click.option(
    "--status",
    type=click.Choice(STATUSES, case_sensitive=False),
    multiple=True,
    help="Only this status (may be repeated).",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Latest.")
@json_option
@pass_context
def list_(
    context: Context,
    *,
    evaluation: int | None,
    status: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List builds, those that changed last first.

    \b
    Examples:
      gradient build list --eval 12
      gradient build list --status FailedPermanent --status FailedTimeout
      gradient build list --status Building --json
    """
    rows = context.rows(
        "select b.*, f.name as failed_by_name from gradient.build_overview b"
        " left join gradient.derivation f on f.id = b.failed_by"
        " where (%(evaluation)s::bigint is null or b.id in ("
        "   select j.derivation_build from gradient.build_job j"
        "    where j.evaluation = %(evaluation)s))"
        " and (%(status)s::text[] is null or b.status::text = any(%(status)s))"
        " order by b.updated_at desc, b.id desc limit %(limit)s",
        {"evaluation": evaluation, "status": list(status) or None, "limit": limit},
    )
    if as_json:
        print_json(rows)
        return
    shown = [{**row, "why": failure_text(row), "took": _took(row)} for row in rows]
    columns = [
        Column("BUILD", "id", right=True),
        Column("STATUS", "status", status_text),
        Column("NAME", "name"),
        Column("WORKER", "worker"),
        Column("TOOK", "took", right=True),
        Column("CHANGED", "updated_at", age),
        Column("WHY", "why"),
    ]
    print_table(shown, columns, empty="No build.")


def _took(row: dict[str, Any]) -> str:
    started, finished = row["build_started_at"], row["build_finished_at"]
    if started is None or finished is None:
        return "-"
    return duration((finished - started).total_seconds())


@build.command(epilog=_NAMES)
@click.argument("build_name", metavar="BUILD")
@json_option
@pass_context
def show(context: Context, *, build_name: str, as_json: bool) -> None:
    """Show one build: its status, what it waits for, and its attempts.

    \b
    Examples:
      gradient build show 71
      gradient build show packages.x86_64-linux.default@12 --json
    """
    number = find_build(context, build_name)
    row = context.row(
        "select b.*, f.name as failed_by_name from gradient.build_overview b"
        " left join gradient.derivation f on f.id = b.failed_by where b.id = %s",
        [number],
    )
    attempts = context.rows("select * from gradient.build_attempts(%s)", [number])
    outputs = context.rows(
        "select o.name, '/nix/store/' || o.hash || '-' || o.package as path,"
        "       o.cached_path is not null as in_cache"
        "  from gradient.derivation_output o where o.derivation = %s order by o.name",
        [number],
    )
    if row is None:
        raise Failure(f"build {number} is gone", hint="gradient build list")
    if as_json:
        print_json({**row, "outputs": outputs, "attempts": attempts})
        return
    print_details(
        [
            ("build", row["id"]),
            ("drv", row["drv"]),
            ("status", status_text(row["status"])),
            ("why", failure_text(row) or None),
            ("system", row["architecture"]),
            ("features", row["required_features"] or None),
            ("inputs missing", row["blocking_deps"] or None),
            ("sources missing", row["missing_sources"] or None),
            ("worker", row["worker"]),
            ("charged attempts", row["attempt"] or None),
            ("next try", row["retry_at"]),
            *((f"output {output['name']}", _output(output)) for output in outputs),
        ]
    )
    if attempts:
        console().print()
        columns = [
            Column("ATTEMPT", "attempt", right=True),
            Column("OUTCOME", "outcome", status_text),
            Column("CLASS", "outcome_class"),
            Column("WORKER", "worker"),
            Column("STARTED", "build_started_at"),
            Column("LOG BYTES", "log_bytes", right=True),
            Column("MESSAGE", "failure_message"),
        ]
        print_table(attempts, columns, empty="")


def _output(output: dict[str, Any]) -> str:
    return f"{output['path']}{'' if output['in_cache'] else '  (not in the cache)'}"


@build.command(epilog=_NAMES)
@click.argument("build_name", metavar="BUILD")
@click.option("--attempt", type=click.IntRange(1), help="An attempt's id; the latest without.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the build has ended.")
@pass_context
def log(context: Context, *, build_name: str, attempt: int | None, follow: bool) -> None:
    """Print the log of a build, byte for byte as the builder wrote it.

    Without --follow, what there is of a running build. With it, exit code 1 when the attempt
    ended without success.

    \b
    Examples:
      gradient build log 71
      gradient build log --follow packages.x86_64-linux.default@12
      gradient build log 71 | less -R
    """
    print_log(context, find_build(context, build_name), attempt=attempt, follow=follow)


@build.command(epilog=_NAMES)
@click.argument("evaluation", type=click.IntRange(1))
@click.argument("build_name", metavar="BUILD")
@json_option
@pass_context
def abort(context: Context, *, evaluation: int, build_name: str, as_json: bool) -> None:
    """Abort one build of an evaluation; what needs it there fails with it.

    Refused when another evaluation in flight needs the build.

    \b
    Example:
      gradient build abort 12 71
    """
    number = find_build(context, build_name)
    report = context.value("select gradient.abort_build(%s, %s)", [evaluation, number])
    if as_json:
        print_json({"id": number, "evaluation": evaluation, **report})
        return
    say(f"build {number} is aborted, and {report['dependents']} builds failed that need it")


@build.command(epilog=_NAMES)
@click.argument("evaluation", type=click.IntRange(1))
@click.argument("build_name", metavar="BUILD")
@json_option
@pass_context
def retry(context: Context, *, evaluation: int, build_name: str, as_json: bool) -> None:
    """Try a failed or aborted build of an evaluation again, with what failed because of it.

    \b
    Examples:
      gradient build retry 12 71
      gradient build retry 12 packages.x86_64-linux.default@12
    """
    number = find_build(context, build_name)
    report = context.value("select gradient.retry_build(%s, %s)", [evaluation, number])
    if as_json:
        print_json({"id": number, "evaluation": evaluation, **report})
        return
    say(f"build {number} is tried again; {report['builds']} builds came back")
    if report["reopened"]:
        say(f"evaluation {evaluation} goes on: gradient eval watch {evaluation}")


@build.command(epilog=_NAMES)
@click.argument("build_name", metavar="BUILD")
@json_option
@pass_context
def prioritize(context: Context, *, build_name: str, as_json: bool) -> None:
    """Let a build go first, with everything it waits for.

    \b
    Example:
      gradient build prioritize 71
    """
    number = find_build(context, build_name)
    report = context.value("select gradient.prioritize_build(%s)", [str(number)])
    if as_json:
        print_json({"id": number, **report})
        return
    say(f"build {number} goes first, {report['builds']} builds in all")
