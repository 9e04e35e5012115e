"""`gradient queue` and `gradient workers`: what waits to be built, and who could build it."""

from __future__ import annotations

import click

from gradient.cli.context import Context, pass_context
from gradient.cli.options import json_option
from gradient.cli.output import Column, age, print_json, print_table, status_text


@click.command()
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Rows.")
@json_option
@pass_context
def queue(context: Context, *, limit: int, as_json: bool) -> None:
    """List the evaluations and builds that wait for a worker, next one first.

    \b
    Examples:
      gradient queue
      gradient queue --limit 500 --json
    """
    rows = context.rows("select * from gradient.queue limit %s", [limit])
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("KIND", "kind"),
        Column("ID", "number", right=True),
        Column("NAME", "name"),
        Column("SYSTEM", "architecture"),
        Column("FEATURES", "required_features"),
        Column("PROJECT", "project"),
        Column("PRIORITY", "priority", right=True),
        Column("QUEUED", "queued_at", age),
    ]
    shown = [{**row, "number": row["build"] or row["evaluation"]} for row in rows]
    print_table(shown, columns, empty="Nothing waits for a worker.")


@click.command()
@json_option
@pass_context
def workers(context: Context, *, as_json: bool) -> None:
    """List the workers: connected or not, what they can do, and what they are doing.

    \b
    Examples:
      gradient workers
      gradient workers --json
    """
    rows = context.rows("select * from gradient.worker_overview order by worker")
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("WORKER", "worker"),
        Column("STATE", "state", status_text),
        Column("CAN", "capabilities"),
        Column("SYSTEMS", "architectures"),
        Column("RUNNING", "running", right=True),
        Column("SLOTS", "build_slots", right=True),
        Column("SEEN", "last_seen", age),
    ]
    print_table(rows, columns, empty="No worker is registered or connected.")
