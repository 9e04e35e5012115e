"""The sessions of workers: who is let in, what they may do, and what becomes of their jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.scheduler.conftest import assign, connection, offers
from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

OTHER = derivation("other")
SECOND = derivation("second")
CAPABILITIES = {
    "architectures": ["x86_64-linux"],
    "system_features": ["kvm"],
    "build_slots": 4,
    "eval_slots": 1,
    "cpu_count": 8,
    "ram_total_mb": 16000,
    "zone": None,
    "endpoint": None,
}


def token_hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def register(world: World, worker: str, token: str, project: str = "main", **enabled: bool) -> None:
    world.conn.execute(
        "select gradient.register_worker(%s, %s, %s, null, %s, %s, %s)",
        [
            project,
            worker,
            token_hash(token),
            *(enabled.get(what, True) for what in ("fetch", "eval", "build")),
        ],
    )


def authenticate(world: World, worker: str, *tokens: str) -> dict[str, Any]:
    [row] = world.rows("select * from scheduler.authenticate_worker(%s, %s)", worker, list(tokens))
    return row


def connect(world: World, worker: str = "w1", instance: str = "server-1") -> int:
    """A session of a worker that serves every project; its connection."""
    world.conn.execute("select scheduler.instance_started(%s, '1', 'http://localhost')", [instance])
    projects = [row["id"] for row in world.rows("select id from gradient.project order by id")]
    number: int = world.value(
        "select scheduler.worker_connected(%s, %s, %s, true, true, true, '1')",
        worker,
        instance,
        projects,
    )
    world.conn.execute(
        "select scheduler.worker_capabilities(%s, %s, %s)", [worker, number, Jsonb(CAPABILITIES)]
    )
    return number


def resume(world: World, number: int, running: Sequence[int] = (), worker: str = "w1") -> Any:
    return world.message("select scheduler.resume(%s, %s, %s)", worker, number, list(running))


# Who is let in --------------------------------------------------------------------------------


def test_a_registered_worker_with_its_token_serves_its_project(world: World) -> None:
    register(world, "builder", "secret", eval=False)
    answer = authenticate(world, "builder", "wrong", "secret")
    assert answer["accepted"]
    assert (answer["code"], answer["reason"]) == (None, None)
    assert answer["project_names"] == ["main"]
    assert answer["projects"] == [world.value("select id from gradient.project")]
    assert (answer["can_fetch"], answer["can_eval"], answer["can_build"]) == (True, False, True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("delete from gradient.worker_registration", 403),
        ("update gradient.worker_registration set active = false", 403),
        ("update gradient.worker_registration set token_hash = sha256('other')", 401),
        ("delete from gradient.project_cache", 495),
        ("update gradient.project_cache set mode = 'ReadOnly'", 495),
        ("update gradient.cache set active = false", 495),
    ],
)
def test_a_worker_that_is_not_welcome_is_told_why(world: World, change: Any, code: int) -> None:
    register(world, "builder", "secret")
    world.conn.execute(change)
    answer = authenticate(world, "builder", "secret")
    assert not answer["accepted"]
    assert answer["code"] == code
    assert "builder" in answer["reason"]
    assert answer["projects"] == []
    assert answer["project_names"] == []
    assert [answer[can] for can in ("can_fetch", "can_eval", "can_build")] == [False] * 3


def test_a_worker_without_tokens_is_not_let_in(world: World) -> None:
    register(world, "builder", "secret")
    assert authenticate(world, "builder")["code"] == 401


def test_a_worker_serves_the_projects_whose_token_it_holds_and_may_what_all_allow(
    world: World,
) -> None:
    world.project("second", cache="main")
    world.project("third", cache="main")
    register(world, "builder", "one")
    register(world, "builder", "two", "second", fetch=False)
    register(world, "builder", "three", "third", build=False)
    answer = authenticate(world, "builder", "one", "two")
    assert answer["project_names"] == ["main", "second"]
    assert (answer["can_fetch"], answer["can_build"]) == (False, True)


def test_a_worker_of_the_server_serves_every_project_and_new_ones_at_once(world: World) -> None:
    world.conn.execute("select gradient.register_local_worker('local', %s)", [token_hash("secret")])
    answer = authenticate(world, "local", "secret")
    assert answer["project_names"] == ["main"]
    number = connect(world, "local")
    world.conn.execute(
        "update gradient.worker_connection set projects = %s where connection = %s",
        [answer["projects"], number],
    )
    second = world.value("select gradient.create_project('second')")
    served = "select projects from gradient.worker_connection"
    assert second not in world.value(served)
    world.conn.execute("select gradient.subscribe_cache('second', 'main')")
    assert second in world.value(served)
    assert authenticate(world, "local", "secret")["project_names"] == ["main", "second"]


def test_a_team_worker_that_no_project_grants_is_not_let_in(world: World) -> None:
    world.conn.execute("select gradient.register_local_worker('local', %s)", [token_hash("secret")])
    world.conn.execute("update gradient.team_project set workers = false")
    answer = authenticate(world, "local", "secret")
    assert (answer["accepted"], answer["code"]) == (False, 403)
    assert "grants" in answer["reason"]


def test_a_team_worker_that_is_switched_off_is_not_let_in(world: World) -> None:
    world.conn.execute("select gradient.register_local_worker('local', %s)", [token_hash("secret")])
    world.conn.execute("update gradient.team_worker set enabled = false")
    assert authenticate(world, "local", "secret")["code"] == 403


# What it can do -------------------------------------------------------------------------------


@pytest.mark.scenario(34)
def test_a_worker_that_reconnects_keeps_what_it_last_said_it_can_build(world: World) -> None:
    connect(world)
    world.evaluate(OTHER)
    world.conn.execute(
        "select scheduler.worker_connected('w1', 'server-1', %s, true, true, true, '2')",
        [[world.value("select id from gradient.project")]],
    )
    [row] = world.rows("select * from gradient.worker_connection")
    assert row["architectures"] == ["x86_64-linux"]
    assert row["system_features"] == ["kvm"]
    assert (row["build_slots"], row["version"]) == (4, "2")
    assert list(offers(world)) == [world.job(OTHER)]


def test_capabilities_replace_the_former_ones(world: World) -> None:
    number = connect(world)
    changed = {**CAPABILITIES, "architectures": ["aarch64-linux"], "zone": "here"}
    world.conn.execute(
        "select scheduler.worker_capabilities('w1', %s, %s)", [number, Jsonb(changed)]
    )
    [row] = world.rows("select * from gradient.worker_connection")
    assert (row["architectures"], row["zone"]) == (["aarch64-linux"], "here")
    assert (row["cpu_count"], row["ram_total_mb"]) == (8, 16000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", None),
        ("architectures", "x86_64-linux"),
        ("system_features", None),
        ("build_slots", None),
        ("build_slots", -1),
        ("build_slots", 10**12),
        ("eval_slots", "many"),
        ("cpu_count", 1.5),
        ("ram_total_mb", 10**20),
    ],
)
def test_malformed_capabilities_are_refused_and_change_nothing(
    world: World, field: str, value: Any
) -> None:
    number = connect(world)
    before = world.rows("select * from gradient.worker_connection")
    with refused("GR005", "w1"):
        world.message(
            "select scheduler.worker_capabilities('w1', %s, %s)",
            number,
            Jsonb({**CAPABILITIES, field: value}),
        )
    assert world.rows("select * from gradient.worker_connection") == before


def test_a_connection_that_was_replaced_says_nothing_any_more(world: World) -> None:
    old = connect(world)
    new = connect(world)
    with refused("GR003", "w1"):
        world.message(
            "select scheduler.worker_capabilities('w1', %s, %s)", old, Jsonb(CAPABILITIES)
        )
    with refused("GR003", "w1"):
        resume(world, old)
    world.conn.execute("select scheduler.worker_draining('w1', %s)", [old])
    world.conn.execute("select scheduler.worker_disconnected('w1', %s)", [old])
    [row] = world.rows("select * from gradient.worker_connection")
    assert (row["connection"], row["draining"], row["disconnected_at"]) == (new, False, None)


def test_an_unknown_server_takes_no_workers(world: World) -> None:
    with refused("GR002", "nowhere"):
        world.message(
            "select scheduler.worker_connected('w1', 'nowhere', '{}', true, true, true, '1')"
        )


def test_a_draining_worker_is_given_nothing_until_it_connects_again(world: World) -> None:
    world.evaluate(OTHER)
    world.conn.execute("select scheduler.worker_draining('w1', %s)", [connection(world)])
    assert assign(world) == []
    connect(world)
    assert len(assign(world)) == 1


def test_the_metrics_of_the_workers_come_in_one_statement(world: World) -> None:
    connect(world)
    connect(world, "w2")
    moment = datetime(2030, 1, 1).astimezone()
    seen = [
        {"worker": "w1", "at": moment.isoformat(), "metrics": {"cpu_usage_pct": 3}},
        {"worker": "w2", "at": None, "metrics": None},
        {"worker": "stranger", "at": None, "metrics": None},
    ]
    world.conn.execute("select scheduler.workers_seen(%s)", [Jsonb(seen)])
    earlier = [{"worker": "w1", "at": "2029-01-01T00:00:00Z", "metrics": {}}]
    world.conn.execute("select scheduler.workers_seen(%s)", [Jsonb(earlier)])
    rows = world.rows("select * from gradient.worker_seen order by worker_id")
    assert [row["worker_id"] for row in rows] == ["w1", "w2"]
    assert rows[0]["last_seen"] == moment


# What becomes of its jobs ---------------------------------------------------------------------


def test_a_worker_that_comes_back_to_another_server_keeps_what_it_names(world: World) -> None:
    connect(world)
    world.evaluate(OTHER, SECOND)
    kept, lost = world.assign(OTHER), world.assign(SECOND)
    world.start(OTHER)
    answer = resume(world, connect(world, instance="server-2"), [kept, 987654])
    assert answer == {"keep": [kept], "stop": [987654]}
    [row] = world.rows("select * from gradient.dispatched_job where finished_at is null")
    assert (row["id"], row["instance"]) == (kept, "server-2")
    [row] = world.rows("select * from gradient.dispatched_job where id = %s", lost)
    assert (row["outcome"], row["outcome_class"]) == ("Abandoned", "worker_lost")
    assert world.statuses(OTHER, SECOND) == ["Building", "Queued"]
    assert world.ready() == {"second"}
    # The dead server's recovery does not take it away any more.
    world.message("select scheduler.recover_interrupted_work('server-1')")
    assert world.status(OTHER) == "Building"
    world.run(OTHER)
    assert world.status(OTHER) == "Completed"


def test_a_worker_that_started_afresh_gives_everything_back_uncharged(world: World) -> None:
    connect(world)
    world.evaluate(OTHER)
    world.start(OTHER)
    evaluation = world.start_walk()
    assert resume(world, connect(world)) == {"keep": [], "stop": []}
    assert world.status(OTHER) == "Queued"
    assert world.build(OTHER)["attempt"] == 0
    assert world.evaluation_status(evaluation) == "Queued"
    assert [attempt["outcome"] for attempt in world.attempts(OTHER)] == ["Aborted"]


def test_an_assignment_of_another_worker_is_not_resumed(world: World) -> None:
    connect(world)
    number = connect(world, "w2")
    world.evaluate(OTHER)
    assignment = world.assign(OTHER)
    assert resume(world, number, [assignment], "w2") == {"keep": [], "stop": [assignment]}
    assert (
        world.value("select count(*) from gradient.dispatched_job where finished_at is null") == 1
    )


def test_jobs_of_a_worker_that_left_are_returned_after_the_grace_and_not_before(
    world: World,
) -> None:
    number = connect(world)
    world.evaluate(OTHER)
    world.start(OTHER)
    start = datetime(2030, 1, 1).astimezone()
    world.at(start)
    seen = [{"worker": "w1", "at": start.isoformat(), "metrics": None}]
    world.conn.execute("select scheduler.workers_seen(%s)", [Jsonb(seen)])
    world.conn.execute("select scheduler.worker_disconnected('w1', %s)", [number])
    ask = "select scheduler.return_silent_workers('server-1')"
    world.at(start + timedelta(seconds=119))
    assert world.message(ask) == 0
    assert world.message("select scheduler.return_silent_workers('server-2')") == 0
    assert world.status(OTHER) == "Building"
    world.at(start + timedelta(seconds=120))
    assert world.message("select scheduler.return_silent_workers('server-2')") == 0
    assert world.message("select scheduler.build_pass('server-1')")["returned"] == 1
    assert world.status(OTHER) == "Queued"
    assert world.message(ask) == 0


def test_a_worker_whose_session_is_open_is_not_given_up(world: World) -> None:
    connect(world)
    world.evaluate(OTHER)
    world.start(OTHER)
    world.later(hours=2)
    assert world.message("select scheduler.return_silent_workers(null)") == 0


def test_jobs_of_a_worker_that_is_not_known_are_returned(world: World) -> None:
    connect(world)
    world.evaluate(OTHER)
    world.start(OTHER)
    world.conn.execute("delete from gradient.worker_connection")
    assert world.message("select scheduler.return_silent_workers('server-1')") == 1
    assert world.status(OTHER) == "Queued"


@pytest.mark.scenario(40)
def test_an_evaluation_that_loses_every_worker_fails_at_the_tenth(world: World) -> None:
    evaluation = world.evaluation()
    for loss in range(10):
        assert world.evaluation_status(evaluation) == "Queued", loss
        number = connect(world)
        [job] = assign(world, kind="evaluation")
        world.message("select graph.fetch_started(%s, 'w1')", job["assignment"])
        resume(world, number)
    assert world.evaluation_status(evaluation) == "Failed"
    assert "lost" in world.errors(evaluation)[0]


def test_a_job_that_is_to_stop_is_listed_until_its_worker_reports_the_end(world: World) -> None:
    connect(world)
    evaluation = world.evaluate(OTHER)
    world.start(OTHER)
    assignment = world.assign(OTHER)
    ask = "select worker, assignment, reason from scheduler.aborts('server-1')"
    assert world.rows(ask) == []
    world.message("select graph.abort_evaluation(%s, 'enough')", evaluation)
    for _ in range(2):
        [row] = world.rows(ask)
        assert (row["worker"], row["assignment"]) == ("w1", assignment)
        assert row["reason"]
    assert world.rows("select * from scheduler.aborts('server-2')") == []
    world.message("select graph.build_failed(%s, 'w1', 'aborted', 'stopped', '{}')", assignment)
    assert world.rows(ask) == []
