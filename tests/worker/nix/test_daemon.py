"""Building through a Nix daemon: what it ignores, and how the worker copes."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.nix_store import NixStore
from tests.support.waiting import wait_until
from tests.worker.nix.support import Nix, processes_with
from worker.nix.building import BuildLimits, BuildSlot
from worker.nix.check import check
from worker.nix.classify import Stop
from worker.nix.serve import BuildStatus, PathInfo, ServeProcess
from worker.nix.settings import NixSettings, detect

pytestmark = pytest.mark.nix
ROOT = Path(__file__).parents[3]
SYSTEM_PYTHON = Path("/usr/bin/python3")


@pytest.fixture
def daemon(settings: NixSettings, own_store: NixStore) -> Iterator[None]:
    """A Nix daemon for the test's store."""
    socket = Path("/nix/var/nix/daemon-socket/socket")
    process = subprocess.Popen(
        ["nix-daemon"],
        env=settings.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(socket.exists, what="the daemon's socket")
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def through(settings: NixSettings, daemon: None) -> NixSettings:
    """The same store, reached through the daemon."""
    return NixSettings(settings.state_dir, settings.options, {"NIX_REMOTE": "daemon"})


async def test_the_daemon_is_noticed(through: NixSettings, settings: NixSettings) -> None:
    assert through.uses_daemon
    assert (await detect(through)).uses_daemon
    assert not settings.uses_daemon


async def test_a_build_through_the_daemon_gives_result_and_log(
    through: NixSettings, nix: Nix
) -> None:
    built = nix.derivation('sh "remote" "echo hello; echo > $out" { }')
    log = bytearray()
    slot = BuildSlot(through)
    report = await slot.build(built.request(), BuildLimits(total=60), log.extend)
    await slot.close()
    assert report.outcome == "built"
    assert b"hello" in log


async def test_nix_ignores_the_limits_of_every_build_but_the_first(
    through: NixSettings, nix: Nix
) -> None:
    serve = await ServeProcess.start(through)
    first = nix.derivation('sh "first" "echo > $out" { }')
    assert (await serve.build(first.request(timeout=60), lambda _: None)).success
    slow = nix.derivation('sh "slow" "sleep 3; echo > $out" { }')
    result = await serve.build(slow.request(timeout=1, max_silent=1), lambda _: None)
    await serve.close()
    assert result.status == BuildStatus.BUILT


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [(BuildLimits(total=1), "timeout_total"), (BuildLimits(silent=1), "timeout_silent")],
)
async def test_the_workers_own_clock_ends_a_build_that_nix_would_let_run(
    through: NixSettings, nix: Nix, limits: BuildLimits, outcome: str
) -> None:
    word = f"gradient-test-{secrets.token_hex(8)}"
    slot = BuildSlot(through)
    first = nix.derivation('sh "first" "echo > $out" { }')
    assert (await slot.build(first.request(), BuildLimits(60, 60), lambda _: None)).success
    slow = nix.derivation(f'sh "slow" "sleep 300; : {word}" {{ }}')
    before = time.monotonic()
    report = await slot.build(slow.request(), limits, lambda _: None)
    assert report.outcome == outcome
    assert 1 <= time.monotonic() - before <= 3
    wait_until(lambda: processes_with(word) == [], what="the end of the daemon's builder")
    await slot.close()


async def test_a_stop_closes_the_connection_and_so_ends_the_daemons_builder(
    through: NixSettings, nix: Nix
) -> None:
    word = f"gradient-test-{secrets.token_hex(8)}"
    slot = BuildSlot(through)
    slow = nix.derivation(f'sh "slow" "sleep 300; : {word}" {{ }}')
    task = asyncio.create_task(slot.build(slow.request(), BuildLimits(), lambda _: None))
    while not processes_with(word):
        await asyncio.sleep(0.02)
    await slot.stop(Stop.ABORTED)
    assert (await task).outcome == "aborted"
    wait_until(lambda: processes_with(word) == [], what="the end of the daemon's builder")
    await slot.close()


async def test_a_daemon_that_goes_away_is_a_worker_fault(through: NixSettings, nix: Nix) -> None:
    built = nix.derivation('sh "x" "echo > $out" { }')
    Path("/nix/var/nix/daemon-socket/socket").unlink()
    slot = BuildSlot(through)
    report = await slot.build(built.request(), BuildLimits(), lambda _: None)
    await slot.close()
    assert report.outcome == "worker_fault"


async def test_an_unsigned_path_is_imported_for_a_trusted_user(
    through: NixSettings, nix: Nix, tmp_path: Path
) -> None:
    path = nix.add(tmp_path, "file", "text")
    serve = await ServeProcess.start(through)
    info = (await serve.path_infos([path]))[path]
    nar = b"".join([piece async for piece in serve.dump(info)])
    await serve.close()
    nix.run("nix-store", "--delete", path)

    async def once(data: bytes) -> AsyncIterator[bytes]:
        yield data

    serve = await ServeProcess.start(through)
    await serve.add(PathInfo(path, info.nar_hash, info.nar_size), once(nar))
    assert await serve.valid_paths([path]) == {path}
    await serve.close()


async def test_check_says_daemon_and_fit_for_a_trusted_user(through: NixSettings) -> None:
    report = await check(through)
    assert report.fit
    assert any("Nix daemon" in finding.text for finding in report.findings)


def test_check_refuses_an_untrusted_user_and_says_what_to_do(
    through: NixSettings, tmp_path: Path
) -> None:
    if os.access("/root", os.X_OK) and not SYSTEM_PYTHON.exists():
        pytest.skip("the user nobody needs a Python outside of root's home")
    program = """
import asyncio, sys
from pathlib import Path
from worker.nix.check import check
from worker.nix.settings import NixSettings
report = asyncio.run(check(NixSettings(Path(sys.argv[1]), {}, {"NIX_REMOTE": "daemon"})))
for finding in report.findings:
    print(finding.problem, finding.text)
sys.exit(0 if report.fit else 3)
"""
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    # This checkout may lie in root's home as well.
    code = tmp_path / "code"
    shutil.copytree(ROOT / "worker", code / "worker")
    state = tmp_path / "nobodys"
    state.mkdir()
    os.chown(state, 65534, 65534)
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            str(SYSTEM_PYTHON),
            "-c",
            program,
            str(state),
        ],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "True a build of one second failed" in done.stdout
    assert "trusted-users" in done.stdout
