"""Child processes: whatever they start is gone when they are."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.worker.nix.support import alive, processes_with
from worker.nix import processes

ENV = {"PATH": os.environ["PATH"]}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def word() -> str:
    """A word that stands in the command line of the test's own processes only."""
    return f"gradient-test-{secrets.token_hex(8)}"


def sleeper(word: str) -> str:
    """A shell command that sleeps long under a name that `processes_with` finds."""
    return f"sh -c 'sleep 300; : {word}'"


async def test_a_command_gives_back_exit_code_and_output() -> None:
    done = await processes.run(
        ["sh", "-c", "cat; echo error >&2; exit 7"], env=ENV, feed=b"input\n"
    )
    assert (done.returncode, done.stdout, done.error_text) == (7, b"input\n", "error")


async def test_a_signal_that_ends_a_command_shows_in_its_exit_code() -> None:
    done = await processes.run(["sh", "-c", "kill -9 $$"], env=ENV)
    assert done.returncode == 128 + signal.SIGKILL


async def test_a_command_that_does_not_exist_is_exit_code_127_with_its_name() -> None:
    done = await processes.run(["gradient-no-such-command"], env=ENV)
    assert done.returncode == 127
    assert "gradient-no-such-command" in done.error_text


async def test_a_daemon_in_a_session_of_its_own_is_killed_when_its_command_ends(
    word: str,
) -> None:
    script = f"setsid {sleeper(word)} </dev/null >/dev/null 2>&1 & exit 0"
    done = await processes.run(["sh", "-c", script], env=ENV, seconds=20)
    assert done.returncode == 0
    assert processes_with(word) == []


async def test_a_command_over_its_time_limit_is_stopped_with_its_children(word: str) -> None:
    with pytest.raises(processes.ProcessTimeoutError, match=r"within 0\.5 s"):
        await processes.run(["sh", "-c", f"{sleeper(word)} & wait"], env=ENV, seconds=0.5)
    assert processes_with(word) == []


async def test_a_command_that_writes_too_much_is_stopped() -> None:
    with pytest.raises(processes.OutputTooLargeError):
        await processes.run(["yes"], env=ENV, max_output=100_000)


async def test_a_cancelled_caller_leaves_no_process(word: str) -> None:
    task = asyncio.create_task(processes.run(["sh", "-c", sleeper(word)], env=ENV))
    while not processes_with(f"{word}"):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(word) == []


async def test_what_ignores_sigterm_is_killed_after_the_grace(word: str) -> None:
    script = f"trap '' TERM; echo ready; setsid {sleeper(word)} & wait; {sleeper(word)}"
    process = await processes.start(["sh", "-c", script], env=ENV, grace=0.3)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    assert await processes.stop(process) == 128 + signal.SIGKILL
    assert processes_with(word) == []


def test_the_death_of_the_parent_stops_everything(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"setsid sh -c 'echo $$ > {mark}; exec sleep 300' & exec sleep 300"
    program = (
        "import asyncio, os\n"
        "from worker.nix import processes\n"
        f"asyncio.run(processes.run(['sh', '-c', {script!r}], env=dict(os.environ)))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_until(lambda: mark.exists() and mark.read_text().strip(), 30, "the sleeper")
    finally:
        parent.kill()
        parent.wait()
    sleeper_pid = int(mark.read_text())
    wait_until(lambda: not alive(sleeper_pid), what="the end of the sleeper")


async def test_resident_memory_counts_everything_below_a_process() -> None:
    program = "x = bytearray(80 << 20); print('ready', flush=True); import time; time.sleep(60)"
    script = f'{sys.executable} -c "{program}" & wait'
    process = await processes.start(["sh", "-c", script], env=ENV)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        assert processes.resident_bytes(process.pid) > 80 << 20
    finally:
        await processes.stop(process)


async def test_children_are_listed_with_those_that_ended_unreaped() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import subprocess, time; p = subprocess.Popen(['true']); print(p.pid, flush=True);"
        "time.sleep(60)",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        pid = int(await process.stdout.readline())
        wait_until(lambda: not alive(pid))
        assert processes.children(process.pid) == [pid]
        assert processes.parent(pid) == process.pid
    finally:
        process.kill()
        await process.wait()
