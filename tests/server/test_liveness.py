"""Heartbeats, silence and backpressure: who is alive is measured where bytes arrive."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gradient.protocol import (
    Building,
    EvalResult,
    EvaluationMessage,
    JobCompleted,
    Ping,
    ReportAck,
    RunningJob,
)
from gradient.timing import Timing
from tests.support.database import Database
from tests.support.graph_builder import derivation, output_nars
from tests.support.server_client import WorkerClient, worker_client
from tests.support.server_running import (
    NO_TICK,
    eval_result,
    new_world,
    running_server,
    upload,
)

PRESENCE = Timing(tick=3600, renewal=0.05, pause=0.02, drain=5)


@pytest.mark.scenario(46)
async def test_a_heartbeat_is_answered_while_a_large_frame_waits_for_the_writer(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    world.evaluation()
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("evaluation")
        await worker.walk(job.assignment)
        turn = clean_db.connect(autocommit=False)
        turn.execute("select graph.take_turn()")
        large = eval_result([derivation(f"p-{n}") for n in range(2000)])
        await worker.send_report(job.assignment, large)
        await worker.ping()
        await worker.ping()
        assert worker.none_of(ReportAck)
        turn.rollback()
        await worker.expect(ReportAck, assignment=job.assignment)


@pytest.mark.scenario(46)
async def test_a_heartbeat_is_answered_while_an_upload_is_under_way(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    world.evaluation()
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("evaluation")
        host, port = server.address
        answer, upload_stream = await asyncio.open_connection(host, port)
        name = "0" * 52 + ".nar"
        upload_stream.write(
            f"PUT {job.cache_path}/nar/{name} HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {job.token}\r\nContent-Length: 8000000\r\n\r\n".encode()
        )
        upload_stream.write(bytes(64 * 1024))
        await upload_stream.drain()
        await worker.ping()
        # The upload is still open: nobody has answered it.
        assert not answer.at_eof()
        upload_stream.close()


@pytest.mark.scenario(57)
async def test_no_session_is_lost_while_the_writer_is_held_over_its_budget(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("a")
    world.evaluate(drv, worker="walker")
    timing = Timing(tick=0.2, renewal=0.1, pause=0.02, drain=5, graph_budget=0.3)
    async with (
        running_server(clean_db, tmp_path, timing) as server,
        worker_client(server.url) as worker,
    ):
        job = await worker.take("build")
        await worker.report(job.assignment, Building(builder_started=True))
        await upload(server, *output_nars(drv, assignment=job.assignment))
        turn = clean_db.connect(autocommit=False)
        turn.execute("select graph.take_turn()")
        await worker.send_report(job.assignment, JobCompleted())
        async with asyncio.timeout(20):
            while server.writer.health.failures.get("budget", 0) < 4:
                await worker.ping()
                await asyncio.sleep(0.05)
        assert worker.none_of(ReportAck)
        turn.rollback()
        await worker.expect(ReportAck, assignment=job.assignment)
    assert world.status(drv) == "Completed"
    assert len(world.attempts(drv)) == 1


async def test_a_full_session_is_not_read_and_its_silence_does_not_count(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    world.value("select gradient.set('worker_grace', '1')")
    world.evaluation()
    async with (
        running_server(clean_db, tmp_path, PRESENCE) as server,
        worker_client(server.url, "w1") as busy,
        worker_client(server.url, "w2") as silent,
    ):
        job = await busy.take("evaluation")
        await busy.walk(job.assignment)
        turn = clean_db.connect(autocommit=False)
        turn.execute("select graph.take_turn()")
        large = EvalResult(
            derivations=[], messages=[EvaluationMessage(level="notice", message="x" * 500_000)]
        )
        numbers = [await busy.send_report(job.assignment, large) for _ in range(8)]
        await busy.send(Ping(number=99))
        # A worker that says nothing is given up after the grace; one whose frames wait is not.
        assert (await silent.wait_closed())[0] == 4408
        assert busy.closed is None
        assert busy.received == []
        turn.rollback()
        for number in numbers:
            await busy.expect(ReportAck, assignment=job.assignment, number=number)
        await busy.ping()


async def test_the_workers_heard_of_are_noted_with_their_metrics(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    async with (
        running_server(clean_db, tmp_path, PRESENCE) as server,
        worker_client(server.url) as worker,
    ):
        await worker.send(Ping(number=7, cpu_usage_pct=12.5, ram_free_mb=2048))
        async with asyncio.timeout(10):
            while not world.rows(
                "select from gradient.worker_seen where (metrics ->> 'ram_free_mb')::int = 2048"
            ):
                await asyncio.sleep(0.01)
    (seen,) = world.rows("select *, now() - last_seen < '10 s' as fresh from gradient.worker_seen")
    assert seen["metrics"]["cpu_usage_pct"] == 12.5
    assert seen["fresh"]


async def test_the_jobs_of_a_worker_that_stays_away_are_returned_after_the_grace(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    world.value("select gradient.set('worker_grace', '1')")
    drv = derivation("a")
    world.evaluate(drv, worker="walker")
    timing = Timing(tick=0.1, renewal=0.1, pause=0.02, drain=5)
    async with (
        running_server(clean_db, tmp_path, timing) as server,
        worker_client(server.url, "w2") as other,
    ):
        async with worker_client(server.url, "w1") as worker:
            lost = await worker.take("build")
            await worker.report(lost.assignment, Building(builder_started=True))
            await worker.cut()
        await other.request("build", 1)
        pinging = asyncio.create_task(_ping_forever(other))
        again = await other.take("build")
        pinging.cancel()
        assert again.job == lost.job
        # Back too late, the first worker is told to stop.
        running = RunningJob(job=lost.job, assignment=lost.assignment)
        async with worker_client(server.url, "w1", "secret", running) as worker:
            await worker.ping()
    classes = [attempt["outcome_class"] for attempt in world.attempts(drv)]
    assert classes[0] == "worker_lost"
    assert world.build(drv)["attempt"] == 0


async def _ping_forever(worker: WorkerClient) -> None:
    while True:
        await worker.ping()
        await asyncio.sleep(0.2)


async def test_passes_run_without_a_tick_after_the_listener_came_back(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    async with (
        running_server(clean_db, tmp_path, NO_TICK) as server,
        worker_client(server.url) as worker,
    ):
        await worker.request("build")
        await worker.ping()
        admin = clean_db.connect()
        pid = world.value(
            "select pid from pg_stat_activity where application_name = 'gradient listener'"
            " and datname = current_database()"
        )
        admin.execute("select pg_terminate_backend(%s)", [pid])
        # Nobody listens to the kicks of this walk, or may not.
        await asyncio.to_thread(world.evaluate, derivation("a"), worker="walker")
        job = await worker.take("build")
        assert job.job.startswith("build:")
