"""Several servers on one database, and what becomes of one that is cut off from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gradient.protocol import (
    AbortJob,
    Building,
    BuildOutput,
    EvaluatingDerivations,
    EvaluatingFlake,
    Fetching,
    JobCompleted,
    Reject,
    RunningJob,
)
from gradient.timing import Timing
from tests.support.database import Connection, Database
from tests.support.graph_builder import derivation, drv_nar, output_nars
from tests.support.graph_world import World
from tests.support.server_client import connected, hello, worker_client
from tests.support.server_running import eval_result, new_world, running_server, upload

PROBING = Timing(tick=3600, renewal=0.1, pause=0.02, drain=5, probe=0.05)


def lock_backend(conn: Connection, instance: str) -> int:
    row = conn.execute(
        "select pid from pg_stat_activity where datname = current_database()"
        " and application_name = %s",
        [f"gradient instance {instance}"],
    ).fetchone()
    assert row is not None
    pid: int = row[0]
    return pid


async def test_work_found_through_one_server_is_built_through_another(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    evaluation = world.evaluation()
    drv = derivation("a")
    objects = tmp_path / "objects"
    async with (
        running_server(clean_db, tmp_path / "one", instance="one", objects=objects) as one,
        running_server(clean_db, tmp_path / "two", instance="two", objects=objects) as two,
        worker_client(one.url, "w1") as walker,
        worker_client(two.url, "w2") as builder,
    ):
        await builder.request("build")
        job = await walker.take("evaluation")
        await upload(one, drv_nar(drv, assignment=job.assignment))
        await walker.walk(job.assignment, eval_result([drv], [drv]))
        await walker.report(job.assignment, JobCompleted())
        build = await builder.take("build")
        await upload(two, *output_nars(drv, assignment=build.assignment))
        await builder.report(build.assignment, Building(), BuildOutput(), JobCompleted())
    assert world.evaluation_status(evaluation) == "Completed"


async def test_an_abort_given_through_one_server_reaches_a_worker_of_another(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    evaluation = world.evaluation()
    async with (
        running_server(clean_db, tmp_path / "one", instance="one") as one,
        running_server(clean_db, tmp_path / "two", instance="two") as two,
        worker_client(two.url) as worker,
    ):
        job = await worker.take("evaluation")
        await worker.report(job.assignment, Fetching(), EvaluatingFlake(), EvaluatingDerivations())
        await one.writer.message("gradient.abort_evaluation", evaluation)
        assert (await worker.expect(AbortJob)).assignment == job.assignment
    assert world.evaluation_status(evaluation) == "Aborted"


async def test_a_worker_takes_its_running_job_along_to_another_server(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("a")
    world.evaluate(drv, worker="walker")
    async with (
        running_server(clean_db, tmp_path / "one", instance="one") as one,
        running_server(clean_db, tmp_path / "two", instance="two") as two,
    ):
        async with worker_client(one.url) as worker:
            job = await worker.take("build")
            await worker.report(job.assignment, Building(builder_started=True))
            await worker.cut()
        running = RunningJob(job=job.job, assignment=job.assignment)
        async with worker_client(two.url, "w1", "secret", running) as worker:
            await upload(two, *output_nars(drv, assignment=job.assignment))
            await worker.report(job.assignment, BuildOutput(), JobCompleted())
    assert world.status(drv) == "Completed"
    assert len(world.attempts(drv)) == 1


async def test_a_dead_servers_work_is_recovered_by_another(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    world.value("select gradient.set('instance_grace', '1')")
    drv = derivation("a")
    # A server that died: its row and its open work, nobody holds its lock.
    world.evaluate(drv, worker="walker")
    world.worker("gone", instance="dead")
    world.take("build", "gone")
    async with running_server(clean_db, tmp_path, PROBING, instance="alive"):
        async with asyncio.timeout(15):
            while world.status(drv) != "Queued" or not world.attempts(drv)[0]["outcome_class"]:
                await asyncio.sleep(0.02)
    assert world.attempts(drv)[0]["outcome_class"] == "server_restart"


async def test_a_server_takes_its_lock_again_after_losing_it_for_a_moment(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    async with (
        running_server(clean_db, tmp_path, PROBING) as server,
        worker_client(server.url) as worker,
    ):
        former = lock_backend(world.conn, "server-1")
        world.conn.execute("select pg_terminate_backend(%s)", [former])
        async with asyncio.timeout(15):
            while not holds_lock(world) or lock_backend(world.conn, "server-1") == former:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(world.evaluate, derivation("a"), worker="walker")
        await worker.take("build")
        assert worker.closed is None


async def test_a_server_without_its_lock_ends_its_sessions_and_hands_out_nothing(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    world.value("select gradient.set('instance_grace', '1')")
    async with (
        running_server(clean_db, tmp_path, PROBING) as server,
        worker_client(server.url) as worker,
    ):
        thief = clean_db.connect()
        former = lock_backend(world.conn, "server-1")
        # Waits in the queue of the lock, so that it is next.
        waiting = asyncio.create_task(
            asyncio.to_thread(
                thief.execute,
                "select pg_advisory_lock(644, lock_key) from gradient.server_instance",
            )
        )
        async with asyncio.timeout(10):
            while not world.rows(
                "select from pg_locks where locktype = 'advisory' and not granted"
            ):
                await asyncio.sleep(0.01)
        world.conn.execute("select pg_terminate_backend(%s)", [former])
        await waiting
        assert (await worker.wait_closed())[0] == 1012
        async with connected(server.url) as again:
            await again.send(hello("w1", "secret"))
            assert (await again.expect(Reject)).code == 503
        thief.close()
        async with asyncio.timeout(15):
            while not holds_lock(world):
                await asyncio.sleep(0.02)
        await asyncio.to_thread(world.evaluate, derivation("a"), worker="walker")
        async with worker_client(server.url) as back:
            await back.take("build")


def holds_lock(world: World) -> bool:
    return bool(
        world.rows(
            "select from pg_locks l join pg_stat_activity a using (pid)"
            " where l.locktype = 'advisory' and l.classid = 644 and l.granted"
            " and a.application_name = 'gradient instance server-1'"
            " and a.datname = current_database()"
        )
    )
