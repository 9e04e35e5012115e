"""`gradient setting`: what the rules in the database read."""

from __future__ import annotations

import click

from gradient.cli.context import Context, pass_context
from gradient.cli.options import json_option
from gradient.cli.output import Column, print_json, print_table, say


@click.group()
def setting() -> None:
    """List and change the settings that the rules read: graces, limits, intervals.

    They are rows of the database, in force for every server at once.
    """


@setting.command("list")
@json_option
@pass_context
def list_(context: Context, *, as_json: bool) -> None:
    """List every setting with its value, default, unit and meaning.

    \b
    Examples:
      gradient setting list
      gradient setting list --json
    """
    rows = context.rows(
        "select name, value, default_value, unit, description from gradient.setting order by name"
    )
    if as_json:
        print_json(rows)
        return
    columns = [
        Column("SETTING", "name"),
        Column("VALUE", "value"),
        Column("DEFAULT", "default_value"),
        Column("UNIT", "unit"),
        Column("MEANING", "description"),
    ]
    print_table(rows, columns, empty="This database has no settings: gradient db migrate")


@setting.command("set")
@click.argument("name")
@click.argument("value")
@pass_context
def set_(context: Context, *, name: str, value: str) -> None:
    """Change a setting; the database refuses a value that makes no sense.

    \b
    Examples:
      gradient setting set worker_grace 300
      gradient setting list
    """
    in_force = context.value("select gradient.set(%s, %s)", [name, value])
    say(f"{name} = {in_force}")
