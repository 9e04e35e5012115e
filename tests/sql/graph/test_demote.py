"""Paths that leave the cache, and what rested on them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.graph_builder import Drv, derivation, drv_nar, source, source_nar, store_hash
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
OTHER = derivation("other")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE, OTHER)
# What needs "big" is queued and never handed out here.
TALL = derivation("tall", MIDDLE)
BIG = derivation("big", TALL, features=["big"])
LARGE = derivation("large", MIDDLE, features=["big"])

EMPTY = {"producers": 0, "cached_path": None, "others_remain": False}


def demote(
    world: World,
    path: str,
    kind: str = "path",
    cache: int | None = None,
    present: bool | None = None,
) -> dict[str, Any]:
    """Demote one path; the report."""
    report: dict[str, Any] = world.message(
        "select graph.demote(%s, %s, %s, %s)", kind, path, cache, present
    )
    return report


def known(world: World, *drvs: Drv) -> set[str]:
    """Those that a new walk would not enter."""
    evaluation = world.evaluation()
    return {
        row["drv"]
        for row in world.rows(
            "select drv from graph.known_derivations(%s, %s) as k (drv)",
            evaluation,
            [drv.drv for drv in drvs],
        )
    }


def is_cached(world: World, path: str) -> bool:
    """Whether the path backs anything."""
    return bool(
        world.value(
            "select exists (select from gradient.cached_path where hash = substr(%s, 12, 32))", path
        )
    )


def test_a_demoted_output_is_built_again_and_its_user_waits_for_it(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    assert world.status(MIDDLE) == "Queued"
    report = demote(world, LEAF.outputs["out"])
    assert report["producers"] == 1
    assert report["cached_path"] is not None
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    assert world.build(MIDDLE)["blocking_deps"] == 1
    assert world.ready() == {"leaf"}
    # Said again, there is nothing left to demote.
    assert demote(world, LEAF.outputs["out"])["cached_path"] is None
    world.run(LEAF)
    assert world.status(MIDDLE) == "Queued"
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(15)
def test_a_runtime_input_that_is_evicted_holds_queued_builds_back_until_it_is_there_again(
    world: World,
) -> None:
    world.evaluate(LEAF, MIDDLE, OTHER, TOP)
    world.run(LEAF)
    world.run(OTHER)
    world.run(MIDDLE, LEAF.outputs["out"])
    assert world.status(TOP) == "Queued"
    demote(world, LEAF.outputs["out"], "missing_nar")
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Queued", "Completed", "Created"]
    assert not world.build(MIDDLE)["fetchable"]
    world.run(LEAF)
    assert world.statuses(MIDDLE, TOP) == ["Completed", "Queued"]


@pytest.mark.scenario(15)
@pytest.mark.parametrize("started", [True, False])
def test_a_build_that_is_handed_out_is_left_alone(world: World, started: bool) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    world.assign(MIDDLE)
    if started:
        world.start(MIDDLE)
    before = world.status(MIDDLE)
    demote(world, LEAF.outputs["out"])
    assert world.statuses(LEAF, MIDDLE) == ["Queued", before]
    world.run(MIDDLE)
    assert world.status(MIDDLE) == "Completed"


@pytest.mark.scenario(16)
def test_only_the_producers_of_the_path_are_built_again(world: World) -> None:
    world.evaluate(LEAF, MIDDLE, OTHER, TOP)
    for drv in (LEAF, OTHER):
        world.run(drv)
    world.run(MIDDLE, LEAF.outputs["out"])
    world.run(TOP, MIDDLE.outputs["out"], OTHER.outputs["out"])
    demote(world, MIDDLE.outputs["out"])
    assert world.statuses(LEAF, OTHER, MIDDLE, TOP) == [
        "Completed",
        "Completed",
        "Queued",
        "Completed",
    ]
    assert not world.build(TOP)["fetchable"]
    assert world.build(LEAF)["fetchable"]


def test_both_makers_of_a_path_are_built_again(world: World) -> None:
    twin = derivation("twin", output_of={"out": LEAF})
    world.evaluate(LEAF, twin)
    world.run(LEAF)
    world.run(twin)
    assert demote(world, LEAF.outputs["out"])["producers"] == 2
    assert world.statuses(LEAF, twin) == ["Queued", "Queued"]


def test_an_ended_evaluation_still_wants_what_its_entry_point_lost(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    assert world.evaluation_status(evaluation) == "Completed"
    demote(world, LEAF.outputs["out"])
    assert world.build(LEAF)["wanted"]
    world.run(LEAF)
    assert world.status(LEAF) == "Completed"
    assert world.evaluation_status(evaluation) == "Completed"


def test_what_nobody_wants_is_not_built_again(world: World) -> None:
    world.evaluate(LEAF, MIDDLE, entry_points=[MIDDLE])
    world.run(LEAF)
    world.run(MIDDLE)
    demote(world, LEAF.outputs["out"])
    assert world.statuses(LEAF, MIDDLE) == ["Skipped", "Completed"]
    assert world.build(MIDDLE)["fetchable"]


def test_a_demoted_build_forgets_how_it_came_about(world: World) -> None:
    world.evaluate(LEAF)
    world.fail(LEAF, "network")
    world.later(minutes=1)
    world.message("select graph.requeue()")
    world.start(LEAF)
    world.report_output(LEAF, substituted=True)
    world.upload_outputs(LEAF)
    world.complete(LEAF)
    assert world.status(LEAF) == "Substituted"
    demote(world, LEAF.outputs["out"])
    build = world.build(LEAF)
    assert (build["attempt"], build["substituted"], build["status"]) == (0, False, "Queued")


def test_a_copy_upstream_is_trusted_no_longer_either(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE)
    world.conn.execute(
        "update gradient.derivation_output set external_url = 'https://up.example', external = '{}'"
        " where derivation = %s",
        [world.id(LEAF)],
    )
    world.run(LEAF)
    world.conn.execute(
        "update gradient.derivation_build set cache_available = true where derivation = %s",
        [world.id(LEAF)],
    )
    demote(world, LEAF.outputs["out"])
    assert not world.build(LEAF)["cache_available"]
    assert world.value(
        "select external_url is null and external is null from gradient.derivation_output"
        " where derivation = %s",
        world.id(LEAF),
    )
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_rebuild_over_a_failed_input_fails_with_it(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, LARGE)
    world.run(LEAF)
    world.run(MIDDLE)
    demote(world, LEAF.outputs["out"])
    world.fail(LEAF)
    assert world.statuses(LEAF, MIDDLE, LARGE) == ["FailedPermanent", "Completed", "Queued"]
    demote(world, MIDDLE.outputs["out"])
    assert world.statuses(MIDDLE, LARGE) == ["DependencyFailed", "DependencyFailed"]
    assert world.build(LARGE)["failed_by"] == world.attempts(LEAF)[-1]["id"]
    assert world.evaluation_status(evaluation) == "Failed"


def test_a_thawed_input_of_a_rebuild_fails_with_its_own_failed_input(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TALL, BIG, entry_points=[LEAF, BIG])
    for drv in (LEAF, MIDDLE, TALL):
        world.run(drv)
    demote(world, MIDDLE.outputs["out"])
    assert world.status(MIDDLE) == "Skipped"
    demote(world, LEAF.outputs["out"])
    world.fail(LEAF)
    demote(world, TALL.outputs["out"])
    assert world.statuses(LEAF, MIDDLE, TALL, BIG) == [
        "FailedPermanent",
        "DependencyFailed",
        "DependencyFailed",
        "DependencyFailed",
    ]
    assert world.evaluation_status(evaluation) == "Failed"


def test_a_build_handed_back_over_a_failed_input_fails_with_it(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    world.start(MIDDLE)
    demote(world, LEAF.outputs["out"])
    world.fail(LEAF)
    assert world.status(MIDDLE) == "Building"
    world.message(
        "select graph.return_assignments(%s, 'worker_lost')",
        [world.assignments[world.job(MIDDLE)]],
    )
    assert world.status(MIDDLE) == "DependencyFailed"


def test_a_build_that_fails_in_passing_over_a_failed_input_fails_with_it(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    world.start(MIDDLE)
    demote(world, LEAF.outputs["out"])
    world.fail(LEAF)
    world.fail(MIDDLE, "network")
    assert world.status(MIDDLE) == "DependencyFailed"


def test_what_is_wanted_again_and_has_lost_its_name_gets_one(world: World) -> None:
    first = world.evaluate(LEAF, MIDDLE, entry_points=[MIDDLE])
    world.run(LEAF)
    world.run(MIDDLE, LEAF.outputs["out"])
    above = derivation("above", MIDDLE)
    second = world.start_walk()
    world.upload(second, above)
    world.record(second, [above], [above])
    world.conn.execute("delete from gradient.evaluation where id = %s", [first])
    world.complete_walk(second)
    demote(world, LEAF.outputs["out"])
    assert world.status(LEAF) == "Queued"
    assert (
        world.value(
            "select evaluation from gradient.build_job where derivation_build = %s", world.id(LEAF)
        )
        == second
    )
    world.run(LEAF)
    world.run(above)
    assert world.evaluation_status(second) == "Completed"


# Claims ---------------------------------------------------------------------------------------


def test_a_path_outlives_a_claim_while_another_cache_holds_one(world: World) -> None:
    first = world.value("select id from gradient.cache")
    second = world.cache("second")
    world.subscribe(world.value("select id from gradient.project"), second)
    world.evaluate(LEAF, MIDDLE)
    world.run(LEAF)
    report = demote(world, LEAF.outputs["out"], "cache_claim", first)
    assert report == {"producers": 0, "cached_path": None, "others_remain": True}
    assert LEAF.outputs["out"] not in world.claims(first)
    assert LEAF.outputs["out"] in world.claims(second)
    assert world.statuses(LEAF, MIDDLE) == ["Completed", "Queued"]
    # A claim that is not there is none to drop.
    assert demote(world, LEAF.outputs["out"], "cache_claim", first) == EMPTY
    assert is_cached(world, LEAF.outputs["out"])
    report = demote(world, LEAF.outputs["out"], "cache_claim", second)
    assert (report["producers"], report["others_remain"]) == (1, False)
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]


# Sources and .drv files -----------------------------------------------------------------------


@pytest.mark.scenario(47)
@pytest.mark.parametrize("present", [None, True])
@pytest.mark.parametrize("kind", ["path", "missing_nar"])
def test_the_only_copy_of_a_source_is_kept(world: World, kind: str, present: bool | None) -> None:
    user = derivation("user", sources=["tree"])
    world.evaluate(user)
    assert demote(world, source("tree"), kind, present=present) == EMPTY
    assert is_cached(world, source("tree"))
    assert world.status(user) == "Queued"


@pytest.mark.scenario(47)
def test_a_source_stays_when_what_was_built_from_it_is_demoted(world: World) -> None:
    user = derivation("user", sources=["tree"])
    world.evaluate(user)
    world.run(user, source("tree"))
    demote(world, user.outputs["out"])
    assert is_cached(world, source("tree"))
    assert world.status(user) == "Queued"


def test_a_lost_source_holds_its_users_back_until_a_walk_brings_it_again(world: World) -> None:
    user = derivation("user", sources=["tree"])
    top = derivation("top-user", user)
    world.evaluate(user, top)
    assert known(world, user, top) == {user.drv, top.drv}
    report = demote(world, source("tree"), "missing_nar", present=False)
    assert report["cached_path"] is not None
    assert world.status(user) == "Created"
    assert world.build(user)["missing_sources"] == 1
    assert known(world, user, top) == set()
    again = world.evaluate(user, top)
    assert world.build(user)["missing_sources"] == 0
    world.run(user)
    world.run(top)
    assert world.evaluation_status(again) == "Completed"


def test_a_walk_after_a_lost_source_leaves_what_is_complete_complete(world: World) -> None:
    user = derivation("user", sources=["tree"])
    above = derivation("above", user)
    evaluation = world.evaluate(user, above)
    world.run(user)
    world.run(above, user.outputs["out"])
    demote(world, source("tree"), "missing_nar", present=False)
    assert world.statuses(user, above) == ["Completed", "Completed"]
    world.evaluate(user, above)
    assert world.build(above)["fetchable"]
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_lost_drv_unqueues_its_build_and_is_known_no_more(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    assert known(world, LEAF, MIDDLE) == {LEAF.drv, MIDDLE.drv}
    demote(world, LEAF.path, "missing_nar", present=False)
    assert not world.derivation(LEAF)["drv_present"]
    assert world.status(LEAF) == "Created"
    assert world.ready() == set()
    assert known(world, LEAF, MIDDLE) == set()
    # The input is still what the build above waits for: nothing is given up.
    assert world.build(LEAF)["wanted"]
    evaluation = world.start_walk()
    world.commit(drv_nar(LEAF, assignment=world.assignments[f"eval:{evaluation}"]))
    assert world.status(LEAF) == "Queued"
    assert known(world, LEAF, MIDDLE) == {LEAF.drv, MIDDLE.drv}


@pytest.mark.scenario(49)
def test_the_drv_of_a_failed_build_is_kept(world: World) -> None:
    world.evaluate(LEAF)
    world.fail(LEAF)
    assert demote(world, LEAF.path) == EMPTY
    world.evaluate(LEAF)
    assert world.status(LEAF) == "Queued"


def test_a_source_of_two_retired_with_its_user_is_counted_once_each(world: World) -> None:
    one = derivation("one", sources=["tree", "patch"])
    two = derivation("two", sources=["tree"])
    world.evaluate(one, two)
    world.message(
        "select count(*) from graph.retire_outputs(%s)",
        [source("tree")[11:43], source("patch")[11:43]],
    )
    assert world.build(one)["missing_sources"] == 2
    assert world.build(two)["missing_sources"] == 1
    evaluation = world.start_walk()
    job = world.assignments[f"eval:{evaluation}"]
    world.commit(source_nar(source("tree"), assignment=job))
    assert world.build(one)["missing_sources"] == 1
    assert world.build(two)["missing_sources"] == 0


# Refusals -------------------------------------------------------------------------------------


def test_an_unknown_path_is_an_empty_report(world: World) -> None:
    assert demote(world, store_hash("nothing")) == EMPTY
    assert demote(world, store_hash("nothing"), present=False) == EMPTY
    cache = world.value("select id from gradient.cache")
    assert demote(world, store_hash("nothing"), "cache_claim", cache) == EMPTY


def test_a_demotion_that_makes_no_sense_is_refused(world: World) -> None:
    with refused("GR005", "everything"):
        demote(world, LEAF.outputs["out"], "everything")
    with refused("GR005", "leaf"):
        demote(world, "leaf")
    with refused("GR005", LEAF.outputs["out"][11:43]):
        demote(world, LEAF.outputs["out"], "cache_claim")
    with refused("GR002", "12345"):
        demote(world, LEAF.outputs["out"], "cache_claim", 12345)
