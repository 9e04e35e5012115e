"""Sessions: reports become graph messages, in order, acknowledged once they are committed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from backports import zstd

from gradient.app import Server
from gradient.protocol import (
    AbortJob,
    AssignJob,
    Building,
    BuildJob,
    BuildMetrics,
    BuildOutput,
    Draining,
    Error,
    Fetching,
    FetchResult,
    FlakeJob,
    JobCompleted,
    JobFailed,
    KnownDerivations,
    LogAck,
    QueryKnownDerivations,
    ReportAck,
    RunningJob,
    RunningJobs,
    StaleAssignment,
)
from tests.support.database import Database
from tests.support.graph_builder import Drv, derivation, drv_nar, output_nars, source, source_nar
from tests.support.graph_world import World
from tests.support.server_client import WorkerClient, worker_client
from tests.support.server_running import eval_result, new_world, running_server, upload


async def finish(server: Server, worker: WorkerClient, job: AssignJob, drv: Drv) -> None:
    """Build `drv` with success."""
    await worker.report(job.assignment, Building(builder_started=True))
    await upload(server, *output_nars(drv, assignment=job.assignment))
    await worker.report(job.assignment, BuildOutput(), JobCompleted())


def queued(world: World, *drvs: Drv) -> int:
    """An evaluation whose builds wait for a worker."""
    return world.evaluate(*drvs, worker="walker")


async def test_a_worker_evaluates_and_builds(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        evaluation = world.evaluation()
        job = await worker.take("evaluation")
        assert isinstance(job.spec, FlakeJob)
        assert job.spec.evaluation == evaluation
        assert job.cache_path == f"/jobs/{job.assignment}/cache"
        flake, drv = source("flake"), derivation("hello")
        await worker.report(job.assignment, Fetching())
        await upload(
            server,
            source_nar(flake, assignment=job.assignment),
            drv_nar(drv, assignment=job.assignment),
        )
        await worker.report(
            job.assignment, FetchResult(flake_source=flake, commit="a" * 40, commit_message="hi")
        )
        await worker.walk(job.assignment, eval_result([drv], [drv]))
        await worker.report(job.assignment, JobCompleted())
        build = await worker.take("build")
        assert isinstance(build.spec, BuildJob)
        assert build.spec.drv == drv.drv
        await worker.report(build.assignment, Building(), Building(builder_started=True))
        await upload(server, *output_nars(drv, assignment=build.assignment))
        await worker.report(
            build.assignment,
            BuildOutput(metrics=BuildMetrics(build_time_ms=1200, peak_ram_mb=64)),
            JobCompleted(),
        )
    assert world.status(drv) == "Completed"
    assert world.evaluation_status(evaluation) == "Completed"
    assert world.value("select build_time_ms from gradient.derivation_metric") == 1200


async def test_batches_are_acknowledged_in_order_after_their_commit(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    evaluation = world.evaluation()
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("evaluation")
        await worker.walk(job.assignment)
        turn = clean_db.connect(autocommit=False)
        turn.execute("select graph.take_turn()")
        numbers = [
            await worker.send_report(job.assignment, eval_result([derivation(f"p-{n}")]))
            for n in range(10)
        ]
        numbers.append(await worker.send_report(job.assignment, JobCompleted()))
        await worker.ping()
        assert worker.none_of(ReportAck)
        turn.rollback()
        acks = [await worker.expect(ReportAck) for _ in numbers]
        assert [ack.number for ack in acks] == numbers
    assert world.value("select count(*) from gradient.derivation where walked") == 10
    assert world.evaluation_status(evaluation) != "EvaluatingDerivation"


@pytest.mark.scenario(9)
async def test_a_batch_with_a_malformed_path_fails_the_evaluation_and_stops_the_job(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    evaluation = world.evaluation()
    bad = Drv(drv=derivation("bad").drv, outputs={"out": "/nix/store/not-a-path"})
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("evaluation")
        await worker.walk(job.assignment, eval_result([derivation("good")]))
        await worker.send_report(job.assignment, eval_result([bad]))
        await worker.send_report(job.assignment, JobCompleted())
        assert (await worker.expect(AbortJob)).assignment == job.assignment
        # What was on its way already completes nothing.
        stale = await worker.expect(StaleAssignment)
        assert stale.assignment == job.assignment
        assert "not-a-path" in stale.reason
        await worker.ping()
    assert world.value("select count(*) from gradient.dispatched_job where outcome is null") == 0
    assert world.evaluation_status(evaluation) == "Failed"
    assert "not-a-path" in world.errors(evaluation)[0]


@pytest.mark.scenario(37)
async def test_a_report_sent_at_once_finds_its_assignment_and_a_foreign_one_changes_nothing(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    drv = derivation("hello")
    queued(world, drv)
    async with (
        running_server(clean_db, tmp_path) as server,
        worker_client(server.url, "w1") as one,
        worker_client(server.url, "w2") as two,
    ):
        job = await one.take("build")
        for event in (Building(), JobCompleted(), JobFailed(outcome_class="aborted", error="x")):
            await two.send_report(job.assignment, event)
            stale = await two.expect(StaleAssignment)
            assert stale.assignment == job.assignment
            assert "GR003" in stale.reason
        assert world.attempts(drv)[0]["outcome"] == "Running"
        await finish(server, one, job, drv)
        # Closed by its own end: the same report again finds nothing.
        await one.send_report(job.assignment, JobCompleted())
        await one.expect(StaleAssignment)
    assert world.status(drv) == "Completed"
    assert len(world.attempts(drv)) == 1


@pytest.mark.scenario(38)
async def test_the_end_of_one_job_closes_only_that_one(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    drvs = {drv.drv: drv for drv in (derivation("a"), derivation("b"))}
    queued(world, *drvs.values())
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.request("build", 2)
        first, second = await worker.expect(AssignJob), await worker.expect(AssignJob)
        assert isinstance(first.spec, BuildJob)
        assert isinstance(second.spec, BuildJob)
        await finish(server, worker, first, drvs[first.spec.drv])
        assert world.status(drvs[first.spec.drv]) == "Completed"
        assert world.attempts(drvs[second.spec.drv])[0]["outcome"] == "Running"
        open_ones = world.rows("select id from gradient.dispatched_job where finished_at is null")
        assert [row["id"] for row in open_ones] == [second.assignment]
        await finish(server, worker, second, drvs[second.spec.drv])


async def test_a_lost_socket_resumes_and_the_same_build_counts(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("hello")
    queued(world, drv)
    async with running_server(clean_db, tmp_path) as server:
        async with worker_client(server.url) as worker:
            job = await worker.take("build")
            await worker.report(job.assignment, Building(builder_started=True))
            await worker.cut()
        running = RunningJob(job=job.job, assignment=job.assignment)
        async with worker_client(server.url, "w1", "secret", running) as worker:
            await upload(server, *output_nars(drv, assignment=job.assignment))
            await worker.report(job.assignment, BuildOutput(), JobCompleted())
    assert world.status(drv) == "Completed"
    assert [attempt["outcome"] for attempt in world.attempts(drv)] == ["Built"]


async def test_a_worker_that_comes_back_without_its_job_has_lost_it(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("hello")
    queued(world, drv)
    async with running_server(clean_db, tmp_path) as server:
        async with worker_client(server.url) as worker:
            job = await worker.take("build")
            await worker.report(job.assignment, Building(builder_started=True))
            await worker.cut()
        async with worker_client(server.url) as worker:
            again = await worker.take("build")
            assert again.job == job.job
            assert again.assignment != job.assignment
            await finish(server, worker, again, drv)
    assert world.attempts(drv)[0]["outcome_class"] == "worker_lost"
    assert world.build(drv)["attempt"] == 0


async def test_jobs_that_are_not_the_workers_are_stopped_at_resume(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    queued(world, derivation("hello"))
    async with (
        running_server(clean_db, tmp_path) as server,
        worker_client(server.url, "w1") as one,
    ):
        job = await one.take("build")
        async with worker_client(
            server.url,
            "w2",
            "secret",
        ) as two:
            await two.send(RunningJobs(jobs=[]))
            assert "sent once" in (await two.expect(Error)).message
            await two.cut()
        running = RunningJob(job=job.job, assignment=job.assignment)
        async with worker_client(server.url, "w2", "secret", running) as two:
            await two.send_report(job.assignment, JobCompleted())
            await two.expect(StaleAssignment)
        await one.report(job.assignment, Building())


async def test_a_refused_report_fails_its_job_as_the_workers_fault(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("hello")
    queued(world, drv)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("build")
        await worker.report(job.assignment, Building(builder_started=True))
        await worker.send_report(
            job.assignment, JobFailed(outcome_class="no_such_class", error="what")
        )
        assert "no_such_class" in (await worker.expect(Error)).message
        await worker.expect(StaleAssignment, assignment=job.assignment)
        await worker.ping()
    (attempt,) = world.attempts(drv)
    assert attempt["outcome_class"] == "worker_fault"
    assert "no_such_class" in attempt["failure_message"]
    assert world.status(drv) == "FailedTransient"


async def test_the_batch_of_a_returned_walk_is_stale_and_fails_nothing(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    evaluation = world.evaluation()
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("evaluation")
        await worker.walk(job.assignment)
        await server.writer.message("graph.return_assignments", [job.assignment], "worker_lost")
        await worker.send_report(job.assignment, eval_result([derivation("late")]))
        await worker.expect(StaleAssignment, assignment=job.assignment)
        again = await worker.take("evaluation")
        assert again.job == job.job
    assert world.evaluation_status(evaluation) == "Queued"
    assert world.value("select count(*) from gradient.derivation") == 0


async def test_what_a_builder_says_is_kept_without_nul(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    drv = derivation("a")
    queued(world, drv)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("build")
        await worker.report(
            job.assignment, JobFailed(outcome_class="builder_failed", error="exit\0code 1")
        )
    assert world.status(drv) == "FailedPermanent"
    assert world.attempts(drv)[0]["failure_message"] == "exit\N{REPLACEMENT CHARACTER}code 1"


async def test_an_event_of_the_other_kind_of_job_is_refused(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("hello")
    queued(world, drv)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("build")
        await worker.send_report(job.assignment, Fetching())
        assert "Fetching" in (await worker.expect(Error)).message
        await worker.expect(StaleAssignment, assignment=job.assignment)
        build = await worker.send_report(job.assignment, eval_result([]))
        assert build
        await worker.expect(StaleAssignment, assignment=job.assignment)


async def test_an_abort_reaches_the_worker_without_a_tick(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    drv = derivation("hello")
    evaluation = queued(world, drv)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("build")
        await worker.report(job.assignment, Building(builder_started=True))
        await asyncio.to_thread(world.value, "select gradient.abort_evaluation(%s)", evaluation)
        assert (await worker.expect(AbortJob)).assignment == job.assignment
        await worker.send_report(
            job.assignment, JobFailed(outcome_class="aborted", error="stopped")
        )
        await worker.ping()
        # A second look at the same order sends nothing again.
        await asyncio.to_thread(world.value, "select gradient.kick('aborts')")
        await worker.ping()
        assert worker.none_of(AbortJob)
    assert world.evaluation_status(evaluation) == "Aborted"
    assert world.status(drv) == "Aborted"


async def test_a_draining_worker_gets_nothing_more(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db, "w1", "w2")
    async with (
        running_server(clean_db, tmp_path) as server,
        worker_client(server.url, "w1") as one,
        worker_client(server.url, "w2") as two,
    ):
        await one.request("build", 5)
        await one.send(Draining(reason="rebooting"))
        await one.ping()
        async with asyncio.timeout(10):
            while not world.value(
                "select draining from gradient.worker_connection where worker_id = 'w1'"
            ):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(queued, world, derivation("hello"))
        await two.take("build")
        await one.ping()
        assert one.none_of(AssignJob)


async def test_known_derivations_are_answered_while_a_batch_waits(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    known, unknown = derivation("known"), derivation("unknown")
    queued(world, known)
    world.evaluation()
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("evaluation")
        await worker.walk(job.assignment)
        turn = clean_db.connect(autocommit=False)
        turn.execute("select graph.take_turn()")
        await worker.send_report(job.assignment, eval_result([derivation("other")]))
        await worker.send(
            QueryKnownDerivations(query=7, assignment=job.assignment, drvs=[known.drv, unknown.drv])
        )
        answer = await worker.expect(KnownDerivations)
        assert (answer.query, answer.known) == (7, [known.drv])
        turn.rollback()
        await worker.expect(ReportAck, assignment=job.assignment)
        await worker.send(
            QueryKnownDerivations(query=8, assignment=job.assignment + 1, drvs=[known.drv])
        )
        await worker.expect(StaleAssignment, assignment=job.assignment + 1)


async def test_a_log_is_stored_in_pieces_and_acknowledged(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    queued(world, derivation("hello"))
    pieces = [b"one\ntwo\n", b"three \xff\x00 bytes as they are\n", b"no end"]
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("build")
        await worker.report(job.assignment, Building(builder_started=True))
        offset = 0
        for piece in [pieces[0], *pieces]:
            # The first piece is sent twice, as after a lost acknowledgement.
            if piece == pieces[0]:
                offset = 0
            await worker.send_log(job.assignment, offset, piece)
            offset += len(piece)
            assert (await worker.expect(LogAck)).offset == offset
    chunks = world.rows("select * from gradient.build_log_chunk order by chunk_index")
    assert [(c["byte_start"], c["byte_len"], c["line_count"]) for c in chunks] == [
        (0, 8, 2),
        (8, len(pieces[1]), 1),
        (8 + len(pieces[1]), 6, 0),
    ]
    stored = b"".join(
        zstd.decompress(
            (tmp_path / f"objects/log/{c['build_attempt']}/{c['chunk_index']}.zst").read_bytes()
        )
        for c in chunks
    )
    assert stored == b"".join(pieces)


async def test_a_lost_log_does_not_stop_a_build(
    clean_db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradient.sessions.session._FIRST_BACKOFF_SECONDS", 0.001)
    world = new_world(clean_db)
    drv = derivation("hello")
    queued(world, drv)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        job = await worker.take("build")
        # A file where the folder of the logs belongs: the store refuses every log.
        (tmp_path / "objects" / "log").write_text("in the way")
        await worker.send_log(job.assignment, 0, b"hello\n")
        assert (await worker.expect(LogAck)).offset == 6
        await finish(server, worker, job, drv)
    assert world.status(drv) == "Completed"
