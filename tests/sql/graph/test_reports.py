"""Reports of workers: each belongs to its assignment, and counts once."""

from __future__ import annotations

from typing import Any, LiteralString

import pytest
from psycopg.types.json import Jsonb

from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
OTHER = derivation("other")

BUILD_REPORTS: list[tuple[LiteralString, tuple[Any, ...]]] = [
    ("select graph.build_started(%s, %s, %s)", (True,)),
    ("select graph.build_output(%s, %s, %s, %s)", (False, Jsonb({}))),
    ("select graph.build_completed(%s, %s)", ()),
    ("select graph.build_failed(%s, %s, %s, %s, %s)", ("builder_failed", "broken", [])),
    ("select graph.append_log(%s, %s, %s, %s, %s, %s)", (0, 10, 1, 5)),
]
EVALUATION_REPORTS: list[tuple[LiteralString, tuple[Any, ...]]] = [
    ("select graph.fetch_started(%s, %s)", ()),
    ("select graph.fetch_completed(%s, %s, %s, %s, %s, %s)", (None, "0" * 40, "", "")),
    ("select graph.evaluating_flake(%s, %s)", ()),
    ("select graph.evaluating_derivations(%s, %s)", ()),
    ("select graph.stream_completed(%s, %s)", ()),
    ("select graph.evaluation_failed(%s, %s, %s, %s)", ("evaluation_failed", "broken")),
]


def state(world: World) -> list[dict[str, Any]]:
    """The statuses of everything."""
    return world.rows(
        "select 'build' as kind, derivation as id, status::text, attempt"
        " from gradient.derivation_build"
        " union all select 'evaluation', id, status::text, 0 from gradient.evaluation"
        " union all select 'attempt', id, outcome::text, 0 from gradient.build_attempt"
        " union all select 'job', id, coalesce(outcome::text, 'open'), 0"
        " from gradient.dispatched_job order by 1, 2"
    )


@pytest.mark.scenario(37)
@pytest.mark.parametrize(("report", "arguments"), BUILD_REPORTS)
def test_a_build_report_of_another_worker_or_assignment_changes_nothing(
    world: World, report: LiteralString, arguments: tuple[Any, ...]
) -> None:
    evaluation = world.evaluate(LEAF)
    assignment = world.assign(LEAF)
    before = state(world)
    for number, worker in [
        (assignment, "w2"),
        (assignment + 1000, "w1"),
        (world.assignments[f"eval:{evaluation}"], "w1"),
    ]:
        with refused("GR003", str(number)):
            world.message(report, number, worker, *arguments)
    assert state(world) == before


@pytest.mark.scenario(37)
@pytest.mark.parametrize(("report", "arguments"), EVALUATION_REPORTS)
def test_an_evaluation_report_of_another_worker_or_assignment_changes_nothing(
    world: World, report: LiteralString, arguments: tuple[Any, ...]
) -> None:
    world.evaluate(LEAF)
    evaluation = world.start_walk()
    build = world.assign(LEAF)
    assignment = world.assignments[f"eval:{evaluation}"]
    before = state(world)
    for number, worker in [(assignment, "w2"), (assignment + 1000, "w1"), (build, "w1")]:
        with refused("GR003", str(number)):
            world.message(report, number, worker, *arguments)
    assert state(world) == before


@pytest.mark.scenario(37)
@pytest.mark.parametrize(("report", "arguments"), BUILD_REPORTS)
def test_a_report_after_the_job_was_returned_changes_nothing(
    world: World, report: LiteralString, arguments: tuple[Any, ...]
) -> None:
    world.evaluate(LEAF)
    world.start(LEAF)
    late = world.assignment(world.job(LEAF))
    world.message("select graph.return_assignments(%s, 'worker_lost')", [late[0]])
    world.start(LEAF)
    before = state(world)
    with refused("GR003", str(late[0])):
        world.message(report, *late, *arguments)
    assert state(world) == before


@pytest.mark.scenario(37)
def test_a_build_that_ends_right_after_it_was_handed_out_finds_its_assignment(
    world: World,
) -> None:
    evaluation = world.evaluate(LEAF)
    world.assign(LEAF)
    world.upload_outputs(LEAF)
    assert world.complete(LEAF)["status"] == "Completed"
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(38)
def test_the_end_of_one_job_closes_only_that_one(world: World) -> None:
    world.evaluate(LEAF, OTHER)
    world.start(LEAF)
    world.start(OTHER)
    world.upload_outputs(LEAF)
    world.complete(LEAF)
    assert world.statuses(LEAF, OTHER) == ["Completed", "Building"]
    world.fail(OTHER)
    assert world.statuses(LEAF, OTHER) == ["Completed", "FailedPermanent"]


def test_a_completion_said_twice_counts_once(world: World) -> None:
    user = derivation("user", LEAF)
    world.evaluate(LEAF, OTHER, user)
    world.run(LEAF)
    before = state(world)
    assert world.complete(LEAF)["status"] == "Completed"
    assert state(world) == before
    assert world.build(user)["blocking_deps"] == 0


def test_a_failure_said_twice_counts_once(world: World) -> None:
    world.evaluate(LEAF)
    first = world.fail(LEAF, "network")
    before = state(world)
    again = world.message(
        "select graph.build_failed(%s, %s, 'network', 'it broke', '{}')",
        *world.assignment(world.job(LEAF)),
    )
    assert again["status"] == first["status"]
    assert state(world) == before
    assert world.build(LEAF)["attempt"] == 1


def test_a_failure_after_a_completion_is_stale(world: World) -> None:
    world.evaluate(LEAF)
    world.run(LEAF)
    with refused("GR003"):
        world.message(
            "select graph.build_failed(%s, %s, 'builder_failed', 'late', '{}')",
            *world.assignment(world.job(LEAF)),
        )
    assert world.status(LEAF) == "Completed"


def test_the_end_of_a_walk_said_twice_counts_once(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    before = state(world)
    assert world.complete_walk(evaluation)["status"] == "Building"
    assert state(world) == before


def test_the_start_of_an_aborted_build_is_answered_with_abort(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.assign(LEAF)
    world.message("select graph.abort_evaluation(%s, %s)", evaluation, "a user said so")
    report = world.message(
        "select graph.build_started(%s, %s, true)", *world.assignment(world.job(LEAF))
    )
    assert report["aborted"]
    assert world.status(LEAF) == "Aborted"


@pytest.mark.scenario(44)
def test_the_clock_of_a_build_starts_with_its_builder(world: World) -> None:
    world.evaluate(LEAF)
    world.start(LEAF, builder_started=False)
    assert world.status(LEAF) == "Building"
    assert world.attempts(LEAF)[0]["build_started_at"] is None
    world.start(LEAF, builder_started=True)
    assert world.attempts(LEAF)[0]["build_started_at"] is not None


def test_a_substituted_output_makes_a_substituted_build(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.start(LEAF)
    world.report_output(LEAF, substituted=True)
    world.upload_outputs(LEAF)
    assert world.complete(LEAF)["status"] == "Substituted"
    assert world.attempts(LEAF)[0]["outcome"] == "Substituted"
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_piece_of_log_is_kept_once(world: World) -> None:
    world.evaluate(LEAF)
    world.start(LEAF)
    call: LiteralString = "select graph.append_log(%s, %s, %s, %s, %s, %s)"
    job = world.assignment(world.job(LEAF))
    first = world.message(call, *job, 0, 100, 3, 50)
    again = world.message(call, *job, 0, 100, 3, 50)
    second = world.message(call, *job, 100, 20, 1, 15)
    assert first["chunk_index"] == again["chunk_index"] == 0
    assert second["chunk_index"] == 1
    chunks = world.rows("select byte_start, byte_len from gradient.build_log_chunk order by 1")
    assert [(c["byte_start"], c["byte_len"]) for c in chunks] == [(0, 100), (100, 20)]


def test_the_phases_of_an_evaluation_are_stamped(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    [row] = world.rows("select * from gradient.evaluation where id = %s", evaluation)
    stamps = [
        row["created_at"],
        row["fetch_started_at"],
        row["eval_flake_started_at"],
        row["eval_drv_started_at"],
        row["building_started_at"],
        row["finished_at"],
    ]
    assert None not in stamps
    assert stamps == sorted(stamps)
    assert row["flake_source"] is not None
    assert row["commit"] is not None
