"""What upstream caches have, what they turn out not to have, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.graph_builder import Drv, base_name, derivation, sha256_hash, store_hash
from tests.support.graph_world import World, refused

LEAF = derivation("leaf")
MIDDLE = derivation("middle", LEAF)
TOP = derivation("top", MIDDLE)


def with_upstream(world: World) -> None:
    """Give the project's cache an upstream, so that new shared builds are not probed yet."""
    world.conn.execute(
        "insert into gradient.cache_upstream (cache, display_name, url, public_key)"
        " select id, 'up', 'https://up.example', 'key' from gradient.cache"
    )


def hit(path: str, *references: str) -> dict[str, Any]:
    """What an upstream cache says about a path, by its hash."""
    return {
        path[11:43]: {
            "url": "https://up.example",
            "nar_hash": sha256_hash("nar " + path),
            "file_hash": sha256_hash("file " + path),
            "file_size": 10,
            "nar_size": 20,
            "references": [base_name(reference) for reference in references],
            "deriver": None,
            "ca": None,
        }
    }


def hits(world: World, *found: dict[str, Any]) -> dict[str, Any]:
    """Tell the graph what was found upstream; the report."""
    merged = {key: value for one in found for key, value in one.items()}
    report: dict[str, Any] = world.message("select graph.upstream_hits(%s)", Jsonb(merged))
    return report


def probed(world: World, *drvs: Drv) -> dict[str, Any]:
    """Tell the graph that upstream answered for these; the report."""
    report: dict[str, Any] = world.message(
        "select graph.upstream_probed(%s)", [world.id(drv) for drv in drvs]
    )
    return report


def wanted(world: World, *drvs: Drv) -> list[bool]:
    """Whether each is wanted."""
    return [world.build(drv)["wanted"] for drv in drvs]


def substitute(world: World, drv: Drv, *references: str) -> None:
    """The whole life of a substitution that succeeds."""
    world.start(drv)
    world.report_output(drv, substituted=True)
    world.upload_outputs(drv, *references)
    world.complete(drv)


def test_an_unprobed_build_wants_no_build_input_until_the_answer(world: World) -> None:
    with_upstream(world)
    world.evaluate(LEAF, MIDDLE, TOP, entry_points=[TOP])
    assert wanted(world, LEAF, MIDDLE, TOP) == [False, False, True]
    assert world.ready() == set()
    # Each answer says whom to ask about next.
    assert probed(world, TOP) == {"probed": 1, "probe": [world.id(MIDDLE)]}
    assert wanted(world, LEAF, MIDDLE) == [False, True]
    assert probed(world, MIDDLE) == {"probed": 1, "probe": [world.id(LEAF)]}
    assert world.statuses(LEAF, MIDDLE, TOP) == ["Created", "Created", "Created"]
    assert probed(world, LEAF) == {"probed": 1, "probe": []}
    assert world.status(LEAF) == "Queued"
    assert probed(world, LEAF) == {"probed": 0, "probe": []}


def test_a_build_with_every_output_upstream_is_substituted_and_wants_no_build_input(
    world: World,
) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TOP, entry_points=[TOP])
    assert world.status(LEAF) == "Queued"
    report = hits(world, hit(MIDDLE.outputs["out"]))
    assert report == {"outputs": 1, "available": 1, "probe": []}
    assert world.statuses(LEAF, MIDDLE) == ["Skipped", "Queued"]
    assert not world.build(MIDDLE)["fetchable"], "a copy upstream completes no closure"
    assert world.value(
        "select external_url from gradient.derivation_output where derivation = %s",
        world.id(MIDDLE),
    )
    assert hits(world, hit(MIDDLE.outputs["out"])) == {"outputs": 0, "available": 0, "probe": []}
    substitute(world, MIDDLE)
    assert world.statuses(MIDDLE, TOP) == ["Substituted", "Queued"]
    world.run(TOP)
    assert world.evaluation_status(evaluation) == "Completed"


def test_one_output_upstream_is_not_enough(world: World) -> None:
    pair = derivation("pair", LEAF, outputs=("out", "dev"))
    world.evaluate(LEAF, pair, entry_points=[pair])
    assert hits(world, hit(pair.outputs["dev"]))["available"] == 0
    assert world.statuses(LEAF, pair) == ["Queued", "Created"]
    assert hits(world, hit(pair.outputs["out"]))["available"] == 1
    assert world.statuses(LEAF, pair) == ["Skipped", "Queued"]


def test_what_the_copy_upstream_refers_to_is_wanted(world: World) -> None:
    world.evaluate(LEAF, MIDDLE, TOP, entry_points=[TOP])
    hits(world, hit(MIDDLE.outputs["out"], LEAF.outputs["out"], MIDDLE.outputs["out"]))
    assert wanted(world, LEAF, MIDDLE) == [True, True]
    substitute(world, MIDDLE, LEAF.outputs["out"])
    assert world.build(MIDDLE)["missing_runtime_deps"] == 1
    assert world.status(TOP) == "Created"
    world.run(LEAF)
    assert world.status(TOP) == "Queued"


def test_a_reference_found_upstream_later_takes_a_mark_away(world: World) -> None:
    world.evaluate(LEAF, MIDDLE, TOP)
    pair = derivation("pair", LEAF, outputs=("out", "dev"))
    user = derivation("user", pair)
    world.evaluate(LEAF, pair, user)
    hits(world, hit(pair.outputs["out"]), hit(pair.outputs["dev"], LEAF.outputs["out"]))
    substitute(world, pair)
    # Our copies do not say so, but the runtime edge stands: LEAF is missing.
    assert not world.build(pair)["fetchable"]
    assert world.status(user) == "Created"
    world.run(LEAF)
    assert world.build(pair)["fetchable"]


@pytest.mark.scenario(13)
def test_an_offer_made_before_the_hit_is_not_claimed(world: World) -> None:
    world.evaluate(LEAF)
    worker = world.worker()
    with world.conn.transaction():
        before = world.rows("select * from scheduler.offers(%s)", worker)
    hits(world, hit(LEAF.outputs["out"]))
    after = world.rows("select * from scheduler.offers(%s)", worker)
    assert before[0]["job"] == after[0]["job"]
    assert before[0]["generation"] != after[0]["generation"]
    world.assign(LEAF)
    assert world.value(
        "select substitute from gradient.dispatched_job where job = %s", world.job(LEAF)
    )


def test_a_failed_build_stays_failed_until_something_thaws_it(world: World) -> None:
    world.evaluate(LEAF, MIDDLE)
    world.fail(LEAF)
    hits(world, hit(LEAF.outputs["out"]))
    assert world.statuses(LEAF, MIDDLE) == ["FailedPermanent", "DependencyFailed"]
    world.evaluate(LEAF, MIDDLE)
    substitute(world, LEAF)
    assert world.status(MIDDLE) == "Queued"


@pytest.mark.parametrize(
    "malformed",
    [
        [],
        {"nonsense": {"url": "u"}},
        {store_hash("x"): {"nar_size": 1}},
        {store_hash("x"): {"url": "u", "nar_size": "much"}},
        {store_hash("x"): {"url": "u", "references": "all"}},
        {store_hash("x"): {"url": "u", "references": ["../etc"]}},
    ],
)
def test_a_malformed_hit_changes_nothing(world: World, malformed: Any) -> None:
    world.evaluate(LEAF)
    with refused("GR005"):
        world.message("select graph.upstream_hits(%s)", Jsonb(malformed))
    assert not world.build(LEAF)["cache_available"]


def test_a_hit_that_nobody_makes_is_ignored(world: World) -> None:
    world.evaluate(LEAF)
    report = hits(world, hit("/nix/store/" + store_hash("x") + "-x"))
    assert report == {"outputs": 0, "available": 0, "probe": []}


# Misses ---------------------------------------------------------------------------------------


@pytest.mark.scenario(24)
def test_two_true_misses_turn_a_substitution_into_a_build(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, entry_points=[MIDDLE])
    hits(world, hit(MIDDLE.outputs["out"]))
    assert world.statuses(LEAF, MIDDLE) == ["Skipped", "Queued"]
    assert world.fail(MIDDLE, "substitute_miss")["status"] == "Queued"
    assert world.build(MIDDLE)["cache_available"]
    assert world.status(LEAF) == "Skipped"
    assert world.fail(MIDDLE, "substitute_miss")["status"] == "Created"
    build = world.build(MIDDLE)
    assert (build["cache_available"], build["attempt"]) == (False, 0)
    assert world.status(LEAF) == "Queued"
    assert world.value(
        "select external_url is null and external is null from gradient.derivation_output"
        " where derivation = %s",
        world.id(MIDDLE),
    )
    [warning] = world.rows(
        "select level, message, source from gradient.evaluation_message where evaluation = %s",
        evaluation,
    )
    assert (warning["level"], warning["source"]) == ("Warning", "scheduler")
    assert MIDDLE.name in warning["message"]
    world.run(LEAF)
    world.run(MIDDLE)
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(24)
@pytest.mark.scenario(25)
def test_network_failures_are_no_misses_and_come_to_an_end(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, entry_points=[MIDDLE])
    hits(world, hit(MIDDLE.outputs["out"]))
    for _ in range(2):
        assert world.fail(MIDDLE, "network", "connection reset")["status"] == "FailedTransient"
        assert world.build(MIDDLE)["cache_available"]
        world.later(hours=1)
        world.message("select graph.requeue()")
    assert world.fail(MIDDLE, "network", "connection reset")["status"] == "FailedPermanent"
    assert world.attempts(MIDDLE)[-1]["failure_message"] == "connection reset"
    assert world.status(LEAF) == "Skipped"
    assert world.evaluation_status(evaluation) == "Failed"


@pytest.mark.scenario(24)
def test_a_miss_after_a_network_failure_is_the_first(world: World) -> None:
    world.evaluate(LEAF)
    hits(world, hit(LEAF.outputs["out"]))
    world.fail(LEAF, "network")
    world.later(hours=1)
    world.message("select graph.requeue()")
    assert world.fail(LEAF, "substitute_miss")["status"] == "Queued"
    assert world.build(LEAF)["cache_available"]


def test_misses_count_inside_one_evaluation(world: World) -> None:
    world.evaluate(LEAF)
    hits(world, hit(LEAF.outputs["out"]))
    world.fail(LEAF, "substitute_miss")
    first = world.value(
        "select evaluation from gradient.build_job where derivation_build = %s", world.id(LEAF)
    )
    world.message("select graph.abort_evaluation(%s, 'enough')", first)
    world.evaluate(LEAF)
    assert world.fail(LEAF, "substitute_miss")["status"] == "Queued"
    assert world.build(LEAF)["cache_available"]
    world.fail(LEAF, "substitute_miss")
    assert not world.build(LEAF)["cache_available"]


def test_a_miss_of_what_is_no_substitution_is_an_ordinary_failure(world: World) -> None:
    world.evaluate(LEAF)
    assert world.fail(LEAF, "substitute_miss")["status"] == "FailedTransient"
    assert world.build(LEAF)["attempt"] == 1


def test_a_substitution_given_up_over_a_failed_input_fails_with_it(world: World) -> None:
    evaluation = world.evaluate(LEAF, MIDDLE, TOP)
    hits(world, hit(MIDDLE.outputs["out"]))
    world.assign(MIDDLE)
    world.fail(LEAF)
    assert world.statuses(MIDDLE, TOP) == ["Queued", "Created"]
    world.fail(MIDDLE, "substitute_miss")
    world.fail(MIDDLE, "substitute_miss")
    assert world.statuses(MIDDLE, TOP) == ["DependencyFailed", "DependencyFailed"]
    assert world.evaluation_status(evaluation) == "Failed"


def test_an_operator_gives_up_a_substitution_that_failed(world: World) -> None:
    world.evaluate(LEAF, MIDDLE, entry_points=[MIDDLE])
    hits(world, hit(MIDDLE.outputs["out"]))
    for _ in range(3):
        world.fail(MIDDLE, "network")
        world.later(hours=1)
        world.message("select graph.requeue()")
    assert world.status(MIDDLE) == "FailedPermanent"
    call = [world.id(MIDDLE), world.id(LEAF)]
    assert world.message("select graph.exhaust_substitution(%s)", call) == call[:1]
    assert world.statuses(LEAF, MIDDLE) == ["Queued", "Created"]
    assert world.message("select graph.exhaust_substitution(%s)", call) == []


def test_a_substitution_that_runs_is_left_to_its_report(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    hits(world, hit(LEAF.outputs["out"]))
    world.start(LEAF)
    world.message("select graph.exhaust_substitution(%s)", [world.id(LEAF)])
    assert world.status(LEAF) == "Building"
    world.report_output(LEAF, substituted=True)
    world.upload_outputs(LEAF)
    world.complete(LEAF)
    assert world.status(LEAF) == "Substituted"
    assert world.evaluation_status(evaluation) == "Completed"


def test_a_miss_reported_after_the_substitution_was_given_up_is_charged_nothing_lasting(
    world: World,
) -> None:
    world.evaluate(LEAF)
    hits(world, hit(LEAF.outputs["out"]))
    world.start(LEAF)
    world.message("select graph.exhaust_substitution(%s)", [world.id(LEAF)])
    assert world.fail(LEAF, "substitute_miss")["status"] == "Queued"
