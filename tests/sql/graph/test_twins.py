"""Two derivations that make the same path."""

from __future__ import annotations

import pytest

from tests.support.graph_builder import derivation
from tests.support.graph_world import World

FIRST = derivation("first")
SECOND = derivation("second", output_of={"out": FIRST}, outputs=("out", "doc"))
USER = derivation("user", FIRST, SECOND)


@pytest.mark.scenario(7)
def test_twins_do_not_wait_for_each_other(world: World) -> None:
    evaluation = world.evaluate(FIRST, SECOND, USER)
    assert world.statuses(FIRST, SECOND, USER) == ["Queued", "Queued", "Created"]
    # The path both make refers to itself and to the other output of the second.
    out, doc = SECOND.outputs["out"], SECOND.outputs["doc"]
    world.start(FIRST)
    world.start(SECOND)
    world.upload_outputs(FIRST, out, doc)
    world.complete(FIRST)
    assert world.status(FIRST) == "Completed"
    assert not world.build(FIRST)["fetchable"], "its reference is not there yet"
    world.upload_outputs(SECOND, out, doc)
    world.complete(SECOND)
    assert world.build(FIRST)["fetchable"]
    assert world.build(SECOND)["fetchable"]
    world.run(USER, out)
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(7)
def test_a_runtime_edge_blocks_no_build(world: World) -> None:
    other = derivation("other")
    world.evaluate(FIRST)
    world.start(FIRST)
    world.upload_outputs(FIRST, other.outputs["out"])
    world.evaluate(other)
    kinds = world.rows("select kind from gradient.derivation_dependency")
    assert [k["kind"] for k in kinds] == ["Runtime"]
    assert world.build(FIRST)["blocking_deps"] == 0
    assert world.build(FIRST)["missing_runtime_deps"] == 1


def test_a_build_edge_that_is_used_at_run_time_is_both(world: World) -> None:
    world.evaluate(FIRST)
    world.run(FIRST)
    user = derivation("one-user", FIRST)
    world.evaluate(user)
    world.run(user, FIRST.outputs["out"])
    assert world.value("select kind from gradient.derivation_dependency") == "Both"


def test_a_path_that_refers_to_itself_is_complete(world: World) -> None:
    world.evaluate(FIRST)
    world.run(FIRST, FIRST.outputs["out"])
    assert world.build(FIRST)["fetchable"]
    assert world.value("select count(*) from gradient.derivation_dependency") == 0
