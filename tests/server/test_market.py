"""Offers and assignments: moved by kicks alone, since these servers have no tick."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from gradient.protocol import (
    AssignJob,
    AssignJobResponse,
    Building,
    BuildJob,
    BuildOutput,
    InitAck,
    JobCompleted,
    JobOffer,
    JobScore,
    JobScores,
    RequestJobList,
)
from tests.support.database import Database
from tests.support.graph_builder import Drv, derivation, output_nars
from tests.support.graph_world import World
from tests.support.server_client import connected, hello, worker_client
from tests.support.server_running import new_world, running_server, upload

_walkers = itertools.count(1)


def queued(world: World, *drvs: Drv) -> int:
    """An evaluation whose builds wait for a worker."""
    return world.evaluate(*drvs, worker=f"walker-{next(_walkers)}")


def job_name(world: World, drv: Drv) -> str:
    return f"build:{world.id(drv)}"


@pytest.mark.scenario(43)
async def test_a_chain_of_builds_advances_without_a_tick(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    chain = [derivation("link-0")]
    for number in range(1, 25):
        chain.append(derivation(f"link-{number}", chain[-1]))
    evaluation = queued(world, *chain)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.request("build", 100)
        for drv in chain:
            job = await worker.expect(AssignJob)
            assert isinstance(job.spec, BuildJob)
            assert job.spec.drv == drv.drv
            await upload(server, *output_nars(drv, assignment=job.assignment))
            await worker.report(job.assignment, Building(), BuildOutput(), JobCompleted())
        await worker.ping()
        assert worker.none_of(AssignJob)
    assert world.evaluation_status(evaluation) == "Completed"


async def test_a_request_stands_until_it_is_served(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.request("build", 1)
        await worker.ping()
        await asyncio.to_thread(queued, world, derivation("a"), derivation("b"))
        job = await worker.expect(AssignJob)
        # One slot was asked for, so the second build stays.
        await asyncio.to_thread(world.value, "select gradient.kick('builds')")
        await worker.ping()
        assert worker.none_of(AssignJob)
        await worker.request("build", 1)
        assert (await worker.expect(AssignJob)).job != job.job


async def test_a_withdrawn_request_is_not_served(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db, "w1", "w2")
    async with (
        running_server(clean_db, tmp_path) as server,
        worker_client(server.url, "w1") as one,
        worker_client(server.url, "w2") as two,
    ):
        await one.request("build", 3)
        await one.request("build", 0)
        await one.ping()
        await asyncio.to_thread(queued, world, derivation("a"))
        await two.take("build")
        await one.ping()
        assert one.none_of(AssignJob)


async def test_nothing_is_assigned_before_the_worker_named_its_running_jobs(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    queued(world, derivation("a"))
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send(hello("w1", "secret"))
        await worker.expect(InitAck)
        await worker.capabilities()
        await worker.request("build")
        await worker.ping()
        assert worker.none_of(AssignJob)
        await worker.resume()
        await worker.expect(AssignJob)


async def test_offers_are_deltas(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    a, b = derivation("a"), derivation("b")
    queued(world, a)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.send(RequestJobList())
        first = await worker.expect(JobOffer)
        assert [c.job for c in first.candidates] == [job_name(world, a)]
        assert first.candidates[0].drv == a.drv
        assert first.candidates[0].architecture == "x86_64-linux"
        assert first.candidates[0].outputs == list(a.outputs.values())
        await asyncio.to_thread(queued, world, b)
        second = await worker.expect(JobOffer)
        assert [c.job for c in second.candidates] == [job_name(world, b)]
        # Asked for everything, it gets everything anew.
        await worker.send(RequestJobList())
        third = await worker.expect(JobOffer)
        assert {c.job for c in third.candidates} == {job_name(world, a), job_name(world, b)}


async def test_scores_reach_the_database(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    a = derivation("a")
    queued(world, a)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.send(RequestJobList())
        await worker.expect(JobOffer)
        job = job_name(world, a)
        await worker.send(
            JobScores(scores=[JobScore(job=job, missing_count=3, missing_nar_size=1000)])
        )
        async with asyncio.timeout(10):
            while not (scores := world.rows("select * from gradient.offer_score")):
                await asyncio.sleep(0.01)
    (score,) = scores
    assert (score["worker_id"], score["job"], score["missing_count"]) == ("w1", job, 3)


@pytest.mark.scenario(39)
async def test_a_rejected_job_is_offered_and_assigned_again_at_once(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    a = derivation("a")
    queued(world, a)
    async with (
        running_server(clean_db, tmp_path) as server,
        worker_client(server.url, "w1") as one,
        worker_client(server.url, "w2") as two,
    ):
        name = job_name(world, a)
        for worker in (one, two):
            await worker.send(RequestJobList())
            await worker.offered(name)
        await one.request("build")
        job = await one.expect(AssignJob)
        await one.send(
            AssignJobResponse(assignment=job.assignment, accepted=False, reason="no such feature")
        )
        await one.offered(name)
        await two.offered(name)
        again = await two.take("build")
        assert again.job == name
    first, second = world.attempts(a)
    assert first["outcome_class"] == "rejected"
    assert "no such feature" in first["failure_message"]
    assert second["outcome"] == "Running"
    assert world.build(a)["attempt"] == 0


async def test_a_job_goes_only_to_a_worker_that_can_run_it(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    queued(world, derivation("arm", architecture="aarch64-linux"))
    async with (
        running_server(clean_db, tmp_path) as server,
        worker_client(server.url, "w1") as intel,
        worker_client(server.url, "w2", architectures=["aarch64-linux"]) as arm,
    ):
        await intel.request("build")
        await intel.ping()
        await arm.take("build")
        await intel.ping()
        assert intel.none_of(AssignJob)


@pytest.mark.scenario(36)
async def test_two_workers_that_ask_at_once_never_get_the_same_build(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db, "w1", "w2")
    drvs = [derivation(f"p-{n}") for n in range(20)]
    async with (
        running_server(clean_db, tmp_path / "one", instance="one") as one,
        running_server(clean_db, tmp_path / "two", instance="two") as two,
        worker_client(one.url, "w1") as first,
        worker_client(two.url, "w2") as second,
    ):
        await first.capabilities(build_slots=20)
        await second.capabilities(build_slots=20)
        await first.request("build", 20)
        await second.request("build", 20)
        await first.ping()
        await second.ping()
        await asyncio.to_thread(queued, world, *drvs)
        async with asyncio.timeout(15):
            while (
                world.value("select count(*) from gradient.dispatched_job where kind = 'Build'")
                < 20
            ):
                await asyncio.sleep(0.02)
        jobs = []
        for worker in (first, second):
            await worker.ping()
            while not worker.none_of(AssignJob):
                jobs.append((await worker.expect(AssignJob)).job)
    assert len(jobs) == len(set(jobs)) == 20
