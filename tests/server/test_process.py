"""The server as a process: without Nix, stopped by signals, killed and started again."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from gradient.protocol import (
    Building,
    BuildOutput,
    Draining,
    InitAck,
    JobCompleted,
    Reject,
    RunningJob,
)
from gradient.timing import Timing
from tests.support.database import Database
from tests.support.graph_builder import derivation
from tests.support.server_client import connected, hello, worker_client
from tests.support.server_process import server_process
from tests.support.server_running import eval_result, new_world

STOPPING = Timing(tick=3600, pause=0.05, drain=10)


async def test_the_server_works_on_a_machine_without_nix(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    evaluation = world.evaluation()
    async with server_process(clean_db, tmp_path) as server:
        assert shutil.which("nix", path=str(tmp_path / "empty")) is None
        async with worker_client(server.url) as worker:
            job = await worker.take("evaluation")
            await worker.walk(job.assignment, eval_result([derivation("a")], [derivation("a")]))
            await worker.report(job.assignment, JobCompleted())
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
    assert world.evaluation_status(evaluation) == "Building"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_jobs_end_and_starts_no_more(
    clean_db: Database, tmp_path: Path, number: signal.Signals
) -> None:
    world = new_world(clean_db, "w1", "w2")
    a, b = derivation("a"), derivation("b")
    world.evaluate(a, b, worker="walker")
    async with (
        server_process(clean_db, tmp_path, STOPPING) as server,
        connected(server.url, "w2") as late,
        worker_client(server.url) as worker,
    ):
        job = await worker.take("build")
        await worker.report(job.assignment, Building(builder_started=True))
        server.signal(number)
        await worker.expect(Draining)
        await late.send(hello("w2", "secret"))
        assert (await late.expect(Reject)).code == 503
        await worker.request("build", 1)
        # Reports of what runs are still taken, and committed before the end.
        await worker.report(job.assignment, BuildOutput(), JobCompleted())
        assert (await worker.wait_closed())[0] == 1012
        assert await server.ended() == 0
        assert "server stopped" in server.output
    rows = world.rows("select outcome::text from gradient.dispatched_job where kind = 'Build'")
    assert [row["outcome"] for row in rows] == ["Completed"]


async def test_sessions_that_stay_busy_are_closed_after_the_drain(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    world.evaluate(derivation("a"), worker="walker")
    timing = Timing(tick=3600, drain=0.3)
    async with (
        server_process(clean_db, tmp_path, timing) as server,
        worker_client(server.url) as worker,
    ):
        await worker.take("build")
        server.signal(signal.SIGTERM)
        await worker.expect(Draining)
        assert (await worker.wait_closed())[0] == 1012
        assert await server.ended() == 0


async def test_a_second_signal_stops_at_once(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    world.evaluate(derivation("a"), worker="walker")
    timing = Timing(tick=3600, drain=600)
    async with (
        server_process(clean_db, tmp_path, timing) as server,
        worker_client(server.url) as worker,
    ):
        await worker.take("build")
        server.signal(signal.SIGTERM)
        await worker.expect(Draining)
        server.signal(signal.SIGTERM)
        await server.ended()


@pytest.mark.scenario(45)
async def test_work_of_a_killed_server_is_queued_again_when_it_starts_again(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("a")
    world.evaluate(drv, worker="walker")
    walking = world.evaluation()
    async with server_process(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        build = await worker.take("build")
        await worker.report(build.assignment, Building(builder_started=True))
        walk = await worker.take("evaluation")
        await worker.walk(walk.assignment, eval_result([derivation("b")]))
        server.signal(signal.SIGKILL)
        await server.ended()
    async with server_process(clean_db, tmp_path) as server:
        assert world.status(drv) == "Queued"
        assert world.evaluation_status(walking) == "Queued"
        running = [RunningJob(job=job.job, assignment=job.assignment) for job in (build, walk)]
        async with connected(server.url) as worker:
            await worker.send(hello("w1", "secret"))
            await worker.expect(InitAck)
            await worker.capabilities()
            answer = await worker.resume(*running)
            # The builder of a closed assignment is stopped as soon as its worker is back.
            assert answer.keep == []
            assert set(answer.stop) == {build.assignment, walk.assignment}
            again = await worker.take("build")
            assert again.job == build.job
            assert (await worker.take("evaluation")).job == walk.job
    assert world.attempts(drv)[0]["outcome_class"] == "server_restart"
    assert world.build(drv)["attempt"] == 0
    assert world.value("select count(*) from gradient.evaluation where status = 'Failed'") == 0
    assert (
        world.value("select count(*) from gradient.derivation_build where status::text ~ 'Failed'")
        == 0
    )


async def test_a_server_does_not_start_beside_one_of_its_name(
    clean_db: Database, tmp_path: Path
) -> None:
    new_world(clean_db)
    timing = Timing(tick=3600, takeover=0.2)
    async with server_process(clean_db, tmp_path / "one", timing) as server:
        with pytest.raises(AssertionError, match="instance name 'server-1' runs"):
            async with server_process(clean_db, tmp_path / "two", timing):
                raise AssertionError("the second server listens")
        async with worker_client(server.url) as worker:
            await worker.ping()
