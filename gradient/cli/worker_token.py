"""`gradient worker-token`: registering workers of a project."""

from __future__ import annotations

import click

from gradient.cli.context import Context, pass_context
from gradient.cli.options import json_option
from gradient.cli.output import Column, age, note, print_json, print_table, say
from gradient.cli.tokens import Token


@click.group("worker-token")
def worker_token() -> None:
    """Register workers: the token is what a worker proves its name with."""


@worker_token.command()
@click.argument("project")
@click.argument("worker")
@json_option
@pass_context
def create(context: Context, *, project: str, worker: str, as_json: bool) -> None:
    """Register a worker under a project; its token is shown this once.

    A worker that serves several projects is registered under each, with a token each.

    \b
    Examples:
      gradient worker-token create acme builder-1
      gradient worker-token create acme builder-1 --json
    """
    token = Token.fresh()
    context.value("select gradient.register_worker(%s, %s, %s)", [project, worker, token.sha256])
    if as_json:
        print_json({"project": project, "worker": worker, "token": token.text})
        return
    say(token.text)
    note("This is the only time the token is shown.")


@worker_token.command("list")
@json_option
@pass_context
def list_(context: Context, *, as_json: bool) -> None:
    """List the registrations, with the projects each worker serves.

    \b
    Example:
      gradient worker-token list
    """
    rows = context.rows(
        "select * from gradient.worker_registration_overview order by worker, project"
    )
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("WORKER", "worker"),
        Column("PROJECT", "project"),
        Column("ACTIVE", "active"),
        Column("CREATED", "created_at", age),
    ]
    print_table(
        rows, columns, empty="No worker is registered: gradient worker-token create <project> <id>"
    )
