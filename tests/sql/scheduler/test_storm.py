"""Workers that take, refuse, lose and finish builds while others walk and abort the same graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.database import Database
from tests.support.graph_builder import Drv, derivation, output_nars
from tests.support.graph_world import World
from tests.support.waiting import wait_until

LEVELS, WIDTH, WORKERS, WALKS = 4, 8, 4, 6


def graph() -> list[Drv]:
    """Levels of derivations, each needing two of the level below."""
    made: list[Drv] = []
    below: list[Drv] = []
    for level in range(LEVELS):
        here = [
            derivation(f"storm-{level}-{place}", *below[place : place + 2])
            for place in range(WIDTH)
        ]
        made += here
        below = [*here, here[0]]
    return made


class Worker:
    """A worker with a session of its own, and moods."""

    def __init__(self, dsn: str, name: str, builds: dict[str, Drv], over: Event) -> None:
        self.dsn, self.name, self.builds, self.over = dsn, name, builds, over
        self.moods = random.Random(name)

    def run(self) -> int:
        """Take jobs until it is over; how many were finished."""
        finished = 0
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            world = World(conn, checked=False)
            world.worker(self.name)
            number = world.value(
                "select connection from gradient.worker_connection where worker_id = %s", self.name
            )
            while not self.over.is_set():
                jobs = world.rows("select scheduler.assign(%s, %s, 'build', 2)", self.name, number)
                for job in jobs:
                    finished += self.settle(world, job["assign"])
        return finished

    def settle(self, world: World, job: dict[str, object]) -> bool:
        """What becomes of one job; whether it was finished."""
        assignment, spec = job["assignment"], job["spec"]
        assert isinstance(spec, dict)
        mood = self.moods.random()
        if mood < 0.1:
            world.value("select scheduler.reject(%s, %s, 'moody')", assignment, self.name)
            return False
        started = world.value("select graph.build_started(%s, %s, true)", assignment, self.name)
        if started["aborted"]:
            world.value(
                "select graph.build_failed(%s, %s, 'aborted', 'told to', '{}')",
                assignment,
                self.name,
            )
            return False
        if mood < 0.2:
            world.value("select graph.return_assignments(%s, 'worker_lost')", [assignment])
            return False
        nars = output_nars(self.builds[spec["drv"]], assignment=assignment)  # type: ignore[arg-type]
        world.value("select graph.commit_nars(%s)", Jsonb(nars))
        world.value("select graph.build_completed(%s, %s)", assignment, self.name)
        return True


@pytest.mark.scenario(36)
@pytest.mark.scenario(52)
def test_whatever_happens_at_once_every_build_is_finished_and_nothing_drifts(
    committed: World, clean_db: Database
) -> None:
    builds = graph()
    second = committed.task(committed.project("second", cache="main"))
    committed.worker("w1")
    first = committed.evaluate(*builds)
    over = Event()
    workers = [
        Worker(clean_db.dsn, f"v{number}", {b.drv: b for b in builds}, over)
        for number in range(WORKERS)
    ]

    def walk() -> list[int]:
        """Evaluate the same graph again and again, and abort every other evaluation."""
        evaluations = []
        with psycopg.connect(clean_db.dsn, autocommit=True) as conn:
            world = World(conn, checked=False)
            for number in range(WALKS):
                evaluation = world.evaluate(*builds, task=second)
                if number % 2:
                    world.value("select graph.abort_evaluation(%s, 'changed my mind')", evaluation)
                evaluations.append(evaluation)
        return evaluations

    with ThreadPoolExecutor(WORKERS + 1) as pool:
        running = [pool.submit(worker.run) for worker in workers]
        try:
            evaluations = [first, *pool.submit(walk).result(timeout=120)]
            wait_until(
                _ended(committed, evaluations, running), timeout=120, what="the end of the builds"
            )
        finally:
            over.set()
        finished = [future.result(timeout=30) for future in running]

    committed.check()
    assert sum(finished) == len(builds)
    assert set(committed.statuses(*builds)) == {"Completed"}
    assert committed.rows("select * from gradient.drift") == []
    statuses = [committed.evaluation_status(evaluation) for evaluation in evaluations]
    assert statuses[0] == "Completed"
    assert set(statuses[1::2]) == {"Completed"}


def _ended(world: World, evaluations: list[int], running: list[Future[int]]) -> Callable[[], bool]:
    def ended() -> bool:
        # A worker that broke would be waited for in vain.
        for future in running:
            if future.done():
                future.result()
        found: bool = world.value(
            "select bool_and(finished_at is not null) from gradient.evaluation where id = any(%s)",
            evaluations,
        )
        return found

    return ended
