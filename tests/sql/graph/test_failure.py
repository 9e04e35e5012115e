"""Failing and trying again."""

from __future__ import annotations

import pytest

from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
OTHER = derivation("other")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE, OTHER)

PASSING = ["worker_fault", "out_of_memory", "disk_full", "network", "missing_input"]
UNCHARGED = ["worker_lost", "worker_stopping", "server_restart", "rejected"]


def test_a_builder_that_fails_fails_what_needs_it_and_nothing_else(world: World) -> None:
    apart = derivation("apart", OTHER)
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, TOP, apart)
    report = world.fail(LEAF, "builder_failed", "exit code 1")
    assert report["status"] == "FailedPermanent"
    assert world.statuses(MIDDLE, TOP) == ["DependencyFailed", "DependencyFailed"]
    [attempt] = world.attempts(LEAF)
    assert (attempt["outcome"], attempt["outcome_class"]) == ("Failed", "builder_failed")
    assert attempt["failure_message"] == "exit code 1"
    assert world.build(TOP)["failed_by"] == attempt["id"]
    assert world.evaluation_status(evaluation) == "Building"
    world.run(OTHER)
    world.run(apart)
    assert world.evaluation_status(evaluation) == "Failed"


@pytest.mark.parametrize("outcome_class", ["timeout_total", "timeout_silent"])
def test_a_timeout_is_a_verdict_and_says_which(world: World, outcome_class: str) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF, outcome_class)
    assert world.statuses(LEAF, MIDDLE) == ["FailedTimeout", "DependencyFailed"]
    assert world.attempts(LEAF)[0]["outcome_class"] == outcome_class
    assert world.evaluation_status(evaluation) == "Failed"


@pytest.mark.scenario(23)
@pytest.mark.parametrize("outcome_class", PASSING)
def test_a_passing_failure_is_retried_after_a_growing_wait(
    world: World, outcome_class: str
) -> None:
    world.evaluate(LEAF, MIDDLE)
    wait = 30
    for attempt in (1, 2):
        report = world.fail(LEAF, outcome_class)
        assert report["status"] == "FailedTransient"
        assert world.build(LEAF)["attempt"] == attempt
        assert world.status(MIDDLE) == "Created"
        world.later(seconds=wait - 5)
        assert world.message("select graph.requeue()") == 0
        world.later(seconds=10)
        assert world.message("select graph.requeue()") == 1
        assert world.status(LEAF) == "Queued"
        wait *= 2
    world.fail(LEAF, outcome_class)
    assert world.statuses(LEAF, MIDDLE) == ["FailedPermanent", "DependencyFailed"]


def test_a_retry_that_succeeds_forgets_the_failure(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF, "network")
    world.later(minutes=1)
    world.message("select graph.requeue()")
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_failing_build_keeps_the_evaluation_open_until_its_retry_is_over(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.fail(LEAF, "network")
    assert world.evaluation_status(evaluation) == "Building"


@pytest.mark.scenario(27)
@pytest.mark.parametrize("outcome_class", UNCHARGED)
@pytest.mark.parametrize("started", [True, False])
def test_an_interrupted_build_is_queued_again_and_charged_nothing(
    world: World, outcome_class: str, started: bool
) -> None:
    world.evaluate(LEAF, MIDDLE)
    assignment = world.assign(LEAF)
    if started:
        world.start(LEAF)
    world.message("select graph.return_assignments(%s, %s)", [assignment], outcome_class)
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    assert world.build(LEAF)["attempt"] == 0
    assert "leaf" in world.ready()
    [attempt] = world.attempts(LEAF)
    assert (attempt["outcome"], attempt["outcome_class"]) == ("Aborted", outcome_class)
    # Said again, it changes nothing.
    world.message("select graph.return_assignments(%s, %s)", [assignment], outcome_class)
    assert world.status(LEAF) == "Queued"


@pytest.mark.scenario(27)
@pytest.mark.parametrize("outcome_class", UNCHARGED)
def test_a_build_handed_back_by_its_worker_is_queued_again(
    world: World, outcome_class: str
) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF, outcome_class)
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    assert world.build(LEAF)["attempt"] == 0


@pytest.mark.scenario(18)
@pytest.mark.scenario(27)
def test_a_returned_build_that_nobody_wants_any_more_is_not_queued(world: World) -> None:
    both = derivation("both", LEAF, OTHER)
    evaluation = world.evaluate(LEAF, OTHER, both, entry_points=[both])
    world.start(LEAF)
    world.fail(OTHER)
    assert world.statuses(LEAF, both) == ["Building", "DependencyFailed"]
    assert not world.build(LEAF)["wanted"]
    world.message(
        "select graph.return_assignments(%s, 'worker_lost')",
        [world.assignments[world.job(LEAF)]],
    )
    assert world.status(LEAF) == "Skipped"
    assert world.evaluation_status(evaluation) == "Failed"


@pytest.mark.scenario(27)
def test_lost_attempts_never_add_up_to_a_failure(world: World) -> None:
    world.evaluate(LEAF)
    for _ in range(5):
        world.start(LEAF)
        world.message(
            "select graph.return_assignments(%s, 'worker_lost')",
            [world.assignments[world.job(LEAF)]],
        )
    assert world.status(LEAF) == "Queued"
    assert world.build(LEAF)["attempt"] == 0


@pytest.mark.scenario(27)
def test_an_aborted_build_is_no_failure_and_cascades_nothing(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF, "aborted")
    assert world.status(LEAF) == "Aborted"
    assert world.status(MIDDLE) == "Created"
    assert world.build(LEAF)["attempt"] == 0


@pytest.mark.scenario(60)
def test_a_success_without_all_outputs_is_tried_again_uncharged(world: World) -> None:
    pair = derivation("pair", outputs=("out", "dev"))
    user = derivation("user", pair)
    evaluation = world.evaluate(pair, user)
    for _ in range(4):
        world.start(pair)
        world.upload_outputs(pair, outputs=["out"])
        world.complete(pair)
        assert world.status(pair) == "FailedTransient"
        assert world.build(pair)["attempt"] == 0
        assert world.attempts(pair)[-1]["outcome_class"] == "upload_failed"
        assert world.status(user) == "Created"
        world.later(hours=1)
        world.message("select graph.requeue()")
    world.run(pair)
    world.run(user)
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(21)
def test_a_dependent_of_two_failures_stays_failed_for_the_second(world: World) -> None:
    both = derivation("both", LEAF, OTHER)
    world.evaluate(LEAF, OTHER, both)
    world.fail(LEAF)
    world.fail(OTHER)
    assert world.status(both) == "DependencyFailed"
    # A new evaluation tries each once more: one gets well, the other fails again.
    again = world.evaluate(LEAF, OTHER, both)
    world.run(LEAF)
    world.fail(OTHER)
    assert world.statuses(LEAF, OTHER, both) == [
        "Completed",
        "FailedPermanent",
        "DependencyFailed",
    ]
    assert world.build(both)["failed_by"] == world.attempts(OTHER)[-1]["id"]
    assert world.evaluation_status(again) == "Failed"


@pytest.mark.scenario(20)
def test_a_new_evaluation_tries_a_failed_build_once(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF)
    again = world.evaluate(LEAF, MIDDLE)
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(again) == "Completed"


@pytest.mark.scenario(22)
def test_what_is_recorded_above_a_failure_does_not_wait_for_it(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF)
    world.conn.execute("update gradient.task set retry_failed_builds = false")
    second = world.start_walk()
    world.upload(second, TOP, OTHER)
    world.record(second, [TOP, OTHER], [TOP])
    world.complete_walk(second)
    for drv in (OTHER,):
        if world.status(drv) == "Queued":
            world.run(drv)
    assert world.status(TOP) == "DependencyFailed"
    assert world.build(TOP)["failed_by"] == world.attempts(LEAF)[0]["id"]
    assert world.evaluation_status(second) == "Failed"


@pytest.mark.scenario(22)
def test_a_dependent_thawed_over_a_failing_input_fails_with_it(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF)
    second = world.evaluate(LEAF, MIDDLE)
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    world.fail(LEAF)
    assert world.statuses(LEAF, MIDDLE) == ["FailedPermanent", "DependencyFailed"]
    assert world.evaluation_status(second) == "Failed"


def test_a_running_dependent_runs_to_its_own_verdict(world: World) -> None:
    beside = derivation("beside", OTHER)
    world.evaluate(LEAF, OTHER, beside)
    world.run(OTHER)
    world.start(beside)
    world.fail(LEAF)
    assert world.status(beside) == "Building"


# Evaluations ----------------------------------------------------------------------------------


def test_a_failed_evaluation_says_why(world: World) -> None:
    evaluation = world.start_walk()
    world.message(
        "select graph.evaluation_failed(%s, %s, 'evaluation_failed', 'attribute missing')",
        *world.assignment(f"eval:{evaluation}"),
    )
    assert world.evaluation_status(evaluation) == "Failed"
    assert world.errors(evaluation) == ["attribute missing"]


def test_an_evaluation_that_failed_for_a_passing_reason_is_queued_until_the_third(
    world: World,
) -> None:
    evaluation = world.evaluation()
    for expected in ("Queued", "Queued", "Failed"):
        world.start_walk(evaluation)
        world.message(
            "select graph.evaluation_failed(%s, %s, 'network', 'connection reset')",
            *world.assignment(f"eval:{evaluation}"),
        )
        assert world.evaluation_status(evaluation) == expected
    assert world.errors(evaluation) == ["connection reset"]


@pytest.mark.scenario(40)
def test_an_evaluation_that_loses_every_worker_fails_at_the_tenth(world: World) -> None:
    evaluation = world.evaluation()
    for lost in range(1, 11):
        world.start_walk(evaluation)
        world.message(
            "select graph.return_assignments(%s, 'worker_lost')",
            [world.assignments[f"eval:{evaluation}"]],
        )
        assert world.evaluation_status(evaluation) == ("Failed" if lost == 10 else "Queued")
    [error] = world.errors(evaluation)
    assert "10" in error


def test_an_unknown_outcome_class_is_refused(world: World) -> None:
    world.evaluate(LEAF)
    world.start(LEAF)
    with refused("GR005", "bad_luck"):
        world.fail(LEAF, "bad_luck")
    assert world.status(LEAF) == "Building"
