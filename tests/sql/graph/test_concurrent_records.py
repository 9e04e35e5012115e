"""Two writers record overlapping walks at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.database import Connection, Database, check
from tests.support.graph_builder import Drv, batch
from tests.support.graph_real import (
    generate_graph,
    in_batches,
    load_graph,
    real_graph_path,
    walk_order,
)
from tests.support.graph_world import World

# In one statement, and so in one snapshot: is everything below what is known walked?
UNWALKED_BELOW_KNOWN = """
with recursive below (id) as (
  select d.id
  from graph.known_derivations(%s, %s) as k (drv)
  join gradient.derivation d on d.hash = left(k.drv, 32)
    and d.name = substr(k.drv, 34, length(k.drv) - 37)
  union
  select e.dependency
  from below b join gradient.derivation_dependency e on e.derivation = b.id
)
select count(*) filter (where not d.walked or not d.drv_present), count(*)
from below b join gradient.derivation d on d.id = b.id
"""


def large_graph(size: int) -> list[Drv]:
    """A closed piece of the real graph, or of one like it: the first `size` with all inputs."""
    path = real_graph_path()
    graph = load_graph(path)[:size] if path is not None else generate_graph(size)
    needed = {name for drv in graph for name in drv.dependencies}
    return [replace(drv, top=drv.top or drv.drv not in needed) for drv in graph]


def retried(call: Callable[[], object]) -> None:
    """What the graph writer does with a conflict: the transaction again, three attempts."""
    for left in (2, 1, 0):
        try:
            call()
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            if not left:
                raise
        else:
            return


def record_walk(
    conn: Connection, evaluation: int, walk: Sequence[Drv], batches_a_call: int
) -> None:
    """Record a walk in batches of 50, some batches a call, each call its own transaction."""
    batches = list(in_batches(walk))
    for start in range(0, len(batches), batches_a_call):
        flush = [
            batch(evaluation, drvs, [d for d in drvs if d.top])
            for drvs in batches[start : start + batches_a_call]
        ]
        retried(lambda flush=flush: conn.execute("select graph.record(%s)", [Jsonb(flush)]))  # type: ignore[misc]


def overlapping(database: Database, graph: list[Drv], batches_a_call: int) -> None:
    """Two walks of the same graph, from opposite ends, at the same time."""
    setup = World(database.connect(), checked=False)
    setup.task(setup.project())
    setup.task(setup.project("second"))
    evaluations = [setup.start_walk(setup.evaluation(task)) for task in (1, 2)]
    for drvs in in_batches(graph, 2000):
        setup.upload(evaluations[0], *drvs)
    walks = [walk_order(graph), walk_order(graph)[::-1]]

    done = threading.Event()
    observer = database.connect()

    def observe() -> int:
        seen = 0
        names = [drv.drv for drv in graph[:: max(1, len(graph) // 50)]]
        # It looks often, and leaves the processor to the writers in between.
        while not done.wait(0.2):
            row = observer.execute(UNWALKED_BELOW_KNOWN, [evaluations[0], names]).fetchone()
            assert row is not None
            assert row[0] == 0, "told known about a subtree that is not wholly recorded"
            seen = max(seen, row[1])
        return seen

    with ThreadPoolExecutor(3) as pool:
        watching = pool.submit(observe)
        recording: list[Future[None]] = [
            pool.submit(record_walk, database.connect(), evaluation, walk, batches_a_call)
            for evaluation, walk in zip(evaluations, walks, strict=True)
        ]
        try:
            for future in recording:
                future.result()
        finally:
            done.set()
        watching.result()

    check(setup.conn)
    recorded: list[tuple[Any, ...]] = setup.conn.execute(
        "select count(*), count(*) filter (where walked and unwalked_inputs = 0),"
        " (select count(*) from gradient.derivation_dependency),"
        " (select count(*) from gradient.build_job) from gradient.derivation"
    ).fetchall()
    edges = sum(len(drv.dependencies) for drv in graph)
    assert recorded == [(len(graph), len(graph), edges, 2 * len(graph))]
    assert [setup.evaluation_status(e) for e in evaluations] == ["EvaluatingDerivation"] * 2
    for evaluation in evaluations:
        setup.complete_walk(evaluation)
        assert setup.evaluation_status(evaluation) == "Building"
    check(setup.conn)


@pytest.mark.scenario(1)
@pytest.mark.scenario(55)
@pytest.mark.timeout(300)
def test_two_writers_record_overlapping_walks_at_once(clean_db: Database) -> None:
    overlapping(clean_db, large_graph(2000), batches_a_call=1)


@pytest.mark.scenario(55)
@pytest.mark.timeout(300)
def test_without_the_turn_the_keys_alone_keep_the_counters_of_two_writers(
    clean_db: Database,
) -> None:
    clean_db.connect().execute("update gradient.setting set value = 'off' where name = 'turn'")
    overlapping(clean_db, large_graph(600), batches_a_call=1)


@pytest.mark.scenario(55)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_writers_record_the_whole_real_graph_at_once(clean_db: Database) -> None:
    if real_graph_path() is None or not os.environ.get("GRADIENT_WHOLE_GRAPH"):
        pytest.skip("takes minutes and the real graph: GRADIENT_WHOLE_GRAPH=1")
    overlapping(clean_db, large_graph(50_000), batches_a_call=20)
