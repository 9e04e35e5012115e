"""What is broken by hand is found, repaired and remembered; what is right is not touched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString

import psycopg
import pytest

from tests.support.database import Database, violations
from tests.support.graph_builder import derivation
from tests.support.graph_world import World
from tests.support.waiting import wait_for_lock

LEAF = derivation("leaf")
BUILT = derivation("built", sources=("built",))
MIDDLE = derivation("middle", LEAF, BUILT, sources=("middle",))
TOP = derivation("top", MIDDLE)
ASIDE = derivation("aside", BUILT)
UNWANTED = derivation("unwanted")

STEPS = [
    "drv_present",
    "unwalked_inputs",
    "missing_sources",
    "missing_runtime_deps",
    "fetchable",
    "wanted",
    "skipped",
    "blocking_deps",
    "named",
    "queue",
    "ready",
    "evaluation_counters",
    "verdicts",
]


@pytest.fixture
def world(clean_db: Database) -> Iterator[World]:
    """An evaluation in the middle of its builds, in a database where things commit."""
    world = World(clean_db.connect())
    world.task(world.project())
    world.evaluate(LEAF, BUILT, MIDDLE, TOP, ASIDE, UNWANTED, entry_points=[TOP, ASIDE])
    world.run(BUILT)
    world.start(LEAF)
    assert world.status(UNWANTED) == "Skipped"
    world.conn.execute("select gradient.set('check.pace', '0')")
    yield world
    # The lines of repaired drift count as violations; the tests have looked at them.
    world.conn.execute("delete from gradient.drift")


def run(world: World) -> dict[str, Any]:
    report: dict[str, Any] = world.value("call gradient.consistency_check()")
    return report


def drifts(report: dict[str, Any]) -> dict[str, int]:
    return {step["step"]: step["drift"] for step in report["steps"] if step["drift"]}


def versions(world: World) -> list[dict[str, Any]]:
    """The version of every row of every logged table."""
    tables = [
        row["name"]
        for row in world.rows(
            "select oid::regclass::text as name from pg_class"
            " where relnamespace = 'gradient'::regnamespace and relkind = 'r'"
            " and relpersistence = 'p' order by 1"
        )
    ]
    return [
        {"table": table, **row}
        for table in tables
        for row in world.rows(f"select xmin::text, ctid::text, xmax::text from {table} order by 2")
    ]


def test_a_healthy_database_is_not_touched(world: World) -> None:
    before = versions(world)
    report = run(world)
    assert [step["step"] for step in report["steps"]] == STEPS
    assert (report["ran"], report["complete"]) == (True, True)
    assert (report["drift"], report["violations"]) == (0, 0)
    assert versions(world) == before


def test_a_healthy_database_takes_no_turn(world: World, clean_db: Database) -> None:
    writer = clean_db.connect(autocommit=False)
    writer.execute("select graph.take_turn()")
    world.conn.execute("set lock_timeout = '1s'")
    assert run(world)["drift"] == 0


def test_what_another_writer_put_right_meanwhile_is_no_drift(
    world: World, clean_db: Database
) -> None:
    before = world.build(TOP)["blocking_deps"]
    broken = "update gradient.derivation_build set blocking_deps = %s where derivation = %s"
    world.conn.execute(broken, [5, world.id(TOP)])
    writer = clean_db.connect(autocommit=False)
    writer.execute("select graph.take_turn()")
    writer.execute(broken, [before, world.id(TOP)])
    checking = clean_db.connect()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(checking.execute, "call gradient.consistency_check()")
        wait_for_lock(world.conn, checking.info.backend_pid)
        writer.commit()
        [[report]] = call.result(timeout=30).fetchall()
    assert report["drift"] == 0


BROKEN: dict[str, tuple[LiteralString, str, int]] = {
    "drv_present": ("update gradient.derivation set drv_present = false", "drv_present", 6),
    "one unwalked_inputs": (
        "update gradient.derivation set unwalked_inputs = 1 where name = 'leaf'",
        "unwalked_inputs",
        1,
    ),
    "every unwalked_inputs": (
        "update gradient.derivation set unwalked_inputs = 7",
        "unwalked_inputs",
        6,
    ),
    "missing_sources": (
        "update gradient.derivation_build set missing_sources = 2 where derivation in"
        " (select id from gradient.derivation where name in ('middle', 'leaf'))",
        "missing_sources",
        2,
    ),
    "missing_runtime_deps": (
        "update gradient.derivation_build set missing_runtime_deps = 3 where derivation in"
        " (select id from gradient.derivation where name = 'built')",
        "missing_runtime_deps",
        1,
    ),
    "fetchable lost": (
        "update gradient.derivation_build set fetchable = false",
        "fetchable",
        1,
    ),
    "fetchable gained": (
        "update gradient.derivation_build set fetchable = true where derivation in"
        " (select id from gradient.derivation where name = 'middle')",
        "fetchable",
        1,
    ),
    "wanted lost": ("update gradient.derivation_build set wanted = false", "wanted", 4),
    "wanted gained": (
        "update gradient.derivation_build set wanted = true where derivation in"
        " (select id from gradient.derivation where name = 'unwanted')",
        "wanted",
        1,
    ),
    "skipped": (
        "update gradient.derivation_build set status = 'Skipped' where derivation in"
        " (select id from gradient.derivation where name = 'middle')",
        "skipped",
        1,
    ),
    "not skipped": (
        "update gradient.derivation_build set status = 'Created' where derivation in"
        " (select id from gradient.derivation where name = 'unwanted')",
        "skipped",
        1,
    ),
    "blocking_deps": (
        "update gradient.derivation_build set blocking_deps = blocking_deps + 1",
        "blocking_deps",
        6,
    ),
    "names": (
        "delete from gradient.build_job where derivation_build in"
        " (select id from gradient.derivation where name = 'middle')",
        "named",
        1,
    ),
    "queued too early": (
        "update gradient.derivation_build set status = 'Queued' where derivation in"
        " (select id from gradient.derivation where name = 'top')",
        "queue",
        1,
    ),
    "ready_build": ("delete from gradient.ready_build", "ready", 1),
    "ready_build's class": (
        "with other as (insert into gradient.build_class (architecture, required_features)"
        " values ('riscv64-linux', '{}') returning id)"
        " update gradient.ready_build set class = (select id from other)",
        "ready",
        1,
    ),
    "evaluation counters": (
        "update gradient.evaluation set named_shared_builds = 99, active_shared_builds = 77",
        "evaluation_counters",
        2,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_was_broken_by_hand_is_repaired_and_counted(world: World, case: str) -> None:
    statement, step, count = BROKEN[case]
    before = state(world)
    world.conn.execute(statement)
    assert violations(world.conn) != []
    report = run(world)
    assert drifts(report) == {step: count}
    assert (report["drift"], report["violations"]) == (count, 0)
    assert state(world) == before
    assert world.value("select count(*) from gradient.drift") == count
    assert run(world)["drift"] == 0


def state(world: World) -> list[dict[str, Any]]:
    """Every counter, mark and status, however it came to be."""
    return world.rows(
        "select d.name, d.drv_present, d.unwalked_inputs, b.status, b.fetchable, b.wanted,"
        " b.blocking_deps, b.missing_runtime_deps, b.missing_sources,"
        " (select count(*) from gradient.build_job j where j.derivation_build = d.id) as names,"
        " (select count(*) from gradient.ready_build r where r.derivation_build = d.id) as ready,"
        " e.status as evaluation"
        " from gradient.derivation d join gradient.derivation_build b on b.derivation = d.id"
        " cross join gradient.evaluation e order by d.name, e.id"
    )


def test_a_build_that_may_start_and_was_not_queued_is_queued(world: World) -> None:
    world.conn.execute(
        "update gradient.derivation_build set status = 'Created' where derivation = %s",
        [world.id(ASIDE)],
    )
    assert drifts(run(world)) == {"queue": 1}
    assert world.status(ASIDE) == "Queued"
    assert world.ready() == {"aside"}


def test_an_evaluation_whose_verdict_was_missed_gets_it(world: World) -> None:
    world.upload_outputs(LEAF)
    world.complete(LEAF)
    for drv in (MIDDLE, ASIDE):
        world.run(drv)
    world.start(TOP)
    world.upload_outputs(TOP)
    world.complete(TOP)
    [evaluation] = world.rows("select id from gradient.evaluation")
    world.conn.execute("update gradient.evaluation set status = 'Building', finished_at = null")
    report = run(world)
    assert drifts(report)["verdicts"] == 1
    assert world.evaluation_status(evaluation["id"]) == "Completed"


def test_small_chunks_find_the_same(world: World) -> None:
    world.conn.execute("select gradient.set('check.chunk', '1')")
    world.conn.execute("update gradient.derivation_build set blocking_deps = 5, fetchable = false")
    report = run(world)
    assert drifts(report) == {"fetchable": 1, "blocking_deps": 6}
    assert [s["chunks"] for s in report["steps"] if s["step"] == "blocking_deps"] == [7]
    assert report["violations"] == 0


def test_what_it_cannot_repair_it_counts(world: World) -> None:
    world.conn.execute(
        "update gradient.derivation_build set retry_at = gradient.current_time()"
        " where derivation = %s",
        [world.id(TOP)],
    )
    report = run(world)
    assert (report["drift"], report["violations"]) == (0, 1)
    world.conn.execute("update gradient.derivation_build set retry_at = null")


def test_a_second_check_leaves_the_first_alone(world: World, clean_db: Database) -> None:
    other = clean_db.connect()
    other.execute("select pg_advisory_lock(647, 0)")
    heard: list[str] = []
    world.conn.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))
    assert run(world) == {"ran": False}
    assert heard == ["Another consistency check runs in this database."]
    other.execute("select pg_advisory_unlock(647, 0)")
    assert run(world)["ran"]
    assert world.value("select count(*) from pg_locks where locktype = 'advisory'") == 0


def test_a_check_stops_when_its_time_is_over(world: World) -> None:
    world.conn.execute("update gradient.derivation_build set blocking_deps = 5")
    report = world.value("call gradient.consistency_check(interval '0')")
    assert (report["complete"], report["steps"]) == (False, [])
    assert report["violations"] > 0
    run(world)


def test_a_check_cannot_run_inside_a_transaction(world: World) -> None:
    with pytest.raises(psycopg.errors.InvalidTransactionTermination), world.conn.transaction():
        run(world)


def test_an_operator_may_run_it_and_a_reader_may_not(clean_db: Database, world: World) -> None:
    call = "call gradient.consistency_check()"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        clean_db.connect(role="gradient_reader").execute(call)
    [[report]] = clean_db.connect(role="gradient_operator").execute(call).fetchall()
    assert report["ran"]
