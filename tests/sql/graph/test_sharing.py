"""One shared build for all: what a second evaluation or project finds done."""

from __future__ import annotations

import pytest

from tests.support.graph_builder import Drv, batch, derivation
from tests.support.graph_world import World

LEAF = derivation("leaf", sources=["leaf.c"])
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE)


def build_all(world: World, *drvs: Drv) -> None:
    """Build them in this order; each output refers to the one before it."""
    references: list[str] = []
    for drv in drvs:
        world.run(drv, *references)
        references = list(drv.outputs.values())


@pytest.mark.scenario(8)
def test_an_evaluation_of_built_derivations_is_completed_at_once(world: World) -> None:
    build_all(world, *_evaluated(world, LEAF, MIDDLE, TOP))
    again = world.evaluate(TOP)
    assert world.evaluation_status(again) == "Completed"
    assert world.ready() == set()


def _evaluated(world: World, *drvs: Drv) -> tuple[Drv, ...]:
    world.evaluate(*drvs)
    return drvs


@pytest.mark.scenario(8)
def test_a_new_derivation_whose_outputs_are_cached_starts_substituted(world: World) -> None:
    build_all(world, *_evaluated(world, LEAF, MIDDLE))
    # Another derivation of the same output, as when only its .drv changed.
    twin = derivation("twin", output_of={"out": MIDDLE})
    evaluation = world.evaluate(twin)
    assert world.status(twin) == "Substituted"
    assert world.build(twin)["fetchable"]
    assert world.attempts(twin) == []
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(8)
def test_cached_outputs_with_an_incomplete_closure_are_not_substituted(world: World) -> None:
    runtime = derivation("runtime")
    world.evaluate(runtime, LEAF)
    world.run(LEAF, *runtime.outputs.values())
    twin = derivation("twin", output_of={"out": LEAF})
    world.evaluate(twin)
    assert world.status(twin) != "Substituted"
    assert not world.build(twin)["fetchable"]


def test_two_evaluations_share_one_build(world: World) -> None:
    one = world.evaluate(LEAF, MIDDLE)
    other = world.evaluate(LEAF, TOP, MIDDLE)
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(one) == "Completed"
    assert world.evaluation_status(other) == "Building"
    world.run(TOP)
    assert world.evaluation_status(other) == "Completed"
    assert [len(world.attempts(drv)) for drv in (LEAF, MIDDLE, TOP)] == [1, 1, 1]


def test_a_build_is_ready_for_every_project_that_names_it(world: World) -> None:
    second = world.project("second")
    world.evaluate(LEAF)
    world.evaluate(LEAF, task=world.task(second))
    assert world.value("select count(*) from gradient.ready_build") == 2


@pytest.mark.scenario(51)
def test_a_second_project_gets_a_cache_without_holes_though_its_walk_was_pruned(
    world: World,
) -> None:
    build_all(world, *_evaluated(world, LEAF, MIDDLE, TOP))
    second = world.project("second")
    evaluation = world.evaluate(TOP, task=world.task(second))
    assert world.evaluation_status(evaluation) == "Completed"
    cache = world.value("select cache from gradient.project_cache where project = %s", second)
    closure = {path for drv in (LEAF, MIDDLE, TOP) for path in drv.outputs.values()}
    assert closure <= world.claims(cache)


def test_a_cache_subscribed_after_the_verdict_owes_nothing(world: World) -> None:
    build_all(world, *_evaluated(world, LEAF, MIDDLE))
    project = world.value("select id from gradient.project")
    late = world.cache("late")
    world.subscribe(project, late)
    world.check()
    # The next evaluation fills it.
    world.evaluate(MIDDLE)
    closure = {path for drv in (LEAF, MIDDLE) for path in drv.outputs.values()}
    assert closure <= world.claims(late)


@pytest.mark.scenario(11)
def test_a_pruned_subtree_survives_the_evaluation_that_walked_it(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE)
    second = world.start_walk()
    world.upload(second, TOP)
    known = world.rows("select graph.known_derivations(%s, %s) as drv", second, [MIDDLE.drv])
    assert [k["drv"] for k in known] == [MIDDLE.drv]
    world.record(second, [TOP], [TOP])
    world.complete_walk(second)
    world.conn.execute("delete from gradient.evaluation where id = %s", [first])
    world.check()
    names = world.rows(
        "select d.name from gradient.build_job j join gradient.derivation d"
        " on d.id = j.derivation_build where j.evaluation = %s",
        second,
    )
    assert {n["name"] for n in names} == {"leaf", "middle", "top"}
    build_all(world, LEAF, MIDDLE, TOP)
    assert world.evaluation_status(second) == "Completed"


def test_evaluations_of_one_flush_are_recorded_together(world: World) -> None:
    one, other = world.start_walk(), world.start_walk()
    world.upload(one, LEAF, MIDDLE)
    reports = world.record_all(
        [
            batch(one, [MIDDLE], [MIDDLE]),
            batch(other, [LEAF], [LEAF]),
            batch(one, [LEAF]),
        ]
    )
    assert [r["evaluation"] for r in reports] == [one, other, one]
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    world.complete_walk(one)
    world.complete_walk(other)
    world.run(LEAF)
    assert world.evaluation_status(other) == "Completed"
    assert world.evaluation_status(one) == "Building"


def test_aborting_an_evaluation_leaves_what_another_needs(world: World) -> None:
    one = world.evaluate(LEAF, MIDDLE)
    other = world.evaluate(LEAF)
    world.start(LEAF)
    world.message("select graph.abort_evaluation(%s, %s)", one, "a user said so")
    assert world.statuses(LEAF, MIDDLE) == ["Building", "Aborted"]
    assert world.evaluation_status(one) == "Aborted"
    world.upload_outputs(LEAF)
    world.complete(LEAF)
    assert world.evaluation_status(other) == "Completed"


@pytest.mark.scenario(19)
def test_an_aborted_build_may_be_built_by_the_next_evaluation(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE)
    world.start(LEAF)
    world.message("select graph.abort_evaluation(%s, %s)", first, "a user said so")
    assert world.statuses(LEAF, MIDDLE) == ["Aborted", "Aborted"]
    assert world.build(LEAF)["attempt"] == 0
    world.message(
        "select graph.build_failed(%s, %s, 'aborted', 'stopped', '{}')",
        *world.assignment(world.job(LEAF)),
    )
    assert world.statuses(LEAF, MIDDLE) == ["Aborted", "Aborted"]
    following = world.evaluate(LEAF, MIDDLE)
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    build_all(world, LEAF, MIDDLE)
    assert world.evaluation_status(following) == "Completed"


@pytest.mark.scenario(19)
def test_a_pruning_evaluation_thaws_what_an_abort_left_below(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE)
    world.message("select graph.abort_evaluation(%s, %s)", first, "a user said so")
    second = world.start_walk()
    world.upload(second, TOP)
    world.record(second, [TOP], [TOP])
    world.complete_walk(second)
    build_all(world, LEAF, MIDDLE, TOP)
    assert world.evaluation_status(second) == "Completed"
