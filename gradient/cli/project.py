"""`gradient project`: who owns tasks, and which caches their results go to."""

from __future__ import annotations

import click

from gradient.cache.signing import check_public_key
from gradient.cli.context import Context, pass_context
from gradient.cli.failures import Failure
from gradient.cli.options import json_option
from gradient.cli.output import Column, age, print_details, print_json, print_table, say

MODES = ("ReadWrite", "ReadOnly", "WriteOnly")
mode_option = click.option(
    "--mode",
    type=click.Choice(MODES, case_sensitive=False),
    default="ReadWrite",
    show_default=True,
    help="What the project does with the cache.",
)


@click.group()
def project() -> None:
    """Create and list projects, and subscribe them to caches.

    Workers receive jobs only from projects with a cache subscription.
    """


@project.command()
@click.argument("name")
@click.option("--display-name", help="Name for people; the name itself by default.")
@click.option("--public", is_flag=True, help="Readable without being a member.")
@click.option("--cache", "caches", multiple=True, help="Subscribe this cache (may be repeated).")
@json_option
@pass_context
def create(
    context: Context,
    *,
    name: str,
    display_name: str | None,
    public: bool,
    caches: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a project.

    \b
    Examples:
      gradient project create acme --cache main
      gradient project create acme --display-name "Acme Inc." --public
    """
    number = context.value(
        "select gradient.create_project(%s, %s, %s)", [name, display_name, public]
    )
    for cache in caches:
        context.value("select gradient.subscribe_cache(%s, %s, 'ReadWrite')", [name, cache])
    if as_json:
        print_json({"id": number, "name": name, "caches": list(caches)})
        return
    say(f"project {name} created")
    if not caches:
        say(f"next: gradient project subscribe {name} <cache>")


@project.command("list")
@json_option
@pass_context
def list_(context: Context, *, as_json: bool) -> None:
    """List the projects.

    \b
    Examples:
      gradient project list
      gradient project list --json
    """
    rows = context.rows("select * from gradient.project_overview order by name")
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("PROJECT", "name"),
        Column("NAME", "display_name"),
        Column("PUBLIC", "public"),
        Column("TASKS", "tasks", right=True),
        Column("CACHES", "caches"),
        Column("CREATED", "created_at", age),
    ]
    print_table(rows, columns, empty="There is no project yet: gradient project create <name>")


@project.command()
@click.argument("name")
@json_option
@pass_context
def show(context: Context, *, name: str, as_json: bool) -> None:
    """Show one project.

    \b
    Example:
      gradient project show acme
    """
    row = context.row("select * from gradient.project_overview where name = %s", [name])
    if row is None:
        raise Failure(f"there is no project {name}", hint="gradient project list")
    if as_json:
        print_json(row)
    else:
        print_details(row.items())


@project.command()
@click.argument("name")
@click.argument("cache")
@mode_option
@pass_context
def subscribe(context: Context, *, name: str, cache: str, mode: str) -> None:
    """Subscribe a project to a cache, or change how it uses it.

    \b
    Examples:
      gradient project subscribe acme main
      gradient project subscribe acme shared --mode ReadOnly
    """
    context.value("select gradient.subscribe_cache(%s, %s, %s)", [name, cache, mode])
    say(f"project {name} uses cache {cache} ({mode})")


@project.command("trust-key")
@click.argument("name")
@click.argument("public_key")
@pass_context
def trust_key(context: Context, *, name: str, public_key: str) -> None:
    """Let paths signed by a key back this project's outputs.

    \b
    Example:
      gradient project trust-key acme cache.example.org-1:uYQ3…=
    """
    try:
        check_public_key(public_key)
    except ValueError as error:
        raise Failure(str(error)) from error
    context.value("select gradient.trust_key(%s, %s)", [name, public_key])
    say(f"project {name} trusts {public_key.partition(':')[0]}")
