"""`gradient-worker`: run a worker, or check whether this machine can be one."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import structlog

from worker import __doc__ as package_doc
from worker.agent import Agent
from worker.config import (
    DEFAULT_SERVER,
    SYSTEM_CONFIG,
    ConfigError,
    WorkerConfig,
    default_state_dir,
    own_worker_id,
    read_file,
    read_tokens,
)
from worker.nix import processes
from worker.nix.check import check as check_machine
from worker.nix.errors import NixError
from worker.nix.settings import NixSettings, detect

EXIT_UNUSABLE: Final = 1
EXIT_CONFIG: Final = 2
EXIT_STOPPED_AT_ONCE: Final = 130


def _load_file(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """Make the file's options the defaults of this call; environment and flags win over them."""
    path = value or (SYSTEM_CONFIG if SYSTEM_CONFIG.exists() else None)
    if path is not None:
        try:
            options = read_file(path)
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
        known = {parameter.name for parameter in run.params} - {"config"}
        if unknown := sorted(options.keys() - known):
            raise click.UsageError(
                f"{path} has the unknown option {unknown[0]!r}; "
                f"there are {', '.join(sorted(filter(None, known)))}"
            )
        ctx.default_map = {**options, **(ctx.default_map or {})}
    return path


_OPTIONS: Final = (
    click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_load_file,
        show_default=str(SYSTEM_CONFIG),
        help="TOML file; environment and flags win over it.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state_dir,
        show_default="/var/lib/gradient-worker as root, else ~/.local/state/gradient-worker",
        help="The worker's own folder: its id, caches, temporary files.",
    ),
    click.option(
        "--nix-option",
        "nix_options",
        type=(str, str),
        multiple=True,
        metavar="NAME VALUE",
        help="A setting for Nix, as in nix.conf. Repeatable.",
    ),
)


def _common(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_CONTEXT: Final = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "GRADIENT_WORKER",
}


@click.group(help=package_doc, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gradient-ci", prog_name="gradient-worker")
def main() -> None:
    """The group that the commands hang on."""


@main.command(context_settings=_CONTEXT)
@_common
@click.option(
    "--server", default=DEFAULT_SERVER, show_default=True, metavar="URL", help="The server."
)
@click.option(
    "--id",
    "worker_id",
    envvar="GRADIENT_WORKER_ID",
    help="The worker's id. Default: made once, then kept.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the worker's tokens, one a line.",
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    envvar="GRADIENT_WORKER_TOKEN",
    help="A token; better kept in a file. Repeatable.",
)
@click.option(
    "--build-slots",
    type=click.IntRange(0, 1024),
    default=lambda: os.cpu_count() or 1,
    show_default="number of processors",
    help="Builds at once; 0 for none.",
)
@click.option(
    "--eval-slots",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Evaluations at once, fetching included; 0 for none.",
)
@click.option(
    "--architecture",
    "architectures",
    multiple=True,
    envvar="GRADIENT_WORKER_ARCHITECTURES",
    help="A system to build for, instead of those that Nix names. Repeatable.",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    envvar="GRADIENT_WORKER_FEATURES",
    help="A system feature to announce, instead of those that Nix names. Repeatable.",
)
@click.option("--zone", help="Label of the network this machine is in.")
@click.option("--endpoint", help="Address at which other workers reach this one.")
@click.option("--log-json", is_flag=True, help="Status lines as JSON.")
@click.pass_context
def run(
    ctx: click.Context,
    state_dir: Path,
    nix_options: Sequence[tuple[str, str]],
    server: str,
    worker_id: str | None,
    token_file: Path | None,
    tokens: Sequence[str],
    build_slots: int,
    eval_slots: int,
    architectures: Sequence[str],
    features: Sequence[str],
    zone: str | None,
    endpoint: str | None,
    log_json: bool,
) -> None:
    """Work for a server until stopped.

    SIGTERM or Ctrl-C hands the running jobs back and ends with 0; a second one ends at once.
    Every option can be set as GRADIENT_WORKER_<NAME>, such as GRADIENT_WORKER_TOKEN_FILE.

    \b
    Examples:
      gradient-worker run --server https://ci.example.org --token-file /etc/gradient/token
      GRADIENT_WORKER_BUILD_SLOTS=8 gradient-worker run --eval-slots 0
    """
    _log_to_terminal(as_json=log_json)
    if not build_slots and not eval_slots:
        raise click.UsageError("with neither build slots nor evaluation slots there is no work")
    try:
        state_dir = state_dir.absolute()
        all_tokens = [*tokens, *(read_tokens(token_file) if token_file else [])]
        if not all_tokens:
            raise ConfigError(
                "no token: create one on the server with `gradient worker-token create` "
                "and give it with --token-file"
            )
        config = WorkerConfig(
            server=server,
            worker_id=worker_id or own_worker_id(state_dir),
            tokens=all_tokens,
            build_slots=build_slots,
            eval_slots=eval_slots,
            state_dir=state_dir,
            architectures=architectures,
            system_features=features or None,
            zone=zone,
            endpoint=endpoint,
            nix_options=dict(nix_options),
        )
        with _own_state_dir(state_dir):
            asyncio.run(_work(config))
    except ConfigError as error:
        click.echo(f"gradient-worker: {error}", err=True)
        ctx.exit(EXIT_CONFIG)
    except NixError as error:
        click.echo(f"gradient-worker: {error}", err=True)
        ctx.exit(EXIT_UNUSABLE)


@main.command(context_settings=_CONTEXT)
@_common
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    state_dir: Path,
    nix_options: Sequence[tuple[str, str]],
    as_json: bool,
) -> None:
    """Tell whether this machine can be a worker; builds a derivation of one second.

    Ends with 0 when it can, else with 1.

    \b
    Example:
      gradient-worker check --json
    """
    settings = NixSettings(state_dir=state_dir.absolute(), options=dict(nix_options))
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        click.echo(f"gradient-worker: {state_dir}: {error.strerror}", err=True)
        ctx.exit(EXIT_CONFIG)
    report = asyncio.run(check_machine(settings))
    if as_json:
        found = [{"problem": one.problem, "text": one.text} for one in report.findings]
        click.echo(json.dumps({"fit": report.fit, "findings": found}))
    else:
        for finding in report.findings:
            click.echo(f"{'✗' if finding.problem else '✓'} {finding.text}")
        click.echo("This machine can be a worker." if report.fit else "This machine cannot work.")
    ctx.exit(0 if report.fit else EXIT_UNUSABLE)


async def _work(config: WorkerConfig) -> None:
    settings = NixSettings(state_dir=config.state_dir, options=_announced(config))
    installation = await detect(settings)
    structlog.get_logger("worker").info(
        "Starting.",
        worker=config.worker_id,
        server=config.server,
        nix=installation.version,
        systems=", ".join(sorted(config.architectures or installation.systems)),
        build_slots=config.build_slots,
        eval_slots=config.eval_slots,
    )
    agent = Agent(config, settings, installation)
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            for pid in processes.descendants(os.getpid()):
                processes.kill(pid)
            os._exit(EXIT_STOPPED_AT_ONCE)
        asked = True
        agent.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await agent.run()


def _announced(config: WorkerConfig) -> dict[str, str]:
    """The settings for Nix, with what is announced: Nix refuses what it does not know of itself."""
    options: dict[str, str] = {}
    if config.architectures:
        options["extra-platforms"] = " ".join(config.architectures)
    if config.system_features is not None:
        options["system-features"] = " ".join(config.system_features)
    return {**options, **config.nix_options}


@contextmanager
def _own_state_dir(state_dir: Path) -> Iterator[None]:
    """Hold the state folder, so that no second worker uses it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"the state folder {state_dir} cannot be used: {error.strerror}; "
            "give another one with --state-dir"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another worker uses the state folder {state_dir}: "
                "stop it, or give this one its own with --state-dir"
            ) from None
        yield


def _log_to_terminal(*, as_json: bool) -> None:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if as_json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
