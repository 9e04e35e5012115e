"""`gradient up`: everything on one machine, in one terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import click
import psycopg

from gradient.app import Server
from gradient.cli.context import Context, pass_context
from gradient.cli.failures import REFUSED
from gradient.cli.local_worker import LocalWorker, program, worker_id, write_token
from gradient.cli.logs import configure_logs
from gradient.cli.output import note, say
from gradient.cli.server import add_flags, listen_options, startup_failures
from gradient.cli.serving import served_database
from gradient.config import Config
from gradient.db.call import call
from gradient.db.connect import Connection, connect

POLL_SECONDS = 1.0


@click.command()
@listen_options
@click.option("--worker/--no-worker", default=True, help="Run a local worker too (the default).")
@click.option("--build-slots", type=click.IntRange(0), help="Builds at once.")
@click.option("--eval-slots", type=click.IntRange(0), help="Evaluations at once.")
@pass_context
def up(
    context: Context,
    *,
    host: str | None,
    port: int | None,
    instance: str | None,
    worker: bool,
    build_slots: int | None,
    eval_slots: int | None,
) -> None:
    """Run database, server and a local worker in this terminal, until Ctrl-C.

    The embedded database is used where none is configured; what is built stays in the state
    folder. The local worker serves every project. Without Nix on this machine the server runs
    alone. Ctrl-C or SIGTERM stops everything in order; running builds go back to the queue.

    \b
    Examples:
      gradient up
      gradient up --port 0 --build-slots 4
      gradient --state-dir ~/ci up
    """
    add_flags(context, host=host, port=port, instance=instance)
    configure_logs(context.config.log)
    slots = {"--build-slots": build_slots, "--eval-slots": eval_slots}
    options = [f"{name}={number}" for name, number in slots.items() if number is not None]
    with startup_failures(), served_database(context.config) as config:
        asyncio.run(_run(config, options if worker else None))


async def _run(config: Config, worker_options: list[str] | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(config)
    await server.start()
    worker: LocalWorker | None = None
    tasks: set[asyncio.Task[object]] = set()
    try:
        stop = asyncio.create_task(stopping.wait())
        failed = asyncio.create_task(server.until_failed())
        tasks = {stop, failed}
        if worker_options is not None:
            worker = await _local_worker(config, server.url, worker_options)
        say(f"Gradient serves {server.url} (Ctrl-C stops it)")
        if worker is not None:
            tasks.add(asyncio.create_task(_keep(worker, config.database.url)))
        await asyncio.wait({stop, failed}, return_when=asyncio.FIRST_COMPLETED)
        broken = failed.done() and not stop.done()
    finally:
        note("stopping …")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if worker is not None:
            await worker.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await server.stop()
    if broken:
        sys.exit(REFUSED)


async def _local_worker(config: Config, url: str, options: list[str]) -> LocalWorker | None:
    """Register the local worker; None, with a word why, where there is no program for it."""
    command = program()
    if command is None:
        note(
            "no local worker: gradient-worker is not installed (pip install 'gradient-ci[worker]')"
        )
        return None
    path, token = write_token(config.state_dir)
    name = worker_id(config.instance)
    conn = await connect(config.database.url, audience="operator", name="gradient up")
    async with conn:
        await call(conn, "gradient.register_local_worker", name, token.sha256)
    return LocalWorker(
        [
            command,
            "run",
            f"--server={url}",
            f"--id={name}",
            f"--token-file={path}",
            f"--state-dir={config.state_dir / 'worker'}",
            *options,
            *(["--log-json"] if config.log.format == "json" else []),
        ]
    )


async def _keep(worker: LocalWorker, dsn: str) -> None:
    await _until_served(dsn)
    code = await worker.run()
    note(
        f"the local worker cannot run (exit code {code}): gradient-worker check says what this "
        "machine lacks; the server goes on without it",
        style="yellow",
    )


async def _until_served(dsn: str) -> None:
    """Wait for the first project that workers may serve: before it, every worker is refused."""
    said = False
    while True:
        try:
            async with await connect(dsn, audience="operator", name="gradient up") as conn:
                while not await _served(conn):
                    if not said:
                        said = True
                        note("the local worker starts with the first project that has a cache")
                    await asyncio.sleep(POLL_SECONDS)
                return
        except psycopg.OperationalError:
            await asyncio.sleep(POLL_SECONDS)


async def _served(conn: Connection) -> bool:
    found = await conn.execute("select exists (select from gradient.project_overview where served)")
    row = await found.fetchone()
    return bool(row and row[0])
