"""The command `gradient` itself: global options, and the commands, each loaded when called."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

# Command -> module and object that hold it, in the order in which `--help` lists them.
COMMANDS: Mapping[str, str] = {
    "up": "gradient.cli.up:up",
    "server": "gradient.cli.server:server",
    "db": "gradient.cli.db:db",
    "doctor": "gradient.cli.doctor:doctor",
    "project": "gradient.cli.project:project",
    "task": "gradient.cli.task:task",
    "cache": "gradient.cli.cache:cache",
    "worker-token": "gradient.cli.worker_token:worker_token",
    "eval": "gradient.cli.evaluation:evaluation",
    "build": "gradient.cli.build:build",
    "queue": "gradient.cli.pool:queue",
    "workers": "gradient.cli.pool:workers",
    "setting": "gradient.cli.setting:setting",
    "check": "gradient.cli.check:check",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None where there is none."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what a person caused becomes one line and an exit code."""
        from gradient.cli.failures import explained

        with explained():
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name="gradient-ci", prog_name="gradient")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file (TOML). Also: GRADIENT_CONFIG.",
)
@click.option("--database", metavar="URL", help="Database to use instead of the configured one.")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path, resolve_path=True),
    help="Folder of the embedded database, the objects and the keys.",
)
@click.pass_context
def root(
    ctx: click.Context, config_file: Path | None, database: str | None, state_dir: Path | None
) -> None:
    """Gradient: a Nix CI scheduler whose rules live in PostgreSQL.

    \b
    Examples:
      gradient up                                   everything in this terminal
      gradient cache create main --public
      gradient project create acme --cache main
      gradient task create acme/site --repository https://example.org/site.git
      gradient eval start acme/site --watch
      gradient build log packages.x86_64-linux.default@1

    Every list and show takes --json. Exit codes: 0 done, 1 refused or not found, 2 wrong usage
    or no database; eval watch and check have their own.
    """
    try:
        from gradient.cli.context import Context
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is not installed; the server's commands need it: "
            "pip install 'gradient-ci[server]'"
        ) from error
    if config_file is not None:
        os.environ["GRADIENT_CONFIG"] = str(config_file.resolve())
    flags = {"database.url": database, "state_dir": str(state_dir) if state_dir else None}
    shared = Context(flags)
    ctx.obj = shared
    ctx.call_on_close(shared.close)


def main() -> None:
    """Run the command line of this process."""
    try:
        root(prog_name="gradient")
    except BrokenPipeError:
        # `gradient ... | head`: the reader has seen enough.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(0)
    except SystemExit as leaving:
        if isinstance(leaving.code, int | None):
            _leave(leaving.code or 0)
        raise


def _leave(code: int) -> NoReturn:
    """End the process with this exit code.

    The object store's threads may be giving back Python objects still; while the interpreter takes
    itself down that aborts the process (one run in ten, exit code 134). Everything has been closed
    by now, so there is nothing to take down.
    """
    if "obstore" in sys.modules:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
