"""A build slot: limits by its own clocks, stopping, and what survives it: nothing."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.nix_store import NixStore
from tests.support.waiting import wait_until
from tests.worker.nix.support import Built, Nix, processes_with
from worker.nix import processes
from worker.nix.building import BuildLimits, BuildReport, BuildSlot
from worker.nix.classify import Outcome, Stop
from worker.nix.settings import NixSettings

pytestmark = pytest.mark.nix
ROOT = Path(__file__).parents[3]
NO_LIMITS = BuildLimits()


@pytest.fixture
def word() -> str:
    """A word that stands in the command line of the test's own builder only."""
    return f"gradient-test-{secrets.token_hex(8)}"


class Running:
    """A build under way, its log, and the moment its builder started."""

    def __init__(self, slot: BuildSlot, built: Built, limits: BuildLimits = NO_LIMITS) -> None:
        self.log = bytearray()
        self.spoke = asyncio.Event()
        self.started = asyncio.Event()
        self.starts = 0
        self.task = asyncio.create_task(
            slot.build(built.request(), limits, self._on_log, self._on_started)
        )

    def _on_log(self, piece: bytes) -> None:
        self.log += piece
        self.spoke.set()

    def _on_started(self) -> None:
        self.starts += 1
        self.started.set()

    async def report(self) -> BuildReport:
        return await asyncio.wait_for(self.task, 40)


async def test_a_build_reports_its_outputs_log_and_times(slot: BuildSlot, nix: Nix) -> None:
    built = nix.derivation("""
        sh "two" "echo hello; echo > $out; echo > $dev" { outputs = [ "out" "dev" ]; }""")
    before = time.time()
    running = Running(slot, built)
    report = await running.report()
    assert (report.outcome, report.success, report.reason) == (Outcome.BUILT, True, "")
    assert report.outputs == {n: o.path for n, o in built.derivation.outputs.items()}
    assert bytes(running.log) == b"hello\n"
    assert running.starts == 1
    assert report.started is not None
    assert int(before) <= report.started <= report.stopped


async def test_outputs_that_are_valid_already_are_no_build_and_start_no_builder(
    slot: BuildSlot, nix: Nix
) -> None:
    built = nix.derivation('sh "done" "echo > $out" { }')
    nix.build(built.path)
    running = Running(slot, built)
    report = await running.report()
    assert (report.outcome, report.success) == (Outcome.ALREADY_VALID, True)
    assert (running.starts, report.started) == (0, None)


async def test_one_process_serves_many_builds_and_a_failure_does_not_end_it(
    slot: BuildSlot, nix: Nix
) -> None:
    good = nix.derivation('sh "good" "echo > $out" { }')
    bad = nix.derivation('sh "bad" "exit 1" { }')
    assert (await Running(slot, bad).report()).outcome == Outcome.BUILDER_FAILED
    pid = slot.supervisor_pid
    assert (await Running(slot, good).report()).outcome == Outcome.BUILT
    assert slot.supervisor_pid == pid


async def test_the_total_limit_ends_a_build_that_talks(
    slot: BuildSlot, nix: Nix, word: str
) -> None:
    script = f"while :; do echo x; sleep 0.1; done; : {word}"
    limits = BuildLimits(total=1, silent=30)
    running = Running(slot, nix.derivation(f'sh "talks" "{script}" {{ }}'), limits)
    report = await running.report()
    assert (report.outcome, report.success) == (Outcome.TIMEOUT_TOTAL, False)
    assert report.reason == "the build took longer than 1 s"
    assert report.started is not None
    assert 1 <= report.stopped - report.started <= 3
    assert processes_with(word) == []


async def test_the_silence_limit_ends_a_build_that_says_nothing(
    slot: BuildSlot, nix: Nix, word: str
) -> None:
    limits = BuildLimits(total=30, silent=1)
    script = f"sleep 0.5; echo x; sleep 300; : {word}"
    running = Running(slot, nix.derivation(f'sh "silent" "{script}" {{ }}'), limits)
    report = await running.report()
    assert report.outcome == Outcome.TIMEOUT_SILENT
    assert report.reason == "the build wrote nothing to its log for 1 s"
    assert report.started is not None
    assert 1.0 <= report.stopped - report.started <= 3.5
    assert processes_with(word) == []


async def test_after_a_limit_the_slot_builds_again_with_the_next_builds_own_limits(
    slot: BuildSlot, nix: Nix
) -> None:
    slow = nix.derivation('sh "slow" "sleep 300" { }')
    assert (await Running(slot, slow, BuildLimits(total=0.3)).report()).outcome == "timeout_total"
    brief = nix.derivation('sh "brief" "sleep 1; echo > $out" { }')
    assert (await Running(slot, brief, BuildLimits(total=30)).report()).outcome == "built"


@pytest.mark.scenario(44)
async def test_the_clock_starts_with_the_builder_and_not_with_the_request(
    slot: BuildSlot, nix: Nix, word: str
) -> None:
    """Another process builds the same derivation first: Nix waits for its lock."""
    gate = Path(nix.settings.state_dir, "gate")
    script = f"while ! test -e {gate}; do sleep 0.05; done; echo > $out; : {word}"
    built = nix.derivation(f'sh "contended" "{script}" {{ }}')
    other = subprocess.Popen(
        ["nix-store", "--realise", built.path],
        env=nix.settings.build_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: processes_with(word), what="the other builder")
        running = Running(slot, built, BuildLimits(total=1, silent=1))
        # Twice the limits, without a builder of its own.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running.started.wait(), 2)
        gate.touch()
        assert (await running.report()).outcome == Outcome.ALREADY_VALID
    finally:
        gate.touch()
        other.wait(20)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(Stop.ABORTED, Outcome.ABORTED), (Stop.WORKER_STOPPING, Outcome.WORKER_STOPPING)],
)
async def test_a_stopped_build_reports_why_and_leaves_no_process(
    slot: BuildSlot, nix: Nix, word: str, reason: Stop, outcome: Outcome
) -> None:
    script = f"trap : TERM INT HUP; setsid sh -c 'sleep 300; : {word}' & echo; sleep 300; : {word}"
    running = Running(slot, nix.derivation(f'sh "stop" "{script}" {{ }}'))
    await asyncio.wait_for(running.spoke.wait(), 20)
    await slot.stop(reason)
    report = await running.report()
    assert (report.outcome, report.result) == (outcome, None)
    assert processes_with(word) == []


async def test_a_stop_before_the_builder_runs_counts_too(slot: BuildSlot, nix: Nix) -> None:
    running = Running(slot, nix.derivation('sh "never" "sleep 300" { }'))
    await asyncio.sleep(0)
    await slot.stop(Stop.ABORTED)
    assert (await running.report()).outcome == Outcome.ABORTED


async def test_a_stop_without_a_build_does_nothing_to_the_next_one(
    slot: BuildSlot, nix: Nix
) -> None:
    await slot.stop(Stop.ABORTED)
    report = await Running(slot, nix.derivation('sh "next" "echo > $out" { }')).report()
    assert report.outcome == Outcome.BUILT


async def test_a_cancelled_build_leaves_no_process(slot: BuildSlot, nix: Nix, word: str) -> None:
    running = Running(slot, nix.derivation(f'sh "cancel" "echo; sleep 300; : {word}" {{ }}'))
    await asyncio.wait_for(running.spoke.wait(), 20)
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running.task
    assert processes_with(word) == []
    assert not slot.building


async def test_a_closed_slot_ends_its_build_and_takes_no_other(
    slot: BuildSlot, nix: Nix, word: str
) -> None:
    built = nix.derivation(f'sh "close" "echo; sleep 300; : {word}" {{ }}')
    running = Running(slot, built)
    await asyncio.wait_for(running.spoke.wait(), 20)
    await slot.close()
    assert (await running.report()).outcome == Outcome.WORKER_STOPPING
    assert processes_with(word) == []
    assert (await Running(slot, built).report()).outcome == Outcome.WORKER_FAULT


async def test_a_daemon_that_a_successful_build_leaves_running_is_killed(
    slot: BuildSlot, nix: Nix, word: str
) -> None:
    mark = nix.settings.state_dir / "daemon-runs"
    daemon = f"setsid sh -c 'touch {mark}; sleep 300; : {word}' </dev/null >/dev/null 2>&1"
    script = f"{daemon} & while ! test -e {mark}; do sleep 0.02; done; echo > $out"
    report = await Running(slot, nix.derivation(f'sh "daemon" "{script}" {{ }}')).report()
    assert report.outcome == Outcome.BUILT
    assert mark.exists()
    wait_until(lambda: processes_with(word) == [], what="the end of the daemon")
    assert slot.supervisor_pid is not None


async def test_a_dead_store_process_is_a_worker_fault_and_is_replaced(
    slot: BuildSlot, nix: Nix, word: str
) -> None:
    built = nix.derivation(f'sh "orphan" "echo; sleep 300; : {word}" {{ }}')
    running = Running(slot, built)
    await asyncio.wait_for(running.spoke.wait(), 20)
    os.kill((await slot.serve()).command_pid, signal.SIGKILL)
    report = await running.report()
    assert report.outcome == Outcome.WORKER_FAULT
    assert "nix-store ended" in report.reason
    assert processes_with(word) == []
    good = await Running(slot, nix.derivation('sh "good" "echo > $out" { }')).report()
    assert good.outcome == Outcome.BUILT


async def test_a_store_process_that_died_while_idle_costs_the_next_build_nothing(
    slot: BuildSlot, nix: Nix
) -> None:
    os.kill((await slot.serve()).command_pid, signal.SIGKILL)
    report = await Running(slot, nix.derivation('sh "good" "echo > $out" { }')).report()
    assert report.outcome == Outcome.BUILT


async def test_nix_missing_on_the_machine_is_a_worker_fault_that_says_so(
    settings: NixSettings, nix: Nix
) -> None:
    built = nix.derivation('sh "x" "echo > $out" { }')
    slot = BuildSlot(NixSettings(settings.state_dir, settings.options, {"PATH": "/nonexistent"}))
    report = await Running(slot, built).report()
    assert report.outcome == Outcome.WORKER_FAULT
    assert "nix-store" in report.reason
    await slot.close()


async def test_two_slots_build_at_the_same_time(settings: NixSettings, nix: Nix) -> None:
    """Each builder waits for the other one's mark."""
    folder = settings.state_dir
    slots = [BuildSlot(settings), BuildSlot(settings)]
    runs = []
    for slot, (own, other) in zip(slots, [("a", "b"), ("b", "a")], strict=True):
        script = f"touch {folder}/{own}; while ! test -e {folder}/{other}; do sleep 0.05; done; "
        built = nix.derivation(f'sh "{own}" "{script} echo > $out" {{ }}')
        runs.append(Running(slot, built, BuildLimits(total=20)))
    assert [(await run.report()).outcome for run in runs] == ["built", "built"]
    for slot in slots:
        await slot.close()


async def test_a_missing_input_is_named(slot: BuildSlot, nix: Nix) -> None:
    built = nix.derivation('sh "needs" "echo > $out" { dep = sh "dep" "true" { }; }')
    (dep,) = built.request().inputs
    report = await Running(slot, built).report()
    assert report.outcome == Outcome.MISSING_INPUT
    assert report.missing_paths == {dep}


async def test_an_input_that_is_lost_from_a_closure_is_named(
    slot: BuildSlot, nix: Nix, tmp_path: Path
) -> None:
    source = nix.add(tmp_path, "source", "text")
    built = nix.derivation(f'sh "needs" "echo > $out" {{ src = builtins.storePath {source}; }}')
    request = built.request()
    nix.run("nix-store", "--delete", built.path)
    nix.run("nix-store", "--delete", source)
    report = await asyncio.wait_for(slot.build(request, NO_LIMITS, lambda _: None), 20)
    assert report.outcome == Outcome.MISSING_INPUT
    assert report.missing_paths == {source}


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ('sh "a" "exit 1" { }', "builder_failed"),
        ('sh "a" "exit 1" fixed', "builder_failed"),
        ('sh "a" "echo other > $out" fixed', "builder_failed"),
        ('sh "a" "true" { }', "builder_failed"),
        ('sh "a" "kill -SEGV $$" { }', "builder_failed"),
        ('sh "a" "kill -9 $$" { }', "out_of_memory"),
        ('sh "a" "echo cc1: out of memory allocating 1 bytes; exit 1" { }', "out_of_memory"),
        ('sh "a" "echo killed 3 tests; exit 1" { }', "builder_failed"),
        ('sh "a" "cat /bin/sh > /dev/full" { }', "disk_full"),
        ('sh "a" "echo curl: Could not resolve host: x; exit 1" fixed', "network"),
        ('sh "a" "echo curl: Could not resolve host: x; exit 1" { }', "builder_failed"),
        ('sh "a" "true" { system = "riscv64-linux"; }', "worker_fault"),
        ('sh "a" "true" { requiredSystemFeatures = [ "nowhere" ]; }', "worker_fault"),
        (
            'derivation { name = "a"; system = builtins.currentSystem; builder = "/no"; }',
            "builder_failed",
        ),
    ],
)
async def test_what_really_happened_gets_its_class(
    slot: BuildSlot, nix: Nix, expression: str, outcome: str
) -> None:
    report = await Running(slot, nix.derivation(expression)).report()
    assert report.outcome == outcome
    assert report.reason


@pytest.mark.slow
async def test_fifty_mebibytes_of_log_arrive_in_full(slot: BuildSlot, nix: Nix) -> None:
    line = "x" * 127
    script = f"yes {line} 2>/dev/null | head -n 409600; echo > $out"
    running = Running(slot, nix.derivation(f'sh "log" "{script}" {{ }}'))
    assert (await running.report()).outcome == Outcome.BUILT
    assert len(running.log) == 409600 * 128
    assert running.log.count(b"\n") == 409600


def test_a_worker_killed_with_sigkill_stops_its_build(
    nix: Nix, own_store: NixStore, word: str, tmp_path: Path
) -> None:
    built = nix.derivation(f'sh "killed" "echo; sleep 300; : {word}" {{ }}')
    program = f"""
import asyncio
from pathlib import Path
from worker.nix.building import BuildLimits, BuildSlot
from worker.nix.derivation import parse_derivation
from worker.nix.serve import BuildRequest
from worker.nix.settings import NixSettings

async def main():
    slot = BuildSlot(NixSettings(Path({str(tmp_path / "other-state")!r})))
    derivation = parse_derivation(Path({built.path!r}).read_bytes())
    request = BuildRequest.of({built.path!r}, derivation, [])
    await slot.build(request, BuildLimits(), lambda _: None)

asyncio.run(main())
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_until(lambda: processes_with(f"sleep 300; : {word}"), 20, "the builder")
    finally:
        worker.kill()
        worker.wait()
    wait_until(lambda: not processes_with(word), what="the end of the builder")


def test_killing_the_process_group_of_nix_leaves_what_the_builder_started(
    nix: Nix, word: str
) -> None:
    """Why there is a supervisor: Nix puts its builder into a session of its own."""
    child = f"sh -c 'sleep 300; : {word}'"
    built = nix.derivation(f'sh "session" "{child} & wait" {{ }}')
    bare = subprocess.Popen(
        ["nix-store", "--realise", built.path],
        env=nix.settings.build_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(processes_with(f"sleep 300; : {word}")) == 2, what="the child")
        os.killpg(bare.pid, signal.SIGKILL)
        bare.wait()
        wait_until(lambda: len(processes_with(word)) == 1, what="the end of the builder alone")
    finally:
        bare.kill()
        for pid in processes_with(word):
            processes.kill(pid)
