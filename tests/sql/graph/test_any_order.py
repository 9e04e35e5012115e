"""Batches, NARs and completions in any order: every invariant holds, one graph at the end."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.database import Connection
from tests.support.graph_builder import Drv, derivation, drv_nar, output_nars, source_nar
from tests.support.graph_world import World

# More examples for whoever has the time: GRADIENT_EXAMPLES=500.
EXAMPLES = int(os.environ.get("GRADIENT_EXAMPLES", "15"))
# An example takes a second, so a failing one is shrunk only on demand: GRADIENT_SHRINK=1.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
if os.environ.get("GRADIENT_SHRINK"):
    PHASES.append(Phase.shrink)
examples = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=PHASES,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


ORDERS = st.integers(0, 2**32)


@dataclass(frozen=True)
class Graph:
    """Derivations with inputs before what needs them, and how their builds behave."""

    drvs: tuple[Drv, ...]
    entry_points: frozenset[str]
    references: dict[str, tuple[str, ...]]
    failing: frozenset[str]


def inputs_from(drvs: list[Drv]) -> st.SearchStrategy[list[Drv]]:
    """Up to three of the derivations so far."""
    return st.lists(st.sampled_from(drvs), max_size=3, unique_by=lambda drv: drv.drv)


@st.composite
def graphs(draw: st.DrawFn, *, twins: bool, failures: bool) -> Graph:
    """Small graphs with diamonds, twins, several outputs, sources and references."""
    drvs: list[Drv] = []
    references: dict[str, tuple[str, ...]] = {}
    below: dict[str, set[str]] = {}
    for number in range(draw(st.integers(2, 7))):
        inputs = draw(inputs_from(drvs)) if drvs else []
        # Twins are fixed-output derivations, and those have one output.
        single = [drv for drv in drvs if twins and len(drv.outputs) == 1]
        twin = draw(st.sampled_from(single)) if single and draw(st.integers(0, 4)) == 0 else None
        outputs = ("out",) if twin else draw(st.sampled_from([("out",), ("out", "dev")]))
        drv = derivation(
            f"n{number}",
            *inputs,
            outputs=outputs,
            output_of={"out": twin} if twin is not None else {},
            sources=draw(st.lists(st.sampled_from(["s1", "s2"]), max_size=2, unique=True)),
        )
        # What its outputs may refer to: whatever its inputs have, and its own outputs.
        below[drv.drv] = {path for i in inputs for path in (*below[i.drv], *i.outputs.values())}
        if twin is None:
            possible = sorted({*below[drv.drv], *drv.outputs.values(), *drv.sources})
            references[drv.drv] = tuple(
                draw(st.lists(st.sampled_from(possible), max_size=3, unique=True))
            )
        else:
            # The same path is the same NAR, whoever makes it.
            references[drv.drv] = references[twin.drv]
        drvs.append(drv)
    entry_points = draw(st.sets(st.sampled_from([d.drv for d in drvs]), min_size=1, max_size=3))
    failing: set[str] = set()
    if failures:
        failing = draw(st.sets(st.sampled_from([d.drv for d in drvs]), max_size=2))
    return Graph(tuple(drvs), frozenset(entry_points), references, frozenset(failing))


class Play:
    """One evaluation of a graph, step by step in the order that `rng` says."""

    def __init__(self, conn: Connection, graph: Graph, rng: random.Random) -> None:
        self.graph = graph
        self.rng = rng
        self.world = World(conn)
        self.world.task(self.world.project())
        self.evaluation = self.world.start_walk()
        self.running: dict[str, list[str]] = {}
        self.by_job: dict[str, Drv] = {}
        self.interruptions = 3

    def finish(self) -> None:
        """The walk in a random order with builds in between, then the builds that are left."""
        for step in self._walk_steps():
            step()
            while self.rng.random() < 0.4 and self._step_of_builds():
                pass
        self.world.complete_walk(self.evaluation)
        for _ in range(1000):
            if not self._step_of_builds():
                return
        raise AssertionError("the builds never end")

    def _walk_steps(self) -> list[Callable[[], Any]]:
        world, rng = self.world, self.rng
        assignment = world.assignments[f"eval:{self.evaluation}"]
        drvs = list(self.graph.drvs)
        rng.shuffle(drvs)
        steps: list[Callable[[], Any]] = []
        while drvs:
            size = rng.randint(1, len(drvs))
            # Now and then a derivation is recorded twice.
            again = rng.sample(self.graph.drvs, rng.randint(0, 1))
            steps.append(self._recording([*drvs[:size], *again]))
            del drvs[:size]
        nars = [drv_nar(d, assignment=assignment) for d in self.graph.drvs]
        nars += [
            source_nar(path, assignment=assignment)
            for path in sorted({path for d in self.graph.drvs for path in d.sources})
        ]
        for nar in nars:
            steps.append(lambda nar=nar: world.commit(nar))  # type: ignore[misc]
        rng.shuffle(steps)
        return steps

    def _recording(self, drvs: Sequence[Drv]) -> Callable[[], Any]:
        entry_points = [d for d in drvs if d.drv in self.graph.entry_points]
        return lambda: self.world.record(self.evaluation, drvs, entry_points)

    def _step_of_builds(self) -> bool:
        """One step of some build; False when nothing runs and nothing is ready."""
        ready = self.world.value("select count(*) from gradient.ready_build")
        if ready and (not self.running or self.rng.random() < 0.5):
            return self._take()
        if not self.running:
            return False
        job = self.rng.choice(list(self.running))
        drv, left = self.by_job[job], self.running[job]
        if self.interruptions and self.rng.random() < 0.1:
            self.interruptions -= 1
            del self.running[job]
            self.world.message(
                "select graph.return_assignments(%s, 'worker_lost')", [self.world.assignments[job]]
            )
        elif drv.drv in self.graph.failing:
            del self.running[job]
            self.world.fail(drv)
        elif left:
            output = left.pop()
            self.world.commit(
                *output_nars(
                    drv,
                    self.graph.references[drv.drv],
                    assignment=self.world.assignments[job],
                    outputs=[output],
                )
            )
        else:
            del self.running[job]
            report = self.world.complete(drv)
            assert report["status"] == "Completed"
        return True

    def _take(self) -> bool:
        jobs = self.world.take("build")
        # By name: the ids, and with them the order, differ between two plays.
        taken = [(d, job) for d in self.graph.drvs for job in jobs if self._recorded_as(d, job)]
        assert len(taken) == len(jobs)
        for drv, job in taken:
            self.by_job[job] = drv
            self.running[job] = self.rng.sample(list(drv.outputs), len(drv.outputs))
            if self.rng.random() < 0.8:
                self.world.start(drv)
        return bool(jobs)

    def _recorded_as(self, drv: Drv, job: str) -> bool:
        found = self.world.value(
            "select id from gradient.derivation where hash = %s and name = %s", drv.hash, drv.name
        )
        return job == f"build:{found}"

    def projection(self) -> list[list[dict[str, Any]]]:
        """The end by names: what is known, and of what the entry points need, every counter."""
        rows = self.world.rows
        return [
            rows(
                "select d.hash, d.name, d.walked, d.drv_present, d.unwalked_inputs"
                " from gradient.derivation d order by 1, 2"
            ),
            rows(
                "select d.name, i.name as input, e.kind from gradient.derivation_dependency e"
                " join gradient.derivation d on d.id = e.derivation"
                " join gradient.derivation i on i.id = e.dependency order by 1, 2"
            ),
            rows(
                "select d.name, o.name as output, o.cached_path is not null as backed"
                " from gradient.derivation_output o"
                " join gradient.derivation d on d.id = o.derivation order by 1, 2"
            ),
            rows(
                "with recursive needed (id) as ("
                " select derivation from gradient.entry_point union"
                " select e.dependency from needed n"
                " join gradient.derivation_dependency e on e.derivation = n.id)"
                " select d.name, b.status in ('Completed', 'Substituted') as success, b.fetchable,"
                " b.wanted, b.blocking_deps, b.missing_runtime_deps, b.missing_sources"
                " from needed n join gradient.derivation d on d.id = n.id"
                " join gradient.derivation_build b on b.derivation = n.id order by 1"
            ),
            rows("select status from gradient.evaluation"),
        ]


def play(conn: Connection, graph: Graph, order: int) -> list[list[dict[str, Any]]]:
    """Play the graph in the order of this seed, and take it back; the projection of its end."""
    with conn.transaction(force_rollback=True):
        played = Play(conn, graph, random.Random(order))
        played.finish()
        [[evaluation]] = [[row["status"] for row in played.world.rows(
            "select status from gradient.evaluation")]]  # fmt: skip
        assert evaluation in ("Completed", "Failed")
        assert played.world.ready() == set()
        return played.projection()


@pytest.mark.scenario(5)
@pytest.mark.scenario(18)
@pytest.mark.timeout(0)
@examples
@given(
    graph=graphs(twins=False, failures=False),
    one=ORDERS,
    other=ORDERS,
)
def test_every_order_of_batches_nars_and_completions_ends_in_the_same_graph(
    db: Connection, graph: Graph, one: int, other: int
) -> None:
    # Without twins: whether one is built or found in the cache depends on who came first.
    first, second = play(db, graph, one), play(db, graph, other)
    assert first == second
    assert all(row["success"] and row["fetchable"] for row in first[3])
    assert first[4] == [{"status": "Completed"}]


@pytest.mark.scenario(18)
@pytest.mark.timeout(0)
@examples
@given(graph=graphs(twins=True, failures=True), order=ORDERS)
def test_no_order_of_failures_breaks_an_invariant_or_leaves_anything_waiting(
    db: Connection, graph: Graph, order: int
) -> None:
    end = play(db, graph, order)
    if not graph.failing:
        assert end[4] == [{"status": "Completed"}]
        done = {row["name"] for row in end[3] if row["success"] and row["fetchable"]}
        assert {d.name for d in graph.drvs if d.drv in graph.entry_points} <= done
