"""A person aborts one build inside of one evaluation."""

from __future__ import annotations

from typing import LiteralString

import pytest

from tests.support.database import Database
from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused
from tests.support.sessions import TwoSessions
from tests.support.waiting import wait_until

LEAF = derivation("leaf")
OTHER = derivation("other")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE, OTHER)

ABORT = "select gradient.abort_build(%s, %s)"


def test_an_aborted_build_fails_what_needs_it_and_nothing_else(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, TOP, entry_points=[TOP, OTHER])
    report = world.message(ABORT, evaluation, world.id(LEAF))
    assert report == {"status": "Aborted", "dependents": 2}
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Aborted", "DependencyFailed", "DependencyFailed"]
    assert world.ready() == {"other"}
    assert world.evaluation_status(evaluation) == "Building"
    world.run(OTHER)
    assert world.evaluation_status(evaluation) == "Failed"


def test_an_abort_is_no_failure_also_after_a_passing_one(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF, "network")
    world.later(minutes=5)
    world.message("select graph.requeue()")
    world.message(ABORT, evaluation, world.id(LEAF))
    assert world.build(MIDDLE)["failed_by"] is None
    assert world.evaluation_status(evaluation) == "Failed"


def test_what_only_the_aborted_build_needed_is_wanted_no_more(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, entry_points=[MIDDLE, OTHER])
    world.message(ABORT, evaluation, world.id(MIDDLE))
    assert not world.build(LEAF)["wanted"]
    assert world.statuses(LEAF, MIDDLE) == ["Skipped", "Aborted"]


def test_the_worker_of_an_aborted_build_is_asked_to_stop(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER)
    world.start(LEAF)
    world.message(ABORT, evaluation, world.id(LEAF))
    [row] = world.rows(
        "select abort_requested_at, finished_at from gradient.dispatched_job where job = %s",
        world.job(LEAF),
    )
    assert row["abort_requested_at"] is not None
    assert row["finished_at"] is None
    assert world.start(LEAF) == {"aborted": True}
    world.message(
        "select graph.build_failed(%s, %s, 'aborted', null, null)",
        *world.assignment(world.job(LEAF)),
    )
    assert world.status(LEAF) == "Aborted"
    assert [attempt["outcome"] for attempt in world.attempts(LEAF)] == ["Aborted"]


@pytest.mark.scenario(19)
def test_a_build_that_another_evaluation_names_goes_on(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE)
    second = world.evaluate(LEAF)
    with refused("GR001", "NeededByOtherEvaluation", f"evaluation {second}"):
        world.message(ABORT, first, world.id(LEAF))
    assert world.status(LEAF) == "Queued"


@pytest.mark.scenario(19)
def test_a_build_below_what_another_evaluation_names_goes_on(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE, OTHER, TOP)
    # Its walk was pruned above the leaf.
    second = world.start_walk()
    world.record(second, [], [TOP])
    world.complete_walk(second)
    world.conn.execute(
        "delete from gradient.build_job where evaluation = %s and derivation_build = %s",
        [second, world.id(LEAF)],
    )
    with refused("GR001", "NeededByOtherEvaluation", f"evaluation {second}"):
        world.message(ABORT, first, world.id(LEAF))


@pytest.mark.scenario(19)
def test_a_later_evaluation_may_build_what_was_aborted(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE)
    world.message(ABORT, first, world.id(LEAF))
    third = world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(third) == "Completed"


def test_an_ended_evaluation_refuses(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    with refused("GR001", "EvaluationFinished", "Completed"):
        world.message(ABORT, evaluation, world.id(LEAF))


def test_a_build_that_has_ended_or_waits_for_its_retry_is_refused(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER)
    world.run(LEAF)
    world.fail(OTHER, "network")
    for drv in (LEAF, OTHER):
        with refused("GR001", "WrongStatus", world.status(drv)):
            world.message(ABORT, evaluation, world.id(drv))


def test_a_build_that_the_evaluation_does_not_name_is_refused(world: World) -> None:
    first = world.evaluate(LEAF)
    world.evaluate(OTHER)
    with refused("GR002", "does not name"):
        world.message(ABORT, first, world.id(OTHER))
    with refused("GR002", "no evaluation"):
        world.message(ABORT, first + 1000, world.id(OTHER))


BOTH = ("evaluation", "build")
CALLS: list[tuple[LiteralString, tuple[str, ...], bool]] = [
    ("select gradient.abort_build(%s, %s)", BOTH, False),
    ("select gradient.abort_evaluation(%s)", ("evaluation",), False),
    ("select gradient.prioritize_build(%s::text)", ("build",), False),
    ("select gradient.repair(%s)", ("evaluation",), False),
    ("select gradient.retry_build(%s, %s)", BOTH, True),
    ("select gradient.retry_evaluation(%s)", ("evaluation",), True),
]


@pytest.mark.scenario(52)
@pytest.mark.parametrize("call, arguments, after_failure", CALLS)
def test_a_deadlock_does_not_reach_a_person(
    clean_db: Database,
    two_sessions: TwoSessions,
    call: LiteralString,
    arguments: tuple[str, ...],
    after_failure: bool,
) -> None:
    world = World(clean_db.connect())
    world.task(world.project())
    evaluation = world.evaluate(LEAF, MIDDLE)
    if after_failure:
        world.fail(LEAF)
    a, b = two_sessions.a, two_sessions.b
    # Only the person's session looks for a deadlock, and so is the one that is chosen.
    a.execute("set deadlock_timeout = '1h'")
    b.execute("set deadlock_timeout = '1s'")
    a.commit()
    b.commit()
    row = "select from gradient.derivation_build where derivation = %s for update"
    a.execute(row, [world.id(LEAF)])
    values = {"evaluation": evaluation, "build": world.id(LEAF)}
    calling = two_sessions.blocks(b, call, [values[name] for name in arguments])
    before = deadlocks(world)
    two_sessions.start(a, "select graph.take_turn()").result(timeout=30)
    a.commit()
    calling.result(timeout=30)
    b.commit()
    wait_until(lambda: deadlocks(world) > before, 30, "the deadlock in the statistics")


def deadlocks(world: World) -> int:
    """How many deadlocks this database has seen."""
    seen: int = world.value(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    return seen
