"""Builds whose inputs are gone from the cache when a worker fetches them."""

from __future__ import annotations

import pytest

from tests.support.graph_builder import derivation, source
from tests.support.graph_world import World

LEAF = derivation("leaf")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE)
OUT = LEAF.outputs["out"]


def miss(world: World, *paths: str) -> str:
    """Report MIDDLE as failed because these paths are missing; its status."""
    report = world.fail(MIDDLE, "missing_input", "cannot fetch an input", paths)
    status: str = report["status"]
    return status


def wait_for_retry(world: World) -> None:
    """Let the backoff of every failure run out."""
    world.later(hours=1)
    world.message("select graph.requeue()")


@pytest.mark.scenario(26)
def test_a_missing_input_is_built_again_and_then_the_build_is_tried_again(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TOP)
    world.run(LEAF)
    assert miss(world, OUT) == "FailedTransient"
    assert world.statuses(LEAF, TOP) == ["Queued", "Created"]
    wait_for_retry(world)
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Queued", "Created", "Created"]
    world.run(LEAF)
    assert world.status(MIDDLE) == "Queued"
    world.run(MIDDLE)
    world.run(TOP)
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(26)
@pytest.mark.parametrize("budget", [3, 9])
def test_after_three_rounds_the_build_fails_and_names_the_path(world: World, budget: int) -> None:
    world.conn.execute(
        "update gradient.setting set value = %s where name = 'build.max_attempts'", [str(budget)]
    )
    evaluation = world.evaluate(LEAF, MIDDLE, TOP)
    world.run(LEAF)
    # With the usual budget of attempts the third failure is the last; with a larger one the
    # three repairs are.
    rounds = 2 if budget == 3 else 3
    for _ in range(rounds):
        assert miss(world, OUT) == "FailedTransient"
        assert world.status(TOP) == "Created"
        wait_for_retry(world)
        world.run(LEAF)
        assert world.status(MIDDLE) == "Queued"
    assert miss(world, OUT) == "FailedPermanent"
    assert OUT in world.attempts(MIDDLE)[-1]["failure_message"]
    assert world.status(TOP) == "DependencyFailed"
    if budget == 9:
        assert world.status(LEAF) == "Completed", "it is not built for nothing a fourth time"
    else:
        world.run(LEAF)
    assert world.evaluation_status(evaluation) == "Failed"


def test_another_failure_demotes_nothing(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    world.fail(MIDDLE, "network", "reset", [OUT])
    assert world.status(LEAF) == "Completed"


def test_a_worker_cannot_have_what_is_no_input_of_its_build_made_again(world: World) -> None:
    apart = derivation("apart")
    world.evaluate(LEAF, MIDDLE, apart, TOP)
    world.run(LEAF)
    world.run(apart)
    assert miss(world, apart.outputs["out"], MIDDLE.outputs["out"], "nonsense", "/etc/passwd") == (
        "FailedTransient"
    )
    assert world.statuses(LEAF, apart) == ["Completed", "Completed"]


def test_an_input_of_an_input_is_built_again_too(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TOP)
    world.run(LEAF)
    world.run(MIDDLE, OUT)
    world.fail(TOP, "missing_input", "cannot fetch an input", [OUT])
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Queued", "Completed", "FailedTransient"]
    world.run(LEAF)
    wait_for_retry(world)
    world.run(TOP)
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(47)
@pytest.mark.scenario(48)
def test_what_nothing_makes_is_kept_and_only_outputs_that_refer_to_it_are_made_again(
    world: World,
) -> None:
    leaf = derivation("leaf-of-tree", sources=["tree"])
    middle = derivation("middle-of-tree", leaf, sources=["tree"])
    world.evaluate(leaf, middle)
    world.run(leaf, source("tree"))
    world.fail(middle, "missing_input", "cannot fetch an input", [source("tree")])
    assert world.statuses(leaf, middle) == ["Queued", "FailedTransient"]
    assert world.derivation(leaf)["drv_present"]
    assert world.derivation(middle)["drv_present"]
    assert world.build(leaf)["missing_sources"] == 0


def test_a_producer_that_failed_in_passing_is_tried_again(world: World) -> None:
    twin = derivation("twin", output_of={"out": LEAF})
    world.evaluate(LEAF, twin, MIDDLE, TOP)
    world.fail(twin, "timeout_total")
    world.run(LEAF)
    assert world.status(twin) == "FailedTimeout"
    miss(world, OUT)
    assert world.statuses(LEAF, twin) == ["Queued", "Queued"]


def test_a_producer_whose_builder_failed_is_not_tried_again(world: World) -> None:
    twin = derivation("twin", output_of={"out": LEAF})
    world.evaluate(LEAF, twin, MIDDLE, TOP)
    world.fail(twin, "builder_failed")
    world.run(LEAF)
    miss(world, OUT)
    assert world.statuses(LEAF, twin) == ["Queued", "FailedPermanent"]


def test_an_input_whose_rebuild_fails_fails_the_build_with_it(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TOP)
    world.run(LEAF)
    miss(world, OUT)
    world.fail(LEAF, "builder_failed")
    assert world.statuses(MIDDLE, TOP) == ["DependencyFailed", "DependencyFailed"]
    assert world.evaluation_status(evaluation) == "Failed"
