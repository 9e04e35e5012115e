"""Garbage: evaluations that a task keeps no longer, derivations that nothing needs any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.graph_builder import Drv, derivation
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def stopped_clock(world: World) -> None:
    """Rows have an age in these tests."""
    world.at(START)


def forget(world: World, *evaluations: int) -> dict[str, Any]:
    """Delete evaluations; the report."""
    report: dict[str, Any] = world.message("select graph.gc_evaluations(%s)", list(evaluations))
    return report


def collect(world: World, *drvs: Drv, scanned_at: datetime | None = None) -> dict[str, Any]:
    """Delete derivations that a scan, now if not said, found unreachable; the report."""
    report: dict[str, Any] = world.message(
        "select graph.gc_derivations(%s, %s)",
        [world.id(drv) for drv in drvs],
        scanned_at or START + timedelta(days=365),
    )
    return report


def names(world: World) -> set[str]:
    """The derivations that there are."""
    return {row["name"] for row in world.rows("select name from gradient.derivation")}


def namers(world: World, drv: Drv) -> set[int]:
    """The evaluations that name a shared build."""
    return {
        row["evaluation"]
        for row in world.rows(
            "select evaluation from gradient.build_job where derivation_build = %s", world.id(drv)
        )
    }


def finished(world: World, *drvs: Drv) -> int:
    """An evaluation whose builds have all run."""
    evaluation = world.evaluate(*drvs)
    for drv in drvs:
        world.run(drv)
    assert world.evaluation_status(evaluation) == "Completed"
    return evaluation


# Evaluations ----------------------------------------------------------------------------------


def test_an_ended_evaluation_goes_and_its_builds_attempts_and_logs_stay(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.start(LEAF)
    world.message(
        "select graph.append_log(%s, %s, 0, 10, 1, 5)", *world.assignment(world.job(LEAF))
    )
    world.run(LEAF)
    later = world.evaluate(LEAF)
    world.conn.execute(
        "update gradient.evaluation set previous = %s where id = %s", [evaluation, later]
    )
    assert forget(world, evaluation) == {"evaluations": [evaluation], "adopted": 0}
    assert world.value("select previous is null from gradient.evaluation where id = %s", later)
    assert world.status(LEAF) == "Completed"
    [attempt] = world.attempts(LEAF)
    assert attempt["build_job"] is None
    assert world.value("select count(*) from gradient.build_log_chunk") == 1
    assert (
        world.value(
            "select count(*) from gradient.phase_event where subject_kind = 'Evaluation'"
            " and subject = %s",
            evaluation,
        )
        == 0
    )
    assert forget(world, evaluation) == {"evaluations": [], "adopted": 0}


def test_an_evaluation_in_flight_survives(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    assert forget(world, evaluation)["evaluations"] == []
    assert world.evaluation_status(evaluation) == "Building"


def test_an_evaluation_that_a_worker_still_holds_survives(world: World) -> None:
    evaluation = world.start_walk()
    world.message("select graph.abort_evaluation(%s, 'enough')", evaluation)
    assert forget(world, evaluation)["evaluations"] == []
    world.message(
        "select graph.return_assignments(%s, 'aborted')",
        [world.assignments[f"eval:{evaluation}"]],
    )
    assert forget(world, evaluation)["evaluations"] == [evaluation]


@pytest.mark.scenario(11)
def test_what_another_evaluation_still_wants_gets_its_name(world: World) -> None:
    first = world.start_walk()
    world.upload(first, LEAF, MIDDLE)
    world.record(first, [LEAF, MIDDLE], [MIDDLE])
    second = world.start_walk()
    world.upload(second, TOP)
    world.record(second, [TOP], [TOP])
    world.message("select graph.fail_evaluation(%s, 'broken', 'scheduler')", first)
    world.message(
        "select graph.return_assignments(%s, 'aborted')", [world.assignments[f"eval:{first}"]]
    )
    assert namers(world, LEAF) == {first}
    assert forget(world, first) == {"evaluations": [first], "adopted": 1}
    assert namers(world, LEAF) == {second}
    assert world.status(LEAF) == "Queued"
    world.complete_walk(second)
    for drv in (LEAF, MIDDLE, TOP):
        world.run(drv)
    assert world.evaluation_status(second) == "Completed"


@pytest.mark.scenario(17)
def test_what_only_the_deleted_evaluation_wanted_leaves_the_queue(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.message("select graph.fail_evaluation(%s, 'broken', 'scheduler')", evaluation)
    assert world.status(LEAF) == "Queued"
    forget(world, evaluation)
    assert world.statuses(LEAF, MIDDLE) == ["Skipped", "Skipped"]
    assert world.ready() == set()


def test_what_is_an_entry_point_no_more_is_skipped(world: World) -> None:
    first = world.start_walk()
    world.upload(first, LEAF, MIDDLE)
    world.record(first, [LEAF, MIDDLE], [MIDDLE])
    world.evaluate(LEAF, MIDDLE, TOP, entry_points=[TOP])
    upstream = {TOP.outputs["out"][11:43]: {"url": "https://up.example"}}
    world.message("select graph.upstream_hits(%s)", Jsonb(upstream))
    world.message("select graph.abort_evaluation(%s, 'enough')", first)
    world.message(
        "select graph.return_assignments(%s, 'aborted')", [world.assignments[f"eval:{first}"]]
    )
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Skipped", "Created", "Queued"]
    forget(world, first)
    assert world.status(MIDDLE) == "Skipped"


def test_a_project_whose_evaluation_is_gone_is_offered_its_builds_no_more(world: World) -> None:
    first = world.evaluate(LEAF)
    other = world.project("other")
    world.evaluate(LEAF, task=world.task(other))
    assert world.value("select count(*) from gradient.ready_build") == 2
    world.message("select graph.fail_evaluation(%s, 'broken', 'scheduler')", first)
    forget(world, first)
    assert world.value("select project from gradient.ready_build") == other


def test_a_build_that_runs_outlives_the_evaluation_that_drove_it(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.start(LEAF)
    world.message("select graph.fail_evaluation(%s, 'broken', 'scheduler')", evaluation)
    forget(world, evaluation)
    assert world.status(LEAF) == "Building"
    world.run(LEAF)
    assert world.status(LEAF) == "Completed"


def test_a_task_keeps_the_newest_and_loses_the_oldest_first(world: World) -> None:
    task = world.value("select id from gradient.task")
    world.conn.execute("update gradient.task set keep_evaluations = 2")
    other = world.task(world.value("select id from gradient.project"))
    elsewhere = world.evaluate(LEAF, task=other)
    world.run(LEAF)
    ended = [world.evaluate(LEAF, task=task) for _ in range(4)]
    report = world.message("select graph.keep_evaluations(%s)", task)
    assert report["evaluations"] == ended[:2]
    assert world.message("select graph.keep_evaluations(%s)", task)["evaluations"] == []
    left = {row["id"] for row in world.rows("select id from gradient.evaluation")}
    assert left == {elsewhere, *ended[2:]}
    with refused("GR002", "12345"):
        world.message("select graph.keep_evaluations(12345)")


def test_an_evaluation_in_flight_holds_its_task_back_for_a_day(world: World) -> None:
    task = world.value("select id from gradient.task")
    world.conn.execute("update gradient.task set keep_evaluations = 1")
    earlier = [world.evaluate(LEAF)]
    world.run(LEAF)
    ended = [world.evaluate(LEAF) for _ in range(2)]
    walking = world.start_walk()
    assert world.message("select graph.keep_evaluations(%s)", task)["evaluations"] == []
    world.complete_walk(walking)
    stuck = world.start_walk()
    world.later(hours=25)
    assert world.message("select graph.keep_evaluations(%s)", task)["evaluations"] == [
        *earlier,
        *ended,
    ]
    assert world.evaluation_status(stuck) == "EvaluatingDerivation"


def test_every_task_loses_what_it_keeps_no_longer_a_few_at_a_time(world: World) -> None:
    project = world.value("select id from gradient.project")
    first, second = world.value("select id from gradient.task"), world.task(project)
    world.conn.execute("update gradient.task set keep_evaluations = 1")
    world.evaluate(LEAF)
    world.run(LEAF)
    for task in (first, second):
        for _ in range(2):
            world.evaluate(LEAF, task=task)
    assert world.message("select graph.collect_evaluations()") == 2
    held = world.start_walk(world.evaluation(second))
    assert world.message("select graph.collect_evaluations()") == 0
    world.complete_walk(held)
    assert world.message("select graph.collect_evaluations()") == 2
    assert world.message("select graph.collect_evaluations()") == 0
    left = world.rows("select task from gradient.evaluation order by task")
    assert [row["task"] for row in left] == [first, second]


# Derivations ----------------------------------------------------------------------------------


def test_what_nothing_names_goes_with_its_attempts(world: World) -> None:
    evaluation = finished(world, LEAF, MIDDLE)
    attempts = [world.attempts(drv)[0]["id"] for drv in (LEAF, MIDDLE)]
    forget(world, evaluation)
    ids = sorted([world.id(LEAF), world.id(MIDDLE)])
    report = collect(world, LEAF, MIDDLE)
    assert report == {"derivations": ids, "attempts": attempts, "unwalked": 0}
    assert names(world) == set()
    assert (
        world.value("select count(*) from gradient.phase_event where subject_kind = 'Build'") == 0
    )


def test_what_is_named_or_needed_survives(world: World) -> None:
    finished(world, LEAF, MIDDLE)
    above = world.evaluate(TOP)
    forget(world, *(e for e in namers(world, LEAF) if e != above))
    assert namers(world, LEAF) == set()
    assert collect(world, LEAF, MIDDLE, TOP)["derivations"] == []
    assert names(world) == {"leaf", "middle", "top"}


@pytest.mark.scenario(50)
def test_what_became_referenced_since_the_scan_survives(world: World) -> None:
    forget(world, finished(world, LEAF, MIDDLE))
    # The scan found both; before the delete a walk prunes at MIDDLE.
    second = world.start_walk()
    world.upload(second, TOP)
    world.record(second, [TOP], [TOP])
    assert collect(world, LEAF, MIDDLE)["derivations"] == []
    world.complete_walk(second)
    world.run(TOP)
    assert world.evaluation_status(second) == "Completed"


@pytest.mark.scenario(50)
def test_what_was_made_after_the_scan_survives(world: World) -> None:
    world.later(hours=2)
    forget(world, finished(world, LEAF))
    assert collect(world, LEAF, scanned_at=START + timedelta(hours=1))["derivations"] == []
    assert len(collect(world, LEAF, scanned_at=START + timedelta(hours=3))["derivations"]) == 1


@pytest.mark.scenario(50)
def test_an_object_of_two_derivations_survives_the_deletion_of_one(world: World) -> None:
    twin = derivation("twin", output_of={"out": LEAF})
    first = finished(world, twin)
    world.evaluate(LEAF)
    forget(world, first)
    assert len(collect(world, LEAF, twin)["derivations"]) == 1
    assert names(world) == {"leaf"}
    assert world.build(LEAF)["fetchable"]


@pytest.mark.scenario(49)
def test_a_failed_build_that_can_be_retried_is_kept_with_its_drv(world: World) -> None:
    world.evaluate(LEAF)
    world.fail(LEAF)
    assert collect(world, LEAF)["derivations"] == []
    assert world.derivation(LEAF)["drv_present"]


def test_a_build_that_a_worker_holds_is_kept(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.start(LEAF)
    world.message("select graph.fail_evaluation(%s, 'broken', 'scheduler')", evaluation)
    forget(world, evaluation)
    assert collect(world, LEAF)["derivations"] == []
    world.run(LEAF)
    assert len(collect(world, LEAF)["derivations"]) == 1


def test_a_survivor_that_needed_a_deleted_input_is_walked_again(world: World) -> None:
    forget(world, finished(world, LEAF, MIDDLE, TOP))
    report = collect(world, LEAF)
    assert report["unwalked"] == 1
    assert names(world) == {"middle", "top"}
    assert not world.derivation(MIDDLE)["walked"]
    known = world.rows(
        "select drv from graph.known_derivations(%s, %s) as k (drv)",
        world.evaluation(),
        [MIDDLE.drv, TOP.drv],
    )
    assert known == []
    # The next walk makes it whole again, and nothing is built twice.
    second = world.evaluate(LEAF, MIDDLE, TOP, entry_points=[TOP])
    assert world.evaluation_status(second) == "Completed"
    assert world.derivation(MIDDLE)["walked"]
    assert world.build(TOP)["fetchable"]


def test_garbage_goes_in_any_number_of_steps(world: World) -> None:
    forget(world, finished(world, LEAF, MIDDLE, TOP))
    assert len(collect(world, LEAF)["derivations"]) == 1
    assert world.derivation(TOP)["unwalked_inputs"] == 1
    assert len(collect(world, MIDDLE)["derivations"]) == 1
    assert world.derivation(TOP)["unwalked_inputs"] == 0
    assert len(collect(world, TOP)["derivations"]) == 1
    assert names(world) == set()


def test_what_a_survivor_refers_to_is_kept(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    world.run(MIDDLE, LEAF.outputs["out"])
    forget(world, evaluation)
    assert collect(world, LEAF)["derivations"] == []
    assert len(collect(world, LEAF, MIDDLE)["derivations"]) == 2


def test_a_survivor_that_failed_with_a_deleted_input_forgets_that_failure(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TOP)
    world.fail(LEAF)
    forget(world, evaluation)
    assert len(collect(world, LEAF)["derivations"]) == 1
    assert world.statuses(MIDDLE, TOP) == ["Skipped", "Skipped"]
    assert world.build(TOP)["failed_by"] is None
