"""`gradient db`: migrating, deploying and checking the database."""

from __future__ import annotations

import sys

import click

from gradient.cli.context import Context, pass_context
from gradient.cli.failures import REFUSED
from gradient.cli.options import json_option
from gradient.cli.output import Column, note, print_json, print_table, say
from gradient.cli.upgrading import UpgradingGroup
from gradient.db import deploy as deployer
from gradient.db import migrate as migrations
from gradient.db import verify as verifier
from gradient.db.deploy import DeployReport
from gradient.db.lock import maintenance_connection
from gradient.db.script import script
from gradient.db.settings import complaints
from gradient.db.source import sql_root


@click.group(cls=UpgradingGroup)
def db() -> None:
    """Migrate, deploy and check the database.

    Tables are migrated, functions are deployed: both are one command, and a server does both by
    itself when it starts. The embedded database is started for the command where it does not run.
    """


@db.command()
@json_option
@pass_context
def migrate(context: Context, *, as_json: bool) -> None:
    """Bring tables and functions to this version.

    Any number of servers may run meanwhile; two of these at once do the work once.

    \b
    Examples:
      gradient db migrate
      gradient --database postgresql://db.example.org/gradient db migrate
    """
    with context.database() as dsn:
        report = deployer.upgrade(dsn, sql_root(), role_prefix=context.config.database.role_prefix)
    _report(report, as_json=as_json)


@db.command()
@click.option("--force", is_flag=True, help="Deploy even if nothing has changed.")
@json_option
@pass_context
def deploy(context: Context, *, force: bool, as_json: bool) -> None:
    """Replace the functions, views, triggers and grants by those of this version.

    Part of `db migrate`; alone it is for repairing what was changed by hand.

    \b
    Examples:
      gradient db deploy
      gradient db deploy --force
    """
    with context.database() as dsn:
        prefix = context.config.database.role_prefix
        report = deployer.deploy(dsn, sql_root(), role_prefix=prefix, force=force)
    _report(report, as_json=as_json)


def _report(report: DeployReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    for name in report.migrations:
        say(f"migrated  {name}")
    if report.deployed:
        say(f"deployed  {len(report.created)} objects, dropped {len(report.dropped)}")
    if not report.migrations and not report.deployed:
        say("up to date")
    for text in report.notes:
        note(f"note: {text}")


@db.command()
@json_option
@pass_context
def status(context: Context, *, as_json: bool) -> None:
    """Say which migrations this database has; exit code 1 when some are missing.

    \b
    Examples:
      gradient db status
      gradient db status --json
    """
    with context.database() as dsn:
        found = migrations.status(dsn, sql_root())
    rows = [{"migration": item.name, "applied": item.applied} for item in found]
    if as_json:
        print_json(rows)
    else:
        columns = [Column("MIGRATION", "migration"), Column("APPLIED", "applied")]
        print_table(rows, columns, empty="This version has no migrations.")
    if not all(item.applied for item in found):
        if not as_json:
            note("gradient db migrate applies what is missing")
        sys.exit(REFUSED)


@db.command()
@pass_context
def sql(context: Context) -> None:
    """Print everything that a deployment makes, for a DBA to read first.

    One script, in an order that psql can run on an empty database; needs no database itself.

    \b
    Examples:
      gradient db sql | less
    """
    click.echo(script(sql_root(), role_prefix=context.config.database.role_prefix), nl=False)


@db.command()
@json_option
@pass_context
def verify(context: Context, *, as_json: bool) -> None:
    """Find what differs from this version: changed by hand, missing, not ours.

    Exit code 1 when something does.

    \b
    Examples:
      gradient db verify
      gradient db verify --json
    """
    with context.database() as dsn:
        drifts = verifier.verify(dsn, sql_root())
        with maintenance_connection(dsn) as conn:
            settings = complaints(conn)
    if as_json:
        print_json({"drift": drifts, "settings": settings})
    else:
        rows = [{"identity": drift.identity, "problem": drift.problem} for drift in drifts]
        columns = [Column("OBJECT", "identity"), Column("PROBLEM", "problem")]
        print_table(rows, columns, empty="The database holds what this version would deploy.")
        for text in settings:
            note(f"setting: {text}")
        if drifts:
            note("gradient db deploy --force brings these to this version")
    if drifts:
        sys.exit(REFUSED)
