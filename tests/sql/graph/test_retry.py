"""A person tries a build, or a whole evaluation, again."""

from __future__ import annotations

import pytest

from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
OTHER = derivation("other")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE, OTHER)
BOTH = derivation("both", LEAF, OTHER)

RETRY = "select gradient.retry_build(%s, %s)"
RETRY_ALL = "select gradient.retry_evaluation(%s)"


@pytest.mark.scenario(20)
def test_a_users_retry_reopens_the_evaluation_and_brings_the_dependents_back(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, TOP)
    world.run(OTHER)
    world.fail(LEAF)
    assert world.evaluation_status(evaluation) == "Failed"
    report = world.message(RETRY, evaluation, world.id(LEAF))
    assert report == {"evaluation_status": "Building", "reopened": True, "builds": 3}
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Queued", "Created", "Created"]
    assert world.build(LEAF)["attempt"] == 0
    world.run(LEAF)
    world.run(MIDDLE)
    world.run(TOP)
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_retry_while_the_evaluation_goes_on_does_not_reopen_it(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE)
    world.fail(LEAF)
    report = world.message(RETRY, evaluation, world.id(LEAF))
    assert report == {"evaluation_status": "Building", "reopened": False, "builds": 2}


@pytest.mark.scenario(21)
def test_a_dependent_of_two_failures_stays_failed_for_the_other(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, BOTH)
    world.fail(LEAF)
    world.fail(OTHER)
    report = world.message(RETRY, evaluation, world.id(LEAF))
    assert report["builds"] == 1
    assert world.statuses(LEAF, OTHER, BOTH) == ["Queued", "FailedPermanent", "DependencyFailed"]
    assert world.build(BOTH)["failed_by"] == world.attempts(OTHER)[0]["id"]
    world.run(LEAF)
    assert world.status(BOTH) == "DependencyFailed"
    assert world.evaluation_status(evaluation) == "Failed"


def test_a_retry_of_a_dependent_tries_its_failed_inputs(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, TOP)
    world.fail(LEAF)
    world.fail(OTHER, "timeout_total")
    world.message(RETRY, evaluation, world.id(TOP))
    assert world.statuses(LEAF, OTHER, MIDDLE, TOP) == ["Queued", "Queued", "Created", "Created"]


@pytest.mark.scenario(22)
def test_a_retried_build_that_fails_again_takes_its_dependents_with_it(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF)
    world.message(RETRY, evaluation, world.id(LEAF))
    world.fail(LEAF)
    assert world.statuses(LEAF, MIDDLE) == ["FailedPermanent", "DependencyFailed"]
    assert world.build(MIDDLE)["failed_by"] == world.attempts(LEAF)[-1]["id"]
    assert world.evaluation_status(evaluation) == "Failed"


def test_a_retry_takes_the_abort_back(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.message("select gradient.abort_build(%s, %s)", evaluation, world.id(LEAF))
    assert world.evaluation_status(evaluation) == "Failed"
    world.message(RETRY, evaluation, world.id(LEAF))
    assert not world.value("select bool_or(aborted) from gradient.build_job")
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_build_that_its_worker_has_not_stopped_yet_is_refused(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER)
    world.start(LEAF)
    world.message("select gradient.abort_build(%s, %s)", evaluation, world.id(LEAF))
    with refused("GR001", "WorkerStillStopping"):
        world.message(RETRY, evaluation, world.id(LEAF))
    world.message(
        "select graph.return_assignments(%s, 'aborted')", [world.assignments[world.job(LEAF)]]
    )
    world.message(RETRY, evaluation, world.id(LEAF))
    assert world.status(LEAF) == "Queued"


def test_an_evaluation_that_was_overtaken_is_refused(world: World) -> None:
    task = world.value("select min(id) from gradient.task")
    first = world.evaluate(LEAF)
    world.fail(LEAF)
    second = world.evaluation(task)
    for call, params in ((RETRY, (first, world.id(LEAF))), (RETRY_ALL, (first,))):
        with refused("GR001", "NewerEvaluation", f"evaluation {second}"):
            world.message(call, *params)
    assert world.evaluation_status(first) == "Failed"


def test_a_completed_evaluation_is_refused(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    for call, params in ((RETRY, (evaluation, world.id(LEAF))), (RETRY_ALL, (evaluation,))):
        with refused("GR001", "EvaluationFinished", "Completed"):
            world.message(call, *params)


def test_an_evaluation_that_never_came_to_its_builds_is_refused(world: World) -> None:
    evaluation = world.start_walk()
    world.message("select graph.fail_evaluation(%s, 'broken', 'worker')", evaluation)
    with refused("GR001", "EvaluationFinished", "never came to its builds"):
        world.message(RETRY_ALL, evaluation)


def test_a_build_that_did_not_fail_is_refused(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    for drv in (LEAF, MIDDLE):
        with refused("GR001", "WrongStatus", world.status(drv)):
            world.message(RETRY, evaluation, world.id(drv))


def test_a_dependent_without_a_failed_input_is_refused(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF)
    # Another evaluation, which does not name the dependent, tries the input again and succeeds.
    world.evaluate(LEAF, task=world.task(world.project("elsewhere", cache="main")))
    world.run(LEAF)
    with refused("GR001", "NoFailedDependency"):
        world.message(RETRY, evaluation, world.id(MIDDLE))
    # The whole evaluation can be.
    assert world.message(RETRY_ALL, evaluation) == {"status": "Building", "builds": 1}
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_retry_of_an_evaluation_tries_all_that_failed_without_a_walk(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, BOTH)
    world.fail(LEAF)
    world.fail(OTHER, "timeout_silent")
    walks = world.value("select count(*) from gradient.dispatched_job where kind = 'Evaluation'")
    report = world.message(RETRY_ALL, evaluation)
    assert report == {"status": "Building", "builds": 4}
    assert world.statuses(LEAF, OTHER, MIDDLE, BOTH) == ["Queued", "Queued", "Created", "Created"]
    for drv in (LEAF, OTHER, MIDDLE, BOTH):
        world.run(drv)
    assert world.evaluation_status(evaluation) == "Completed"
    assert walks == world.value(
        "select count(*) from gradient.dispatched_job where kind = 'Evaluation'"
    )


def test_an_aborted_evaluation_is_tried_again_with_what_it_names(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE, TOP)
    world.start(LEAF)
    world.message("select gradient.abort_evaluation(%s)", evaluation)
    assert world.status(LEAF) == "Aborted"
    world.message(RETRY_ALL, evaluation)
    # The worker answers the abort only now.
    world.message(
        "select graph.return_assignments(%s, 'aborted')", list(world.assignments.values())
    )
    for drv in (LEAF, OTHER, MIDDLE, TOP):
        world.run(drv)
    assert world.evaluation_status(evaluation) == "Completed"


def test_what_waits_for_its_retry_is_wanted_again_with_the_evaluation(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF, "network")
    world.message("select gradient.abort_evaluation(%s)", evaluation)
    assert not world.build(LEAF)["wanted"]
    world.message(RETRY_ALL, evaluation)
    assert world.build(LEAF)["wanted"]
    world.later(minutes=5)
    world.message("select graph.requeue()")
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_retry_with_everything_built_meanwhile_completes_at_once(world: World) -> None:
    task = world.task(world.project("elsewhere", cache="main"))
    evaluation = world.evaluate(LEAF)
    world.fail(LEAF)
    world.evaluate(LEAF, task=task)
    world.run(LEAF)
    assert world.message(RETRY_ALL, evaluation) == {"status": "Completed", "builds": 0}


def test_an_evaluation_at_its_builds_is_refused(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    with refused("GR001", "WrongStatus"):
        world.message(RETRY_ALL, evaluation)


def test_a_users_repair_reports_what_each_step_touched(world: World) -> None:
    evaluation = world.evaluate(LEAF, OTHER, MIDDLE)
    world.fail(LEAF)
    rows = world.rows("select * from gradient.repair(%s, 'retry')", evaluation)
    assert [row["step"] for row in rows] == [
        "requeue_failed_closure",
        "repair_cached_shared_builds_for_eval",
        "repair_dependency_failed",
        "adopt_pending_closure",
        "promote_closure",
    ]
    assert rows[0]["touched"] == 2
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
