"""`gradient check`: the consistency check, for cron."""

from __future__ import annotations

import sys
from typing import Any

import click

from gradient.cli.context import Context, pass_context
from gradient.cli.failures import Failure, explained
from gradient.cli.options import json_option
from gradient.cli.output import Column, duration, print_json, print_table, say

REPAIRED = 1
VIOLATIONS_LEFT = 2
COULD_NOT_RUN = 3


class CheckCommand(click.Command):
    """A command whose wrong usage ends with COULD_NOT_RUN: 2 says that violations are left."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # click declares it a class variable, and reads it of the instance.
            error.__dict__["exit_code"] = COULD_NOT_RUN
            raise


@click.command(cls=CheckCommand)
@click.option(
    "--budget",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="Stop where it is after so long; the setting check.budget without.",
)
@json_option
@pass_context
def check(context: Context, *, budget: int | None, as_json: bool) -> None:
    """Check every counter, mark and list of the database, and repair what is wrong.

    Runs beside working servers and is meant for cron. Exit codes: 0 clean, 1 repaired, 2 something
    is wrong that it cannot repair, 3 it could not run (no database, a standby, another one runs).

    \b
    Examples:
      gradient check
      gradient check --budget 600 --json
    """
    report = _run(context, budget)
    if not report["ran"]:
        raise Failure(
            "another consistency check runs in this database",
            hint="wait for it, or look: select * from pg_stat_activity"
            " where query like 'call gradient.consistency_check%'",
            exit_code=COULD_NOT_RUN,
        )
    if as_json:
        print_json(report)
    else:
        _print(report)
    sys.exit(VIOLATIONS_LEFT if report["violations"] else REPAIRED if report["drift"] else 0)


def _run(context: Context, budget: int | None) -> dict[str, Any]:
    """Call the procedure; whatever keeps it from running ends with COULD_NOT_RUN."""
    try:
        with explained():
            # The time limit of one statement would count the pauses, too.
            context.rows("set statement_timeout = 0")
            report: dict[str, Any] = context.value(
                "call gradient.consistency_check(make_interval(secs => %s), null)", [budget]
            )
    except Failure as failure:
        raise Failure(
            failure.message, detail=failure.detail, hint=failure.hint, exit_code=COULD_NOT_RUN
        ) from failure
    return report


def _print(report: dict[str, Any]) -> None:
    columns = [
        Column("STEP", "step"),
        Column("DRIFT", "drift", right=True),
        Column("CHUNKS", "chunks", right=True),
        Column("TOOK MS", "milliseconds", right=True),
    ]
    print_table(report["steps"], columns, empty="No step was finished.")
    took = duration(report["milliseconds"] / 1000)
    if not report["complete"]:
        say(f"stopped after {took}, before the end: --budget gives it longer")
    if report["violations"]:
        say(f"{report['violations']} violations are left: select * from gradient.violations();")
    if report["drift"]:
        say(f"{report['drift']} values were wrong and have been repaired: gradient.drift has them")
    elif not report["violations"] and report["complete"]:
        say(f"clean, after {took}")
