"""Starting, aborting, watching evaluations, and finding builds."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.database import Database
from tests.support.graph_builder import derivation
from tests.support.graph_world import World, refused

INPUT = derivation("input", outputs=("out", "dev"))
PROGRAM = derivation("program", INPUT)


def start(world: World, *arguments: Any, task: str = "site") -> int:
    number: int = world.message(
        "select gradient.start_evaluation('main', %s, %s, %s)",
        task,
        *(arguments or (None, None)),
    )
    return number


def task(world: World, concurrency: str) -> str:
    world.conn.execute(
        "select gradient.create_task('main', 'other', '/srv/other', 'checks.*',"
        " jsonb_build_object('concurrency', %s::text, 'revision', 'main',"
        " 'input_overrides', '{\"lib\": null}'::jsonb))",
        [concurrency],
    )
    return "other"


def status(world: World, evaluation: int) -> str:
    found: str = world.value(
        "select status from gradient.evaluation_overview where id = %s", evaluation
    )
    return found


def test_an_evaluation_notes_what_the_task_said_when_it_started(furnished: World) -> None:
    name = task(furnished, "SoftAbort")
    first = start(furnished, task=name)
    second = start(furnished, "v1.2", "packages.*.tool", task=name)
    rows = furnished.rows(
        "select * from gradient.evaluation where repository = '/srv/other' order by id"
    )
    assert [(row["revision"], row["wildcard"]) for row in rows] == [
        ("main", "checks.*"),
        ("v1.2", "packages.*.tool"),
    ]
    assert [row["previous"] for row in rows] == [None, first]
    assert {row["repository"] for row in rows} == {"/srv/other"}
    overrides = furnished.rows(
        "select * from gradient.evaluation_flake_input_override where evaluation = %s", second
    )
    assert [(row["input_name"], row["url"]) for row in overrides] == [("lib", None)]


@pytest.mark.parametrize("policy", ["SoftAbort", "HardAbort"])
def test_a_newer_evaluation_aborts_the_one_in_flight(furnished: World, policy: str) -> None:
    name = task(furnished, policy)
    first = start(furnished, task=name)
    second = start(furnished, task=name)
    assert (status(furnished, first), status(furnished, second)) == ("Aborted", "Queued")


def test_a_task_that_skips_refuses_a_second_evaluation_until_the_first_has_ended(
    furnished: World,
) -> None:
    name = task(furnished, "Skip")
    first = start(furnished, task=name)
    with refused("GR001", str(first)):
        start(furnished, task=name)
    assert status(furnished, first) == "Queued"
    furnished.message("select gradient.abort_evaluation(%s)", first)
    assert status(furnished, start(furnished, task=name)) == "Queued"


def test_a_task_that_allows_all_runs_them_beside_each_other(furnished: World) -> None:
    name = task(furnished, "All")
    both = [start(furnished, task=name), start(furnished, task=name)]
    assert [status(furnished, number) for number in both] == ["Queued", "Queued"]


def test_an_inactive_task_starts_nothing(furnished: World) -> None:
    furnished.conn.execute("update gradient.task set active = false")
    with refused("GR001", "site"):
        start(furnished)


@pytest.mark.parametrize(
    ("revision", "wildcard"), [("--evil", None), ("two words", None), (None, " ")]
)
def test_a_malformed_revision_or_pattern_is_refused(
    furnished: World, revision: str | None, wildcard: str | None
) -> None:
    with refused("GR005"):
        start(furnished, revision, wildcard)
    assert furnished.rows("select * from gradient.evaluation_overview") == []


def test_an_evaluation_without_a_cache_waits_for_one(furnished: World) -> None:
    furnished.conn.execute("delete from gradient.project_cache")
    number = start(furnished)
    [row] = furnished.rows("select * from gradient.evaluation_overview")
    assert (row["status"], row["waiting_reason"]) == ("Waiting", {"kind": "no_cache"})
    furnished.message("select gradient.subscribe_cache('main', 'main', 'ReadOnly')")
    assert status(furnished, number) == "Waiting"
    furnished.message("select gradient.subscribe_cache('main', 'main', 'WriteOnly')")
    assert status(furnished, number) == "Queued"


def test_starting_wakes_the_servers(clean_db: Database) -> None:
    world = World(clean_db.connect())
    world.task(world.project(), "site")
    with psycopg.connect(clean_db.dsn, autocommit=True) as listener:
        listener.execute("listen gradient")
        start(world)
        topics = {note.payload for note in listener.notifies(timeout=10, stop_after=2)}
    assert "evaluations" in topics


def test_two_people_who_start_at_once_leave_one_evaluation_in_flight(clean_db: Database) -> None:
    world = World(clean_db.connect())
    world.task(world.project(), "site")
    call = "select gradient.start_evaluation('main', 'site')"
    with (
        psycopg.connect(clean_db.dsn) as first,
        psycopg.connect(clean_db.dsn, autocommit=True) as second,
    ):
        first.execute(call)
        second.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            second.execute(call)
        first.commit()
        second.execute(call)
    assert world.rows("select status from gradient.evaluation order by id") == [
        {"status": "Aborted"},
        {"status": "Queued"},
    ]


def test_a_person_aborts_an_evaluation_in_flight_and_no_other(furnished: World) -> None:
    number = start(furnished)
    report = furnished.message("select gradient.abort_evaluation(%s)", number)
    assert report["aborted_builds"] == 0
    assert status(furnished, number) == "Aborted"
    with refused("GR001", str(number)):
        furnished.message("select gradient.abort_evaluation(%s)", number)
    with refused("GR002", "424242"):
        furnished.message("select gradient.abort_evaluation(424242)")


# Looking --------------------------------------------------------------------------------------


def test_progress_tells_everything_about_an_evaluation(furnished: World) -> None:
    world = furnished
    evaluation = world.start_walk(start(world))
    world.upload(evaluation, INPUT, PROGRAM)
    warning = {"level": "warning", "message": "deprecated", "attribute": "program"}
    world.record(evaluation, [INPUT, PROGRAM], [PROGRAM], [warning])
    progress = world.value("select gradient.evaluation_progress(%s)", evaluation)
    assert (progress["project"], progress["task"]) == ("main", "site")
    assert (progress["status"], progress["verdict"]) == ("EvaluatingDerivation", None)
    assert progress["worker"] == "w1"
    assert progress["builds"] == {"Queued": 1, "Created": 1}
    [entry] = progress["entry_points"]
    assert (entry["attribute"], entry["drv"], entry["status"]) == (
        "program",
        PROGRAM.drv,
        "Created",
    )
    [message] = progress["messages"]
    assert (message["level"], message["message"]) == ("warning", "deprecated")
    world.complete_walk(evaluation)
    world.start(INPUT)
    [running] = world.value("select gradient.evaluation_progress(%s)", evaluation)["building"]
    assert (running["name"], running["worker"]) == ("input", "w1")
    world.run(INPUT)
    world.run(PROGRAM)
    progress = world.value("select gradient.evaluation_progress(%s)", evaluation)
    assert (progress["verdict"], progress["builds"]) == ("Completed", {"Completed": 2})
    with refused("GR002", "424242"):
        world.message("select gradient.evaluation_progress(424242)")


def test_counters_are_read_with_what_is_not_folded_yet(furnished: World) -> None:
    world = furnished
    evaluation = world.start_walk(start(world))
    world.upload(evaluation, INPUT, PROGRAM)
    world.record(evaluation, [INPUT, PROGRAM], [PROGRAM])
    ask = "select builds, active, queued, building, failed from gradient.evaluation_overview"
    expected = [{"builds": 2, "active": 2, "queued": 1, "building": 0, "failed": 0}]
    assert world.rows(ask) == expected
    world.conn.execute("select graph.fold_evaluation_counters()")
    assert world.rows(ask) == expected


def test_the_queue_lists_what_waits_for_a_worker_in_its_order(furnished: World) -> None:
    world = furnished
    evaluation = world.start_walk(start(world))
    world.upload(evaluation, INPUT, PROGRAM)
    world.record(evaluation, [INPUT, PROGRAM], [PROGRAM])
    waiting = start(world, task=task(world, "All"))
    rows = world.rows("select * from gradient.queue")
    assert [(row["kind"], row["evaluation"], row["build"], row["name"]) for row in rows] == [
        ("evaluation", waiting, None, "other"),
        ("build", None, world.id(INPUT), "input"),
    ]
    world.take("build")
    world.take("evaluation")
    assert world.rows("select * from gradient.queue") == []
    rows = world.rows(
        "select job, worker, name from gradient.assignment_overview where finished_at is null"
        " order by id desc limit 2"
    )
    assert [(row["job"], row["worker"], row["name"]) for row in rows] == [
        (f"eval:{waiting}", "w1", "other"),
        (world.job(INPUT), "w1", "input"),
    ]


def test_a_worker_is_listed_from_its_registration_to_its_leave(furnished: World) -> None:
    world = furnished
    ask = "select * from gradient.worker_overview order by worker"
    world.message("select gradient.register_worker('main', 'w1', sha256('x'))")
    [row] = world.rows(ask)
    assert (row["state"], row["access"], row["capabilities"]) == ("Registered", "project", [])
    world.worker("w1")
    world.evaluate(INPUT)
    world.assign(INPUT)
    [row] = world.rows(ask)
    assert (row["state"], row["capabilities"]) == ("Connected", ["fetch", "eval", "build"])
    assert (row["running"], row["running_builds"], row["projects"]) == (1, 1, ["main"])
    for change, state in (
        ("draining = true", "Draining"),
        ("disconnected_at = now()", "Disconnected"),
    ):
        world.conn.execute(f"update gradient.worker_connection set {change}")
        [row] = world.rows(ask)
        assert row["state"] == state


def test_a_server_is_listed_as_gone_after_the_grace(furnished: World) -> None:
    world = furnished
    ask = "select state from gradient.server_overview"
    world.later(seconds=0)
    world.message("select scheduler.instance_started('s1', '1', 'http://localhost')")
    assert world.value(ask) == "Running"
    world.message("select scheduler.instance_draining('s1')")
    assert world.value(ask) == "Draining"
    world.later(seconds=30)
    assert world.value(ask) == "Gone"


def test_a_build_is_found_by_every_name_that_people_have_for_it(furnished: World) -> None:
    world = furnished
    world.evaluate(PROGRAM, INPUT)
    find = "select gradient.find_build(%s)"
    names = [
        str(world.id(INPUT)),
        INPUT.drv,
        INPUT.path,
        f" {INPUT.path}\n",
        INPUT.hash,
        INPUT.hash[:8],
        *INPUT.outputs.values(),
    ]
    assert [world.value(find, name) for name in names] == [world.id(INPUT)] * len(names)


@pytest.mark.parametrize(
    "name", ["", "999999", "abc", "zzzzzzzz", "program", "/nix/store/" + "0" * 32 + "-x.drv", None]
)
def test_a_build_that_is_not_there_is_refused(furnished: World, name: str | None) -> None:
    furnished.evaluate(INPUT)
    with refused("GR002", "no build"):
        furnished.message("select gradient.find_build(%s)", name)


def test_a_prefix_of_several_builds_is_refused_with_their_names(furnished: World) -> None:
    world = furnished
    world.evaluate(INPUT, PROGRAM)
    with world.conn.transaction(force_rollback=True):
        for place, drv in enumerate((INPUT, PROGRAM)):
            world.conn.execute(
                "update gradient.derivation set hash = %s where id = %s",
                ["aaaa" + str(place) * 28, world.id(drv)],
            )
        with pytest.raises(psycopg.Error) as caught, world.conn.transaction():
            world.value("select gradient.find_build('aaaa')")
        assert caught.value.sqlstate == "GR005"
        assert "input" in (caught.value.diag.message_detail or "")
        assert "program" in (caught.value.diag.message_detail or "")


def test_attempts_are_listed_latest_first_with_the_size_of_their_log(furnished: World) -> None:
    world = furnished
    world.evaluate(INPUT)
    world.start(INPUT)
    for start_, length in ((0, 100), (100, 50)):
        world.message(
            "select graph.append_log(%s, 'w1', %s, %s, 1, 10)", world.assign(INPUT), start_, length
        )
    world.message("select graph.return_assignments(%s, 'worker_lost')", [world.assign(INPUT)])
    world.start(INPUT)
    latest, first = world.rows("select * from gradient.build_attempts(%s)", world.id(INPUT))
    assert (latest["outcome"], latest["log_bytes"], latest["log_finished"]) == ("Running", 0, False)
    assert (first["outcome"], first["outcome_class"]) == ("Aborted", "worker_lost")
    assert (first["log_bytes"], first["log_finished"], first["worker"]) == (150, True, "w1")
    chunks = "select * from gradient.build_log_chunks(%s, %s)"
    rows = world.rows(chunks, first["attempt"], 0)
    assert [(row["byte_start"], row["byte_len"]) for row in rows] == [(0, 100), (100, 50)]
    assert rows[0]["object_key"] == f"log/{first['attempt']}/0.zst"
    assert [row["chunk_index"] for row in world.rows(chunks, first["attempt"], 100)] == [1]


def test_a_build_says_what_made_it_fail(furnished: World) -> None:
    world = furnished
    world.evaluate(INPUT, PROGRAM)
    world.fail(INPUT, message="make: *** [all] Error 1")
    rows = {row["name"]: row for row in world.rows("select * from gradient.build_overview")}
    assert rows["input"]["status"] == "FailedPermanent"
    assert rows["input"]["outcome_shown"] == "builder failed"
    assert rows["input"]["failure_message"] == "make: *** [all] Error 1"
    assert rows["program"]["status"] == "DependencyFailed"
    assert rows["program"]["failed_by"] == world.id(INPUT)
    assert rows["program"]["failed_by_attempt"] == rows["input"]["latest_attempt"]
