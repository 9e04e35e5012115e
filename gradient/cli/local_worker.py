"""The worker that `gradient up` runs beside the server: registered, started, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import structlog

from gradient.cli.tokens import Token

TOKEN_FILE: Final = "local-worker-token"
STOP_SECONDS: Final = 20.0
FIRST_DELAY_SECONDS: Final = 1.0
LONGEST_DELAY_SECONDS: Final = 30.0
# A worker that ran this long had started well: the delay begins anew.
SETTLED_SECONDS: Final = 60.0
# Exit codes of gradient-worker that another try does not change: no Nix, wrong configuration.
_HOPELESS: Final = (1, 2)
_PR_SET_PDEATHSIG: Final = 1

log = structlog.get_logger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


def worker_id(instance: str) -> str:
    """The id of an instance's local worker: `local-<instance>`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"local-{instance}")[:63]


def write_token(state_dir: Path) -> tuple[Path, Token]:
    """A fresh token in the state folder, readable by its owner only."""
    token = Token.fresh()
    path = state_dir / TOKEN_FILE
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token.text + "\n")
    fresh.replace(path)
    return path, token


def program() -> str | None:
    """The installed gradient-worker: beside this Python, else on the PATH."""
    beside = Path(sys.executable).with_name("gradient-worker")
    return str(beside) if beside.exists() else shutil.which("gradient-worker")


class LocalWorker:
    """One `gradient-worker run` beside us, started again when it dies.

    `command` is its whole command line. It runs in a session of its own, so that Ctrl-C in our
    terminal reaches us alone and we stop things in order; it gets SIGTERM when we are killed.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        """Keep it running until cancelled; returns its exit code when another try is hopeless."""
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY_SECONDS
        while True:
            started = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
            code = await self._process.wait()
            if code in _HOPELESS:
                return code
            log.warning("local worker ended", exit_code=code, retry_seconds=delay)
            if loop.time() - started > SETTLED_SECONDS:
                delay = FIRST_DELAY_SECONDS
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)

    async def stop(self) -> None:
        """Stop it: SIGTERM lets it hand its jobs back; after STOP_SECONDS it is killed."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            log.warning("local worker did not stop in time", seconds=STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
                await asyncio.sleep(1)
                process.kill()
            await process.wait()


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
