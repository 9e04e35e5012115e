"""`gradient-worker`: configuration, check, signals, and what is left when the process is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gradient import protocol as wire
from tests.support.nix_store import NixStore
from tests.support.scripted_server import TOKEN, Connection, ScriptedServer
from tests.support.waiting import wait_until
from tests.worker.drvs import make_drv
from worker.nix.processes import descendants

PROGRAM = str(Path(sys.executable).with_name("gradient-worker"))
Start = Callable[..., subprocess.Popen[bytes]]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_no_token_is_an_error_that_says_how_to_get_one(tmp_path: Path) -> None:
    done = run("run", "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "gradient worker-token create" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("# nothing yet\n\n")
    done = run("run", "--state-dir", str(tmp_path), "--token-file", str(tmp_path / "token"))
    assert done.returncode == 2
    assert f"{tmp_path}/token holds no token" in done.stderr


def test_no_slots_at_all_is_refused(tmp_path: Path) -> None:
    done = run("run", "--build-slots", "0", "--eval-slots", "0", "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "no work" in done.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("build-slots = [", "is not TOML"),
        ('colour = "red"', "unknown option 'colour'"),
        ("build-slots = -1", "build-slots"),
    ],
)
def test_a_wrong_configuration_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "worker.toml").write_text(text)
    done = run("run", "--config", str(tmp_path / "worker.toml"), "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_nix_the_worker_says_what_to_install(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    done = run("run", "--token", "t", "--state-dir", str(tmp_path / "state"), PATH=str(empty))
    assert done.returncode == 1
    assert "Nix is not installed" in done.stderr


@pytest_asyncio.fixture
async def start(server: ScriptedServer, store: NixStore, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts `gradient-worker run` as a process; all are killed at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def start_process(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "output").open("ab") as output:
            process = subprocess.Popen(
                [PROGRAM, "run", "--nix-option", "sandbox", "false", *arguments],
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(tmp_path),
                    "GRADIENT_WORKER_SERVER": server.url,
                    "GRADIENT_WORKER_TOKEN": TOKEN,
                    "GRADIENT_WORKER_STATE_DIR": str(tmp_path / "state"),
                    **environment,
                },
                stdout=output,
                stderr=output,
            )
        running.append(process)
        return process

    yield start_process
    for process in running:
        process.kill()
        process.wait()


async def until(is_so: Callable[[], bool], timeout: float = 20.0) -> None:
    await asyncio.to_thread(lambda: wait_until(is_so, timeout))


async def hello(server: ScriptedServer) -> tuple[Connection, wire.InitConnection]:
    connection = await server.connection()
    return connection, await connection.expect(wire.InitConnection)


@pytest.mark.nix
async def test_flags_win_over_the_environment_and_that_over_the_file(
    server: ScriptedServer, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "worker.toml").write_text(
        'id = "from-file"\nzone = "file"\nendpoint = "file"\nbuild-slots = 5\n'
        'architecture = ["armv7l-linux"]\nfeature = ["odd"]\n'
    )
    start(
        "--config",
        str(tmp_path / "worker.toml"),
        "--zone",
        "flag",
        GRADIENT_WORKER_ZONE="environment",
        GRADIENT_WORKER_ENDPOINT="environment",
    )
    connection, first = await hello(server)
    assert (first.worker_id, first.tokens) == ("from-file", [TOKEN])
    await connection.send(
        wire.InitAck(
            projects=[], can_fetch=True, can_eval=True, can_build=True, worker_grace_secs=120
        )
    )
    told = await connection.expect(wire.WorkerCapabilities)
    assert (told.zone, told.endpoint, told.build_slots) == ("flag", "environment", 5)
    assert (told.architectures, told.system_features) == (["armv7l-linux"], ["odd"])


@pytest.mark.nix
async def test_the_id_that_a_worker_gave_itself_stays(server: ScriptedServer, start: Start) -> None:
    process = start()
    connection, first = await hello(server)
    process.terminate()
    await connection.closed.wait()
    await asyncio.to_thread(process.wait, 20)
    start()
    _, second = await hello(server)
    assert first.worker_id == second.worker_id


@pytest.mark.nix
async def test_a_second_worker_in_the_same_state_folder_is_refused(
    server: ScriptedServer, start: Start, tmp_path: Path
) -> None:
    start()
    await server.connection()
    second = start()
    assert await asyncio.to_thread(second.wait, 30) == 2
    assert "another worker uses the state folder" in (tmp_path / "output").read_text()


@pytest.mark.nix
async def test_a_wrong_token_is_explained(
    server: ScriptedServer, start: Start, tmp_path: Path
) -> None:
    start("--id", "w7")
    connection, _ = await hello(server)
    await connection.send(wire.Reject(code=401, reason="no valid token for w7"))
    await until(lambda: "no valid token for w7" in (tmp_path / "output").read_text())
    assert "gradient worker-token create" in (tmp_path / "output").read_text()


@pytest.mark.nix
@pytest.mark.parametrize(
    "signals, code",
    [
        ([signal.SIGTERM], 0),
        ([signal.SIGINT], 0),
        ([signal.SIGKILL], -signal.SIGKILL),
    ],
)
async def test_a_worker_that_ends_leaves_no_process(
    server: ScriptedServer,
    start: Start,
    meeting: Path,
    signals: list[signal.Signals],
    code: int,
) -> None:
    made = make_drv("leftover", f": > {meeting}/started; sleep 300 & sleep 300").put(server)
    process = start()
    connection = await server.accepted()
    await server.assign(connection, made.job())
    await until((meeting / "started").exists)
    below = descendants(process.pid)
    assert len(below) >= 3
    for number in signals:
        process.send_signal(number)
    assert await asyncio.to_thread(process.wait, 20) == code
    await until(lambda: not any(alive(pid) for pid in below))


@pytest.mark.nix
async def test_a_second_sigterm_ends_a_stopping_worker_at_once(
    server: ScriptedServer, start: Start, meeting: Path
) -> None:
    made = make_drv("impatient", f": > {meeting}/started; sleep 300").put(server)
    process = start()
    connection = await server.accepted()
    connection.acknowledge = False
    await server.assign(connection, made.job())
    await until((meeting / "started").exists)
    below = descendants(process.pid)
    process.terminate()
    # Its last words are not acknowledged, so it would wait; the second signal ends that.
    await connection.expect(wire.Draining)
    process.terminate()
    assert await asyncio.to_thread(process.wait, 5) == 130
    await until(lambda: not any(alive(pid) for pid in below))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.nix
def test_check_builds_and_says_so_also_as_json(store: NixStore, tmp_path: Path) -> None:
    done = run("check", "--json", "--nix-option", "sandbox", "false", "--state-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["fit"]
    assert any("a build of one second succeeded" in one["text"] for one in found["findings"])


@pytest.mark.nix
async def test_a_worker_that_waits_for_a_silent_server_can_be_stopped(
    store: NixStore, start: Start, tmp_path: Path
) -> None:
    reached = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        process = start(GRADIENT_WORKER_SERVER=f"http://127.0.0.1:{port}")
        await asyncio.wait_for(reached.wait(), 30)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0
