"""`gradient server`: one server in the foreground."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from gradient.app import Server
from gradient.cli.context import Context, pass_context
from gradient.cli.failures import CANNOT_RUN, Failure
from gradient.cli.logs import configure_logs
from gradient.cli.serving import served_database
from gradient.instance import InstanceRunningError
from gradient.secrets import SecretError

Function = TypeVar("Function", bound=Callable[..., Any])


def listen_options(function: Function) -> Function:
    """Add `--host`, `--port` and `--instance`."""
    for option in (
        click.option("--instance", help="Name of this server; the host's name by default."),
        click.option("--port", type=click.IntRange(0, 65535), help="Port; 8420 by default."),
        click.option("--host", help="Address to listen on; 127.0.0.1 by default."),
    ):
        function = option(function)
    return function


def add_flags(
    context: Context, *, host: str | None, port: int | None, instance: str | None
) -> None:
    """Let the options of a command win over the configuration."""
    context.flags.update({"listen.host": host, "listen.port": port, "instance": instance})


@click.command()
@listen_options
@pass_context
def server(context: Context, *, host: str | None, port: int | None, instance: str | None) -> None:
    """Run a server until SIGTERM or Ctrl-C.

    It migrates its database first. Any number of servers run on one database, each with a name
    of its own; they share the object store and the secret file. Needs no Nix.

    \b
    Examples:
      gradient server
      gradient server --host 0.0.0.0 --port 8420
      GRADIENT_DATABASE_URL=postgresql://db/gradient gradient server --instance ci-2
    """
    add_flags(context, host=host, port=port, instance=instance)
    configure_logs(context.config.log)
    with startup_failures(), served_database(context.config) as config:
        asyncio.run(Server(config).run())


@contextmanager
def startup_failures() -> Iterator[None]:
    """Raise what can go wrong at a server's start as a Failure."""
    try:
        yield
    except (InstanceRunningError, SecretError) as error:
        raise Failure(str(error), exit_code=CANNOT_RUN) from error
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise Failure(
            "the port is in use",
            hint="another server may run here; choose another one with --port",
            exit_code=CANNOT_RUN,
        ) from error
