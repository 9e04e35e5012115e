"""Counters: folded, read and recounted; a wrong one heals and is told."""

from __future__ import annotations

from typing import Any, LiteralString

import pytest

from tests.support.graph_builder import derivation
from tests.support.graph_world import World

LEAF = derivation("leaf", sources=["leaf.c"])
OTHER = derivation("other")
TOP = derivation("top", LEAF, OTHER, sources=["top.c"])

COLUMNS = ("named", "active", "failed", "queued", "building")


def counters(world: World, evaluation: int) -> dict[str, int]:
    """An evaluation's counters as they are read: the column and what is not folded yet."""
    [row] = world.rows(
        "select e.named_shared_builds + coalesce(sum(d.named), 0)::int as named,"
        " e.active_shared_builds + coalesce(sum(d.active), 0)::int as active,"
        " e.failed_shared_builds + coalesce(sum(d.failed), 0)::int as failed,"
        " e.queued_shared_builds + coalesce(sum(d.queued), 0)::int as queued,"
        " e.building_shared_builds + coalesce(sum(d.building), 0)::int as building"
        " from gradient.evaluation e"
        " left join gradient.evaluation_shared_build_delta d on d.evaluation = e.id"
        " where e.id = %s group by e.id",
        evaluation,
    )
    return row


def counts(*numbers: int) -> dict[str, int]:
    """Counters in the order named, active, failed, queued, building."""
    return dict(zip(COLUMNS, numbers, strict=True))


def ledger(world: World) -> int:
    """How many rows wait to be folded."""
    rows: int = world.value("select count(*) from gradient.evaluation_shared_build_delta")
    return rows


def test_counters_follow_every_step_of_a_build(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, TOP)
    assert counters(world, evaluation) == counts(3, 3, 0, 2, 0)
    world.start(LEAF)
    assert counters(world, evaluation) == counts(3, 3, 0, 1, 1)
    world.upload_outputs(LEAF)
    world.complete(LEAF)
    assert counters(world, evaluation) == counts(3, 2, 0, 1, 0)
    world.fail(OTHER, "network")
    assert counters(world, evaluation) == counts(3, 2, 0, 0, 0)
    world.later(hours=1)
    world.message("select graph.requeue()")
    assert counters(world, evaluation) == counts(3, 2, 0, 1, 0)
    world.fail(OTHER)
    # The verdict writes them anew.
    assert world.evaluation_status(evaluation) == "Failed"
    assert counters(world, evaluation) == counts(3, 0, 2, 0, 0)


def test_folding_changes_no_counter_and_empties_the_ledger(world: World) -> None:
    one = world.evaluate(LEAF, TOP, OTHER)
    other = world.evaluate(LEAF)
    world.start(LEAF)
    before = [counters(world, e) for e in (one, other)]
    waiting = ledger(world)
    assert waiting > 0
    assert world.message("select graph.fold_evaluation_counters()") == waiting
    assert ledger(world) == 0
    assert [counters(world, e) for e in (one, other)] == before
    assert world.message("select graph.fold_evaluation_counters()") == 0


def test_only_evaluations_in_flight_are_counted(world: World) -> None:
    ended = world.evaluate(LEAF)
    world.run(LEAF)
    assert world.evaluation_status(ended) == "Completed"
    world.message("select graph.fold_evaluation_counters()")
    world.evaluate(LEAF, OTHER)
    world.run(OTHER)
    rows = world.value(
        "select count(*) from gradient.evaluation_shared_build_delta where evaluation = %s", ended
    )
    assert rows == 0


def test_a_recount_writes_the_truth_and_drops_the_ledger_rows(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER)
    world.conn.execute(
        "update gradient.evaluation set active_shared_builds = 99 where id = %s", [evaluation]
    )
    world.message("select graph.recount_evaluations(%s)", [evaluation])
    assert ledger(world) == 0
    assert counters(world, evaluation) == counts(2, 2, 0, 2, 0)


def test_only_a_flip_spreads(world: World) -> None:
    world.evaluate(LEAF, OTHER, TOP)
    world.run(LEAF)
    assert world.build(TOP)["blocking_deps"] == 1
    for _ in range(2):
        world.message("select flipped from graph.became_fetchable(%s)", [world.id(LEAF)])
        world.message("select flipped from graph.lost_fetchability(%s)", [world.id(OTHER)])
        world.message("select graph.ripple_recorded('{}', '{}')")
    assert world.build(TOP)["blocking_deps"] == 1


@pytest.mark.parametrize(
    ("counter", "break_it", "move"),
    [
        (
            "blocking_deps",
            "update gradient.derivation_build set blocking_deps = 0 where derivation = %s",
            lambda world: (world.run(LEAF), world.run(OTHER)),
        ),
        (
            "missing_sources",
            "update gradient.derivation_build set missing_sources = 0 where derivation = %s",
            lambda world: world.upload(1, TOP),
        ),
        (
            "unwalked_inputs",
            "update gradient.derivation set unwalked_inputs = 0 where id = %s",
            lambda world: world.upload(1, LEAF, OTHER, TOP),
        ),
    ],
)
def test_a_counter_that_would_fall_below_zero_is_recounted_and_told(
    world: World, counter: str, break_it: LiteralString, move: Any
) -> None:
    world.checked = False
    with world.conn.transaction(force_rollback=True):
        evaluation = world.start_walk()
        world.assignments["eval:1"] = world.assignments[f"eval:{evaluation}"]
        if counter == "blocking_deps":
            world.upload(evaluation, LEAF, OTHER, TOP)
        world.record(evaluation, [LEAF, OTHER, TOP], [TOP])
        world.conn.execute(break_it, [world.id(TOP)])
        move(world)
        left = world.rows("select distinct rule from gradient.violations()")
        assert [row["rule"] for row in left] == ["drift"]
        [line] = world.rows("select distinct counter, derivation from gradient.drift")
        assert line == {"counter": counter, "derivation": world.id(TOP)}
