"""Many sessions play evaluations of one graph at once: nothing hangs, nothing is miscounted."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.database import Database, check
from tests.support.graph_builder import Drv, batch, drv_nar, output_nars, source_nar
from tests.support.graph_real import generate_graph, in_batches
from tests.support.graph_world import World

SESSIONS = 4
_T = TypeVar("_T")


def retried(call: Callable[[], _T]) -> _T:
    """What the graph writer does with a conflict: the transaction again, three attempts."""
    for _ in range(2):
        try:
            return call()
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            continue
    return call()


def walk(world: World, evaluation: int, graph: list[Drv], rng: random.Random) -> None:
    """Record the graph in batches of five, uploads before each, in an order of its own."""
    assignment = world.assignments[f"eval:{evaluation}"]
    ordered = rng.sample(graph, len(graph))
    for drvs in in_batches(ordered, 5):
        nars = [drv_nar(drv, assignment=assignment) for drv in drvs]
        nars += [
            source_nar(path, assignment=assignment)
            for path in sorted({path for drv in drvs for path in drv.sources})
        ]
        retried(lambda nars=nars: world.commit(*nars))  # type: ignore[misc]
        flush = [batch(evaluation, drvs, [drv for drv in drvs if drv.top])]
        retried(lambda flush=flush: world.record_all(flush))  # type: ignore[misc]
    retried(lambda: world.complete_walk(evaluation))


def build_what_is_ready(world: World, worker: str, by_job: dict[str, Drv]) -> bool:
    """Take a few builds and run them; False when there was none to take."""
    jobs = retried(lambda: world.take("build", worker, slots=3))
    for job in jobs:
        drv = by_job[job]
        assignment = world.assignments[job]
        retried(
            lambda a=assignment: world.message(  # type: ignore[misc]
                "select graph.build_started(%s, %s, true)", a, worker
            )
        )
        nars = output_nars(drv, drv.outputs.values(), assignment=assignment)
        retried(lambda nars=nars: world.commit(*nars))  # type: ignore[misc]
        retried(
            lambda a=assignment: world.message(  # type: ignore[misc]
                "select graph.build_completed(%s, %s)", a, worker
            )
        )
    return bool(jobs)


@pytest.mark.scenario(36)
@pytest.mark.scenario(52)
@pytest.mark.timeout(300)
def test_sessions_that_walk_and_build_one_graph_end_all_evaluations(clean_db: Database) -> None:
    graph = generate_graph(60)
    setup = World(clean_db.connect(), checked=False)
    setup.task(setup.project())
    for number in range(SESSIONS):
        setup.worker(f"w{number}", architectures=["x86_64-linux", "i686-linux"])
    evaluations = [setup.start_walk(worker=f"w{n}") for n in range(SESSIONS)]
    # The ids of the derivations are known before anybody builds: one walk has recorded them.
    setup.record_all([batch(evaluations[0], graph)])
    by_job = {setup.job(drv): drv for drv in graph}

    def play(number: int) -> None:
        worker = f"w{number}"
        world = World(clean_db.connect(), checked=False)
        world.assignments.update(setup.assignments)
        world.walker.update(setup.walker)
        walk(world, evaluations[number], graph, random.Random(number))
        # Who finds nothing to build is done: whoever runs something goes on with what it frees.
        while build_what_is_ready(world, worker, by_job):
            pass

    with ThreadPoolExecutor(SESSIONS) as pool:
        for future in [pool.submit(play, number) for number in range(SESSIONS)]:
            future.result()
    check(setup.conn)
    assert {setup.evaluation_status(e) for e in evaluations} == {"Completed"}
    twice = setup.rows(
        "select derivation_build from gradient.build_attempt group by 1 having count(*) > 1"
    )
    assert twice == []


def test_the_turn_orders_writers(clean_db: Database) -> None:
    setup = World(clean_db.connect(), checked=False)
    evaluation = setup.start_walk()
    writing = clean_db.connect(autocommit=False)
    writing.execute("select graph.record(%s)", [Jsonb([batch(evaluation, generate_graph(3))])])
    held = setup.value(
        "select count(*) from pg_locks where locktype = 'advisory' and classid = 642"
        " and mode = 'ExclusiveLock' and pid = %s",
        writing.info.backend_pid,
    )
    assert held == 1
    writing.rollback()
