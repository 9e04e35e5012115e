"""A server as a process of its own, to be sent signals, on a machine without Nix."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gradient.timing import Timing
from tests.support.database import Database
from tests.support.server_running import NO_TICK

_PROGRAM = """
import asyncio, sys
import msgspec, structlog
from gradient.app import Server
from gradient.config import load
from gradient.timing import Timing
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
timing = msgspec.json.decode(sys.argv[1], type=Timing)
asyncio.run(Server(load(), timing).run())
"""
START_SECONDS = 30.0


class ServerProcess:
    """A running server; `output` is what it has logged so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output = ""
        self.url = ""

    async def until_listening(self) -> None:
        """Read the log up to the address."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_SECONDS):
            while not (found := re.search(r"url=(http://[0-9.]+:\d+)", self.output)):
                line = await self.process.stderr.readline()
                if not line:
                    raise AssertionError(f"the server ended:\n{self.output}")
                self.output += re.sub(r"\x1b\[[0-9;]*m", "", line.decode())
        self.url = found[1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def ended(self, seconds: float = 30.0) -> int:
        """Wait for the end; the exit code."""
        assert self.process.stderr is not None
        async with asyncio.timeout(seconds):
            self.output += (await self.process.stderr.read()).decode()
            return await self.process.wait()


@asynccontextmanager
async def server_process(
    database: Database, folder: Path, timing: Timing = NO_TICK, *, instance: str = "server-1"
) -> AsyncIterator[ServerProcess]:
    """A server that listens; killed at the end of the block when it still runs.

    Its PATH holds an empty folder only.
    """
    nothing = folder / "empty"
    nothing.mkdir(parents=True, exist_ok=True)
    config_file = folder / "gradient.toml"
    config_file.touch()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        msgspec.json.encode(timing).decode(),
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "PATH": str(nothing),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "GRADIENT_CONFIG": str(config_file),
            "GRADIENT_STATE_DIR": str(folder),
            "GRADIENT_DATABASE_URL": database.dsn,
            "GRADIENT_INSTANCE": instance,
            "GRADIENT_LISTEN_PORT": "0",
        },
    )
    running = ServerProcess(process)
    try:
        await running.until_listening()
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
