"""Child processes that leave nothing behind.

Each command runs below a small supervisor (`supervise.py`) that is a child subreaper: a builder
that Nix put into its own session, or a daemon that a build left running, can be found and stopped.
The supervisor is in a session of its own, so that Ctrl-C on the worker's terminal reaches the
worker only, and dies with the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.nix import supervise
from worker.nix.errors import NixError

STOP_GRACE_SECONDS: Final = 5.0
_SUPERVISOR: Final = str(Path(supervise.__file__).resolve())

descendants = supervise.descendants


class ProcessTimeoutError(NixError):
    """A command did not end within its time limit and was stopped."""


class OutputTooLargeError(NixError):
    """A command wrote more than its caller is prepared to hold and was stopped."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left: its exit code (128 + signal number when killed) and what it wrote."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def error_text(self) -> str:
        """Standard error as text, for a message."""
        return self.stderr.decode("utf-8", "replace").strip()


async def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
    grace: float = STOP_GRACE_SECONDS,
    limit: int = 1 << 20,
) -> asyncio.subprocess.Process:
    """Start a command below a supervisor.

    Parameters:
        argv: the command; its first word is looked up in PATH.
        env: the whole environment.
        stdin, stdout, stderr: as for `asyncio.create_subprocess_exec`.
        grace: seconds between SIGTERM and SIGKILL when it is stopped.
        limit: bytes that a stream reader buffers before it stops reading.

    Returns:
        The supervisor: it ends once the command and all its descendants have, and SIGTERM on it
        stops them. `command_pid` tells the command's own process.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        _SUPERVISOR,
        str(os.getpid()),
        str(grace),
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        limit=limit,
    )


async def stop(process: asyncio.subprocess.Process) -> int:
    """Stop a supervised command and wait until every descendant is gone.

    Returns:
        The exit code. Returns at once when it has ended before.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    return await asyncio.shield(process.wait())


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`, ended ones that it has not reaped included."""
    try:
        listed = [
            int(child)
            for tasks in Path(f"/proc/{pid}/task").iterdir()
            for child in (tasks / "children").read_bytes().split()
        ]
    except FileNotFoundError:
        # It ended, or this kernel does not list children.
        listed = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [child for child in listed if parent(child) == pid]


def parent(pid: int) -> int | None:
    """The parent of a process; None for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def kill(pid: int) -> None:
    """SIGKILL a process; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def resident_bytes(root: int) -> int:
    """Resident memory of a process and everything below it, in bytes; shared pages count twice."""
    total = 0
    for pid in (root, *descendants(root)):
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    feed: bytes | None = None,
    seconds: float | None = None,
    max_output: int = 256 << 20,
) -> Completed:
    """Run a command to its end and collect what it writes.

    A cancelled caller stops the command; it is gone when the cancellation goes on.

    Parameters:
        feed: what the command reads from standard input; None for nothing.
        seconds: the time limit; None for none.
        max_output: bytes of standard output to hold at most; of standard error the last 1 MiB is
            kept.

    Raises:
        ProcessTimeoutError, OutputTooLargeError: the command was stopped.
    """
    process = await start(
        argv,
        env=env,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL if feed is None else asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            _, stdout, stderr = await asyncio.gather(
                _feed(process, feed),
                _collect(process.stdout, max_output, argv),
                _collect_tail(process.stderr, 1 << 20),
            )
            returncode = await process.wait()
    except TimeoutError:
        raise ProcessTimeoutError(f"{argv[0]} did not end within {seconds:g} s") from None
    finally:
        await stop(process)
    return Completed(returncode, stdout, stderr)


async def _feed(process: asyncio.subprocess.Process, data: bytes | None) -> None:
    if data is None or process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _collect(stream: asyncio.StreamReader | None, limit: int, argv: Sequence[str]) -> bytes:
    assert stream is not None
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(1 << 18):
        size += len(piece)
        if size > limit:
            raise OutputTooLargeError(f"{argv[0]} wrote more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _collect_tail(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    assert stream is not None
    kept = bytearray()
    while piece := await stream.read(1 << 16):
        kept += piece
        if len(kept) > 2 * limit:
            del kept[:-limit]
    return bytes(kept[-limit:])
