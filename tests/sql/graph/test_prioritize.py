"""What a person puts first is handed out first."""

from __future__ import annotations

from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
OTHER = derivation("other")
MIDDLE = derivation("middle", LEAF)


def first(world: World) -> str:
    [job] = world.take("build", slots=1)
    return job


def test_a_prioritized_build_goes_first_with_what_it_waits_for(world: World) -> None:
    world.evaluate(OTHER)
    world.later(hours=1)
    world.evaluate(LEAF, MIDDLE)
    assert world.message("select gradient.prioritize_build(%s)", MIDDLE.drv) == {"builds": 2}
    assert first(world) == world.job(LEAF)
    world.run(LEAF)
    assert first(world) == world.job(MIDDLE)
    assert first(world) == world.job(OTHER)


def test_without_a_priority_the_oldest_goes_first(world: World) -> None:
    world.evaluate(OTHER)
    world.later(hours=1)
    world.evaluate(LEAF, MIDDLE)
    assert first(world) == world.job(OTHER)


def test_a_prioritized_evaluation_goes_first_also_with_what_becomes_ready(world: World) -> None:
    third = derivation("third")
    world.evaluate(OTHER, third)
    world.later(hours=1)
    evaluation = world.evaluate(LEAF, MIDDLE)
    report = world.message("select gradient.prioritize_evaluation(%s)", evaluation)
    assert report == {"builds": 1}
    assert first(world) == world.job(LEAF)
    world.run(LEAF)
    assert first(world) == world.job(MIDDLE)


def test_what_has_ended_is_not_hurried(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    with refused("GR001", "EvaluationFinished"):
        world.message("select gradient.prioritize_evaluation(%s)", evaluation)
    with refused("GR001", "WrongStatus", "Completed"):
        world.message("select gradient.prioritize_build(%s)", str(world.id(LEAF)))
    with refused("GR002"):
        world.message("select gradient.prioritize_build('99999')")
    with refused("GR002"):
        world.message("select gradient.prioritize_evaluation(99999)")
