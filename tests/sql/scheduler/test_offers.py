"""scheduler.offers and the scores that come back: a bounded view, and what is new in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from psycopg.types.json import Jsonb

from gradient.protocol import JobCandidate
from tests.sql.scheduler.conftest import assign, connection, offers
from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

INPUT = derivation("input", outputs=("out", "dev"), features=("kvm",))
OTHER = derivation("other", architecture="builtin")


def score(world: World, *scores: dict[str, Any], worker: str = "w1") -> None:
    world.conn.execute("select scheduler.offer_scores(%s, %s)", [worker, Jsonb(list(scores))])


def kept(world: World) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for row in world.rows(
            "select worker_id, job, missing_count, missing_nar_size, outputs_present"
            " from gradient.offer_score order by 1, 2"
        )
    ]


def test_a_worker_is_offered_what_it_could_be_assigned(world: World) -> None:
    world.worker(features=["kvm"])
    world.worker("w2", architectures=["aarch64-linux"])
    world.evaluate(INPUT, OTHER)
    evaluation = world.evaluation()
    assert set(offers(world)) == {f"eval:{evaluation}", world.job(INPUT), world.job(OTHER)}
    assert list(offers(world, "w2")) == [f"eval:{evaluation}", world.job(OTHER)]
    assert [job["job"] for job in assign(world, "w2")] == [world.job(OTHER)]
    assert list(offers(world)) == [f"eval:{evaluation}", world.job(INPUT)]
    assert offers(world, "nobody") == {}


def test_a_candidate_is_what_the_wire_says(world: World) -> None:
    world.worker(features=["kvm"])
    world.evaluate(INPUT)
    evaluation = world.evaluation()
    found = {
        job: msgspec.convert(offer["candidate"], JobCandidate)
        for job, offer in offers(world).items()
    }
    build = found[world.job(INPUT)]
    assert (build.kind, build.architecture) == ("build", "x86_64-linux")
    assert build.required_features == ["kvm"]
    assert build.drv == INPUT.drv
    assert sorted(build.outputs) == sorted(INPUT.outputs.values())
    assert found[f"eval:{evaluation}"].kind == "evaluation"


@pytest.mark.scenario(39)
@pytest.mark.scenario(35)
def test_a_rejected_build_is_offered_anew_to_every_worker_and_says_why(world: World) -> None:
    world.worker("w2")
    world.evaluate(OTHER)
    before = offers(world), offers(world, "w2")
    [job] = assign(world)
    assert offers(world, "w2") == {}
    world.message("select scheduler.reject(%s, 'w1', 'no kvm here')", job["assignment"])
    for worker, seen in zip(("w1", "w2"), before, strict=True):
        again = offers(world, worker)[world.job(OTHER)]
        assert again["generation"] > seen[world.job(OTHER)]["generation"]
        assert again["candidate"] == seen[world.job(OTHER)]["candidate"]
    [attempt] = world.attempts(OTHER)
    assert attempt["outcome"] == "Aborted"
    assert attempt["failure_message"] == "Offered to w1, refused: no kvm here"
    assert world.build(OTHER)["attempt"] == 0
    assert [job["job"] for job in assign(world, "w2")] == [world.job(OTHER)]


@pytest.mark.scenario(39)
def test_a_rejected_evaluation_is_offered_anew(world: World) -> None:
    world.worker()
    evaluation = world.evaluation()
    before = offers(world)[f"eval:{evaluation}"]
    [job] = assign(world, kind="evaluation")
    assert offers(world) == {}
    world.message("select scheduler.reject(%s, 'w1', 'busy')", job["assignment"])
    assert offers(world)[f"eval:{evaluation}"]["generation"] > before["generation"]
    reasons = world.rows(
        "select detail ->> 'reason' as reason from gradient.phase_event"
        " where subject_kind = 'Evaluation' and subject = %s and phase = 'Rejected'",
        evaluation,
    )
    assert reasons == [{"reason": "busy"}]


@pytest.mark.scenario(39)
def test_a_build_that_was_lost_with_its_worker_is_offered_anew(world: World) -> None:
    world.worker("w2")
    world.evaluate(OTHER)
    before = offers(world, "w2")[world.job(OTHER)]["generation"]
    world.start(OTHER)
    world.message("select graph.return_assignments(%s, 'worker_lost')", [world.assign(OTHER)])
    assert offers(world, "w2")[world.job(OTHER)]["generation"] > before


def test_only_an_open_assignment_of_its_own_can_be_rejected(world: World) -> None:
    world.worker("w2")
    world.evaluate(OTHER)
    assignment = world.assign(OTHER)
    with refused("GR003", str(assignment)):
        world.message("select scheduler.reject(%s, 'w2', 'mine')", assignment)
    world.message("select scheduler.reject(%s, 'w1', 'no')", assignment)
    world.message("select scheduler.reject(%s, 'w1', 'no')", assignment)
    assert len(world.attempts(OTHER)) == 1
    world.run(OTHER)
    with refused("GR003", "not open"):
        world.message(
            "select scheduler.reject(%s, 'w1', 'no')", world.assignments[world.job(OTHER)]
        )


def test_the_view_is_bounded(world: World) -> None:
    world.conn.execute("update gradient.setting set value = '3' where name = 'offers.limit'")
    builds = [derivation(f"b{number}") for number in range(5)]
    world.evaluate(*builds)
    first = list(offers(world))
    assert len(first) == 3
    assert [job["job"] for job in assign(world, slots=3)] == first


def test_scores_of_ready_builds_are_kept_and_replaced(world: World) -> None:
    world.evaluate(OTHER)
    job = world.job(OTHER)
    score(world, {"job": job, "missing_count": 3, "missing_nar_size": 700})
    assert kept(world) == [("w1", job, 3, 700, False)]
    score(world, {"job": job, "missing_count": 0, "outputs_present": True})
    assert kept(world) == [("w1", job, 0, None, True)]
    score(world, {"job": job, "missing_count": 2**63, "missing_nar_size": 2**70})
    [(_, _, count, size, _)] = kept(world)
    assert (count, size) == (2**31 - 1, (2**31 - 1) ** 2)


def test_scores_of_what_is_not_ready_are_dropped(world: World) -> None:
    second = derivation("second")
    world.evaluate(OTHER, second)
    score(world, {"job": world.job(OTHER), "missing_count": 1})
    score(world, {"job": world.job(OTHER), "missing_count": 1}, worker="w2")
    score(world, {"job": "build:999999", "missing_count": 1}, {"job": "nonsense"})
    assert [row[:2] for row in kept(world)] == [("w1", world.job(OTHER)), ("w2", world.job(OTHER))]
    world.conn.execute(
        "select scheduler.assign('w1', %s, 'build', 2)", [connection(world)]
    ).fetchall()
    score(world, worker="w2")
    assert kept(world) == []


def test_scores_that_are_not_an_array_are_refused(world: World) -> None:
    world.worker()
    with refused("GR005", "w1"):
        world.message("select scheduler.offer_scores('w1', %s)", Jsonb({"job": "build:1"}))
