"""What a server left open when it died: found, and queued again, never failed."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg
import pytest

from tests.sql.scheduler.conftest import assign
from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused
from tests.support.waiting import wait_until

INPUT = derivation("input")
PROGRAM = derivation("program", INPUT)
OTHER = derivation("other")
START = datetime(2030, 1, 1).astimezone()


def recover(world: World, instance: str = "server-1") -> dict[str, int]:
    report: dict[str, int] = world.message(
        "select scheduler.recover_interrupted_work(%s)", instance
    )
    return report


@pytest.mark.scenario(45)
@pytest.mark.scenario(27)
def test_everything_that_a_server_left_open_is_queued_again_and_nothing_fails(
    world: World,
) -> None:
    building = world.evaluate(PROGRAM, INPUT, OTHER)
    world.start(INPUT)
    world.assign(OTHER)
    walking = world.start_walk()
    handed_out = world.evaluation()
    assign(world, kind="evaluation")

    assert recover(world) == {"assignments": 4, "builds": 2, "evaluations": 2, "workers": 1}

    rows = world.rows(
        "select distinct outcome, outcome_class from gradient.dispatched_job"
        " where job <> 'eval:' || %s::bigint",
        building,
    )
    assert rows == [{"outcome": "Abandoned", "outcome_class": "server_restart"}]
    assert world.statuses(INPUT, OTHER, PROGRAM) == ["Queued", "Queued", "Created"]
    assert world.ready() == {"input", "other"}
    assert [a["outcome"] for a in world.attempts(INPUT)] == ["Aborted"]
    assert world.build(INPUT)["attempt"] == 0
    assert world.evaluation_status(building) == "Building"
    assert world.evaluation_status(walking) == "Queued"
    assert world.evaluation_status(handed_out) == "Queued"
    events = world.rows(
        "select count(*) from gradient.phase_event where subject_kind = 'Evaluation'"
        " and subject = %s and phase = 'Queued'",
        walking,
    )
    assert events == [{"count": 1}]

    # Its worker was cut off with it, and runs everything again once it is back.
    assert assign(world) == []
    world.conn.execute("update gradient.worker_connection set disconnected_at = null")
    world.run(INPUT)
    world.run(OTHER)
    world.run(PROGRAM)
    assert world.evaluation_status(building) == "Completed"


def test_recovery_happens_once(world: World) -> None:
    world.evaluate(OTHER)
    world.start(OTHER)
    assert recover(world)["assignments"] == 1
    assert recover(world) == {"assignments": 0, "builds": 0, "evaluations": 0, "workers": 0}


def test_a_build_whose_gates_closed_meanwhile_is_not_queued_again(world: World) -> None:
    world.evaluate(OTHER)
    world.start(OTHER)
    world.conn.execute(
        "update gradient.derivation set drv_present = false where id = %s", [world.id(OTHER)]
    )
    with world.conn.transaction():
        world.conn.execute("select scheduler.recover_interrupted_work('server-1')")
    assert world.status(OTHER) == "Created"
    assert world.ready() == set()
    world.conn.execute(
        "update gradient.derivation set drv_present = true where id = %s", [world.id(OTHER)]
    )
    world.conn.execute("select graph.promote(%s)", [[world.id(OTHER)]])
    world.check()


def test_the_work_of_another_server_is_left_alone(world: World) -> None:
    world.worker("v1", instance="server-2")
    world.evaluate(OTHER, worker="w1")
    world.assign(OTHER, "v1")
    assert recover(world)["assignments"] == 0
    assert (
        len(world.rows("select * from gradient.worker_connection where disconnected_at is null"))
        == 1
    )
    assert recover(world, "server-2")["assignments"] == 1


def test_a_report_for_a_recovered_assignment_is_stale(world: World) -> None:
    world.evaluate(OTHER)
    world.start(OTHER)
    recover(world)
    with refused("GR003"):
        world.message("select graph.build_completed(%s, 'w1')", world.assignments[world.job(OTHER)])


def test_an_unknown_server_cannot_be_recovered(world: World) -> None:
    with refused("GR002", "nowhere"):
        recover(world, "nowhere")


def test_a_server_is_presumed_dead_when_its_lock_is_free_and_it_was_silent_for_the_grace(
    committed: World,
) -> None:
    ask = "select * from scheduler.instances_presumed_dead()"
    world = committed
    world.at(START)
    key = world.value("select scheduler.instance_started('server-1', '1', 'http://localhost')")
    world.evaluate(OTHER)
    world.assign(OTHER)

    def dead() -> list[str]:
        return [row["instances_presumed_dead"] for row in world.rows(ask)]

    world.at(START + timedelta(seconds=29))
    assert dead() == []
    world.at(START + timedelta(seconds=30))
    assert dead() == ["server-1"]
    with psycopg.connect(world.conn.info.dsn, autocommit=True) as server:
        server.execute("select pg_advisory_lock(644, %s)", [key])
        assert dead() == []
    world.conn.execute("select scheduler.instance_seen('server-1')")
    assert dead() == []
    world.later(seconds=30)
    # The lock is free once the backend of the closed connection has ended.
    wait_until(lambda: dead() == ["server-1"], what="the server being presumed dead")
    recover(world)
    assert dead() == []


def test_the_lock_of_another_database_does_not_keep_a_server_alive(
    committed: World, pg_server: str
) -> None:
    world = committed
    world.at(START)
    key = world.value("select scheduler.instance_started('server-1', '1', 'http://localhost')")
    world.evaluate(OTHER)
    world.assign(OTHER)
    world.later(seconds=31)
    with psycopg.connect(pg_server, autocommit=True) as elsewhere:
        elsewhere.execute("select pg_advisory_lock(644, %s)", [key])
        assert len(world.rows("select * from scheduler.instances_presumed_dead()")) == 1


def test_a_server_that_starts_again_keeps_its_lock_key_and_drains_no_longer(world: World) -> None:
    start = "select scheduler.instance_started('server-1', %s, 'http://localhost')"
    key = world.value(start, "1")
    other = world.value("select scheduler.instance_started('server-2', '1', 'http://localhost')")
    assert key != other
    world.conn.execute("select scheduler.instance_draining('server-1')")
    assert world.value("select draining from gradient.server_instance where name = 'server-1'")
    assert world.value(start, "2") == key
    [row] = world.rows("select * from gradient.server_instance where name = 'server-1'")
    assert (row["version"], row["draining"]) == ("2", False)
    with refused("GR005", "my server"):
        world.message("select scheduler.instance_started('my server', '1', '')")
    with refused("GR002", "nowhere"):
        world.message("select scheduler.instance_draining('nowhere')")


def test_the_runs_of_a_pass_are_counted_and_its_last_error_stays(world: World) -> None:
    finished = "select scheduler.pass_finished('server-1', 'build', %s, %s, 5)"
    world.at(START)
    world.conn.execute(finished, [2.5, "broken"])
    world.conn.execute(finished, [1.5, None])
    [row] = world.rows("select * from gradient.pass_run")
    assert (row["runs"], row["errors"], row["last_error"]) == (2, 1, "broken")
    assert row["milliseconds"] == 1.5
    assert row["next_run_at"] == START + timedelta(seconds=5)
    assert row["last_finished_at"] - row["last_started_at"] == timedelta(milliseconds=1.5)


def test_a_pass_requeues_what_is_due(world: World) -> None:
    world.evaluate(OTHER)
    world.at(START)
    world.fail(OTHER, "network", "connection reset")
    assert world.status(OTHER) == "FailedTransient"
    ask = "select scheduler.build_pass('server-1')"
    assert world.message(ask)["requeued"] == 0
    world.later(seconds=31)
    assert world.message(ask)["requeued"] == 1
    assert world.status(OTHER) == "Queued"


@pytest.mark.scenario(54)
def test_passes_with_nothing_to_do_write_nothing_that_is_logged(
    committed: World,
) -> None:
    committed.evaluate(OTHER)
    committed.start(OTHER)
    committed.message("select scheduler.build_pass('server-1')")
    calls = (
        "select scheduler.build_pass('server-1')",
        "select scheduler.instance_seen('server-1')",
        "select * from scheduler.aborts('server-1')",
        "select * from scheduler.offers('w1')",
        "select * from scheduler.instances_presumed_dead()",
        "select scheduler.pass_finished('server-1', 'build', 1, null, 5)",
    )
    # A session of its own: what it did not write yet, nobody wrote.
    with psycopg.connect(committed.conn.info.dsn) as server:
        for call in calls:
            server.execute(call)
            rows = server.execute(
                "select c.relname from pg_stat_xact_user_tables s"
                " join pg_class c on c.oid = s.relid"
                " where c.relpersistence = 'p' and schemaname = 'gradient'"
                " and n_tup_ins + n_tup_upd + n_tup_del > 0"
            ).fetchall()
            assert rows == [], call
