"""`gradient task`: which flake to build, and which of its attributes."""

from __future__ import annotations

from typing import Any

import click
from psycopg.types.json import Jsonb

from gradient.cli.context import Context, pass_context
from gradient.cli.failures import Failure
from gradient.cli.options import TaskName, TaskNameType, json_option
from gradient.cli.output import (
    Column,
    age,
    print_details,
    print_json,
    print_table,
    say,
    status_text,
)

DEFAULT_WILDCARD = "packages.x86_64-linux.*"
CONCURRENCY = ("HardAbort", "SoftAbort", "All", "Skip")


@click.group()
def task() -> None:
    """Create and list tasks: a flake, and the attributes of it to build."""


@task.command()
@click.argument("name", type=TaskNameType())
@click.option("--repository", required=True, help="URL to clone, or a /nix/store path.")
@click.option(
    "--wildcard",
    default=DEFAULT_WILDCARD,
    show_default=True,
    help="Attributes to build, separated by commas; * stands for any name, ! excludes.",
)
@click.option("--revision", help="Branch, tag or commit; the default branch without.")
@click.option("--display-name", help="Name for people.")
@click.option(
    "--concurrency",
    type=click.Choice(CONCURRENCY, case_sensitive=False),
    help="What a new evaluation does to one that runs.",
)
@click.option("--wait-for-workers", is_flag=True, help="Never abort for want of a fitting worker.")
@click.option("--eval-timeout", type=click.IntRange(1), help="Seconds an evaluation may take.")
@click.option("--eval-memory", type=click.IntRange(1), help="MiB an evaluation may use.")
@click.option("--allow-ifd", is_flag=True, help="Allow import from derivation.")
@json_option
@pass_context
def create(
    context: Context,
    *,
    name: TaskName,
    repository: str,
    wildcard: str,
    revision: str | None,
    display_name: str | None,
    concurrency: str | None,
    wait_for_workers: bool,
    eval_timeout: int | None,
    eval_memory: int | None,
    allow_ifd: bool,
    as_json: bool,
) -> None:
    """Create a task of a project.

    \b
    Examples:
      gradient task create acme/site --repository https://example.org/site.git
      gradient task create acme/site --repository file:///srv/git/site.git --revision main
      gradient task create acme/tools --repository https://example.org/tools.git \\
          --wildcard 'packages.x86_64-linux.*,checks.x86_64-linux.*'
    """
    given: dict[str, Any] = {
        "revision": revision,
        "display_name": display_name,
        "concurrency": concurrency,
        "wait_for_workers": wait_for_workers or None,
        "eval_timeout_secs": eval_timeout,
        "eval_memory_mb": eval_memory,
        "allow_import_from_derivation": allow_ifd or None,
    }
    options = {key: value for key, value in given.items() if value is not None}
    number = context.value(
        "select gradient.create_task(%s, %s, %s, %s, %s)",
        [name.project, name.task, repository, wildcard, Jsonb(options)],
    )
    if as_json:
        print_json({"id": number, "project": name.project, "task": name.task})
        return
    say(f"task {name} created")
    say(f"next: gradient eval start {name} --watch")


@task.command("list")
@click.option("--project", help="Only the tasks of this project.")
@json_option
@pass_context
def list_(context: Context, *, project: str | None, as_json: bool) -> None:
    """List the tasks with their latest evaluation.

    \b
    Examples:
      gradient task list
      gradient task list --project acme --json
    """
    rows = context.rows(
        "select * from gradient.task_overview where %s::text is null or project = %s"
        " order by project, name",
        [project, project],
    )
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("PROJECT", "project"),
        Column("TASK", "name"),
        Column("REPOSITORY", "repository"),
        Column("WILDCARD", "wildcard"),
        Column("LATEST", "latest_evaluation", right=True),
        Column("STATUS", "latest_status", status_text),
        Column("STARTED", "latest_created_at", age),
    ]
    print_table(
        rows,
        columns,
        empty="There is no task: gradient task create <project>/<name> --repository …",
    )


@task.command()
@click.argument("name", type=TaskNameType())
@json_option
@pass_context
def show(context: Context, *, name: TaskName, as_json: bool) -> None:
    """Show one task.

    \b
    Example:
      gradient task show acme/site
    """
    row = context.row(
        "select * from gradient.task_overview where project = %s and name = %s",
        [name.project, name.task],
    )
    if row is None:
        raise Failure(f"there is no task {name}", hint="gradient task list")
    if as_json:
        print_json(row)
    else:
        print_details(row.items())
