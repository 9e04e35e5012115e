"""Workers that stop, die or lose the network; caches that are away: nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.e2e_cut import CuttableProxy
from tests.support.e2e_flake import Drv, Repository, layered
from tests.support.e2e_world import World
from tests.support.waiting import wait_until
from worker.nix.processes import descendants

pytestmark = [pytest.mark.nix, pytest.mark.slow, pytest.mark.timeout(400)]


def meeting_drv(meeting: Path, name: str = "slow") -> Drv:
    """A builder that notes each of its runs and goes on when it is released."""
    return Drv(
        name,
        f"mktemp {meeting}/run-XXXXXX; until [ -e {meeting}/release ]; do sleep 0.1; done;"
        " echo done; echo built > $out",
    )


def runs(meeting: Path) -> int:
    """How often the builder has started."""
    return len(list(meeting.glob("run-*")))


def build_facts(world: World, name: str = "slow") -> tuple[object, ...]:
    """Status and charged attempts of a build."""
    return world.row(
        "select b.status, b.attempt from gradient.derivation_build b"
        " join gradient.derivation d on d.id = b.derivation where d.name = %s",
        name,
    )


def classes(world: World, name: str = "slow") -> list[str | None]:
    """How the attempts of a build ended, in order."""
    rows = world.conn.execute(
        "select coalesce(a.outcome_class, a.outcome::text) from gradient.build_attempt a"
        " join gradient.derivation d on d.id = a.derivation_build"
        " where d.name = %s order by a.id",
        [name],
    ).fetchall()
    return [row[0] for row in rows]


@pytest.mark.scenario(27)
@pytest.mark.parametrize(
    "number, ended_as",
    [(signal.SIGTERM, "worker_stopping"), (signal.SIGKILL, "worker_lost")],
    ids=["stopped", "killed"],
)
def test_a_worker_that_goes_in_the_middle_of_a_build_costs_no_attempt(
    world: World,
    repository: Repository,
    meeting: Path,
    number: signal.Signals,
    ended_as: str,
) -> None:
    repository.commit_drvs([meeting_drv(meeting)])
    world.project()
    task = world.task(repository.url)
    token = world.token("w1")
    worker = world.worker("w1", token)
    evaluation = world.evaluate(task)
    wait_until(lambda: runs(meeting) == 1, 60, "the builder running")
    below = descendants(worker.pid)
    assert below
    worker.signal(number)
    code = worker.wait()
    assert code == (0 if number == signal.SIGTERM else -number)
    wait_until(
        lambda: not [pid for pid in below if _alive(pid)], 15, "every process of the worker gone"
    )
    if number == signal.SIGTERM:
        assert build_facts(world) == ("Queued", 0)
    world.worker("w1", token)
    wait_until(lambda: runs(meeting) == 2, 60, "the builder running again")
    (meeting / "release").touch()
    assert world.watch(evaluation) == 0
    assert build_facts(world) == ("Completed", 0)
    assert classes(world) == [ended_as, "Built"]
    world.check()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_build_goes_on_through_twenty_seconds_without_network_and_counts(
    world: World, repository: Repository, meeting: Path
) -> None:
    repository.commit_drvs([meeting_drv(meeting)])
    world.project()
    task = world.task(repository.url)
    proxy = CuttableProxy(world.port)
    try:
        world.worker("w1", server=proxy.url)
        evaluation = world.evaluate(task)
        wait_until(lambda: runs(meeting) == 1, 60, "the builder running")
        proxy.cut()
        wait_until(
            lambda: (
                world.row(
                    "select count(*) from gradient.worker_connection where disconnected_at is null"
                )
                == (0,)
            ),
            30,
            "the server missing the worker",
        )
        # The length of the cut is what this test is about.
        world.row("select pg_sleep(20)")
        (meeting / "release").touch()
        proxy.mend()
        assert world.watch(evaluation) == 0
    finally:
        proxy.close()
    assert runs(meeting) == 1
    assert build_facts(world) == ("Completed", 0)
    assert classes(world) == ["Built"]
    builds = world.builds(evaluation)
    log = world.gradient("build", "log", str(builds["slow"]["id"])).out
    assert log.endswith("done\n")
    world.check()


@pytest.mark.scenario(2)
def test_a_walk_that_dies_with_its_worker_is_completed_by_the_next(
    world: World, repository: Repository
) -> None:
    drvs = layered(600, 20)
    repository.commit_drvs(drvs)
    world.project()
    task = world.task(repository.url)
    token = world.token("w1")
    worker = world.worker("w1", token, build_slots=0)
    evaluation = world.evaluate(task)

    def recorded() -> int:
        (count,) = world.row("select count(*) from gradient.derivation where walked")
        return int(count)

    wait_until(recorded, 120, "a batch being recorded")
    worker.signal(signal.SIGKILL)
    worker.wait()
    assert 0 < recorded() < 600
    world.check()
    world.worker("w1", token, build_slots=0)
    wait_until(lambda: recorded() == 600, 120, "the whole graph being walked")
    wait_until(
        lambda: (
            world.row("select status from gradient.evaluation where id = %s", evaluation)
            in (("Building",), ("Waiting",))
        ),
        60,
        "the walk being over",
    )
    world.check()


@pytest.mark.scenario(44)
def test_the_clock_of_a_time_limit_starts_with_the_builder_and_not_in_the_queue(
    world: World, repository: Repository
) -> None:
    drvs = [
        Drv(f"nap-{index}", "sleep 2; echo > $out", attributes={"timeout": "5"})
        for index in range(4)
    ]
    repository.commit_drvs(drvs)
    world.project()
    task = world.task(repository.url)
    # One slot for eight seconds of work: the last one waits longer than its limit.
    world.worker("w1", build_slots=1)
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 0
    queued = world.row(
        "select max(extract(epoch from a.build_finished_at - b.created_at))"
        " from gradient.build_attempt a"
        " join gradient.derivation_build b on b.derivation = a.derivation_build"
    )
    assert queued[0] > 5
    world.check()


@pytest.mark.scenario(60)
def test_a_build_whose_outputs_cannot_be_uploaded_is_neither_completed_nor_failed(
    world: World, repository: Repository, meeting: Path
) -> None:
    repository.commit_drvs([meeting_drv(meeting)])
    world.project()
    # The worker gives an upload up after the grace that it is told.
    world.gradient("setting", "set", "worker_grace", "5")
    task = world.task(repository.url)
    world.worker("w1")
    evaluation = world.evaluate(task)
    wait_until(lambda: runs(meeting) == 1, 60, "the builder running")
    objects = world.folder / "server" / "objects"
    away = objects.with_name("objects.away")
    objects.rename(away)
    objects.write_text("the object store is away")
    (meeting / "release").touch()
    wait_until(lambda: "upload_failed" in classes(world), 60, "the upload having failed")
    status, attempt = build_facts(world)
    assert status in ("Queued", "Building", "Created", "FailedTransient")
    assert attempt == 0
    objects.unlink()
    away.rename(objects)
    assert world.watch(evaluation) == 0
    # The outputs were still there, so the second attempt had nothing to build.
    assert build_facts(world) == ("Substituted", 0)
    assert runs(meeting) == 1
    world.nix_copy(list(world.outputs(evaluation).values()))
    world.check()


@pytest.mark.scenario(45)
def test_a_killed_server_fails_nothing_and_no_build_runs_twice_at_a_time(
    world: World, repository: Repository, meeting: Path
) -> None:
    repository.commit_drvs([meeting_drv(meeting), Drv("after", "cat ${slow} > $out")])
    world.project()
    task = world.task(repository.url)
    worker = world.worker("w1")
    evaluation = world.evaluate(task)
    wait_until(lambda: runs(meeting) == 1, 60, "the builder running")
    first = set(descendants(worker.pid))
    assert world.server is not None
    world.server.signal(signal.SIGKILL)
    world.server.wait()
    world.start_server()
    world.check()
    wait_until(lambda: runs(meeting) == 2, 90, "the builder running again")
    builders = {pid for pid in descendants(worker.pid) if f"{meeting}/release" in _line(pid)}
    assert builders
    assert not builders & first
    (meeting / "release").touch()
    assert world.watch(evaluation) == 0
    assert classes(world) == ["server_restart", "Built"]
    assert build_facts(world) == ("Completed", 0)
    world.check()


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
