"""scheduler.assign: who gets what, once, and only what still holds when it is handed out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psycopg
import pytest

from gradient.protocol import AssignJob, BuildJob, CachedSource, FlakeJob, RepositorySource
from tests.sql.scheduler.conftest import assign, connection, offers
from tests.support.database import Database
from tests.support.graph_builder import Drv, derivation
from tests.support.graph_world import World, refused
from tests.support.sessions import TwoSessions

INPUT = derivation("input")
PROGRAM = derivation("program", INPUT)
OTHER = derivation("other")


def upstream_hit(world: World, drv: Drv) -> None:
    """The outputs of a build turn out to lie upstream."""
    with world.conn.transaction():
        world.conn.execute(
            "update gradient.derivation_build set cache_available = true where derivation = %s",
            [world.id(drv)],
        )
        world.conn.execute("select graph.sync_ready(%s)", [[world.id(drv)]])


def candidates(world: World, worker: str = "w1") -> tuple[list[int], list[int], list[bool]]:
    """What assignment would consider now, as scheduler.claim_builds takes it."""
    rows = world.rows("select * from scheduler.build_candidates(%s, 100) order by place", worker)
    return (
        [row["derivation_build"] for row in rows],
        [row["project"] for row in rows],
        [row["cache_available"] for row in rows],
    )


def claim(world: World, found: tuple[Sequence[Any], ...], slots: int = 100) -> list[int]:
    """Claim candidates that were read earlier; the builds that were claimed."""
    return [
        row["derivation_build"]
        for row in world.rows(
            "select * from scheduler.claim_builds('w1', %s, %s, %s, %s)", *found, slots
        )
    ]


def jobs_of(assigned: Sequence[dict[str, Any]]) -> list[str]:
    return [job["job"] for job in assigned]


# Once -----------------------------------------------------------------------------------------


def test_a_build_is_handed_out_once(world: World) -> None:
    world.evaluate(PROGRAM, INPUT)
    world.worker("w2")
    assert jobs_of(assign(world)) == [world.job(INPUT)]
    assert assign(world) == []
    assert assign(world, "w2") == []
    assert world.status(INPUT) == "Queued"
    assert world.ready() == set()


@pytest.mark.scenario(36)
def test_a_build_that_another_session_is_claiming_is_left_out_not_waited_for(
    committed: World, two_sessions: TwoSessions
) -> None:
    committed.evaluate(PROGRAM, INPUT)
    committed.worker("w2")
    ask = "select scheduler.assign(%s, %s, 'build', 10)"
    with (
        psycopg.connect(committed.conn.info.dsn) as a,
        psycopg.connect(committed.conn.info.dsn) as b,
    ):
        first = a.execute(ask, ["w1", connection(committed, "w1")]).fetchall()
        second = b.execute(ask, ["w2", connection(committed, "w2")]).fetchall()
        assert [job["job"] for (job,) in first] == [committed.job(INPUT)]
        assert second == []
        b.rollback()
        a.rollback()
        # What was not committed was not handed out.
        third = b.execute(ask, ["w2", connection(committed, "w2")]).fetchall()
        assert [job["job"] for (job,) in third] == [committed.job(INPUT)]
    committed.check()


@pytest.mark.scenario(36)
def test_many_servers_that_ask_at_once_never_hand_a_job_out_twice(committed: World) -> None:
    builds = [derivation(f"build-{number}") for number in range(60)]
    other = committed.task(committed.project("second", cache="main"))
    committed.evaluate(*builds)
    committed.evaluate(*builds, task=other)
    evaluations = [committed.evaluation() for _ in range(12)]
    workers = [
        committed.worker(f"v{number}", instance=f"server-{number % 2}") for number in range(6)
    ]
    numbers = {worker: connection(committed, worker) for worker in workers}

    def ask(worker: str) -> list[str]:
        taken = []
        with psycopg.connect(committed.conn.info.dsn, autocommit=True) as conn:
            for _ in range(12):
                for kind in ("build", "evaluation"):
                    rows = conn.execute(
                        "select scheduler.assign(%s, %s, %s, 3)", [worker, numbers[worker], kind]
                    ).fetchall()
                    taken += [job["job"] for (job,) in rows]
        return taken

    with ThreadPoolExecutor(len(workers)) as pool:
        taken = [job for jobs in pool.map(ask, workers) for job in jobs]
    expected = {committed.job(build) for build in builds}
    expected |= {f"eval:{evaluation}" for evaluation in evaluations}
    assert sorted(taken) == sorted(expected)
    committed.check()


def test_a_second_open_assignment_of_a_job_cannot_exist(world: World) -> None:
    world.evaluate(OTHER)
    world.assign(OTHER)
    with pytest.raises(psycopg.errors.UniqueViolation), world.conn.transaction():
        world.conn.execute(
            "insert into gradient.dispatched_job"
            " (kind, job, derivation_build, project, worker_id, instance, queued_at, dispatched_at)"
            " select kind, job, derivation_build, project, 'w2', instance, queued_at, dispatched_at"
            " from gradient.dispatched_job where finished_at is null"
        )


@pytest.mark.scenario(38)
def test_the_end_of_one_job_closes_only_that_one(world: World) -> None:
    world.evaluate(INPUT, OTHER)
    assert len(assign(world)) == 2
    world.run(INPUT)
    open_jobs = world.rows("select job from gradient.dispatched_job where finished_at is null")
    assert [row["job"] for row in open_jobs] == [world.job(OTHER)]
    world.run(OTHER)
    assert world.statuses(INPUT, OTHER) == ["Completed", "Completed"]


# What still holds -----------------------------------------------------------------------------


@pytest.mark.scenario(13)
def test_a_build_that_turned_out_to_be_upstream_is_not_claimed_as_a_build(world: World) -> None:
    world.evaluate(OTHER)
    found = candidates(world)
    assert found[0] == [world.id(OTHER)]
    offered = offers(world)[world.job(OTHER)]
    upstream_hit(world, OTHER)
    assert claim(world, found) == []
    again = offers(world)[world.job(OTHER)]
    assert again["generation"] > offered["generation"]
    assert again["candidate"]["architecture"] == "builtin"
    [job] = assign(world)
    assert job["spec"]["build_kind"] == "substitute"
    assert world.attempts(OTHER)[0]["substitute"]


@pytest.mark.scenario(14)
def test_a_build_that_went_back_to_created_is_not_claimed(world: World) -> None:
    world.evaluate(OTHER)
    found = candidates(world)
    world.conn.execute(
        "update gradient.derivation set drv_present = false where id = %s", [world.id(OTHER)]
    )
    world.conn.execute("select graph.unpromote(%s)", [[world.id(OTHER)]])
    assert world.status(OTHER) == "Created"
    assert claim(world, found) == []
    world.conn.execute(
        "update gradient.derivation set drv_present = true where id = %s", [world.id(OTHER)]
    )
    world.conn.execute("select graph.promote(%s)", [[world.id(OTHER)]])
    world.check()
    assert claim(world, found) == [world.id(OTHER)]


@pytest.mark.parametrize(
    "closed",
    [
        "update gradient.derivation_build set blocking_deps = 1 where derivation = %s",
        "update gradient.derivation_build set missing_sources = 1 where derivation = %s",
        "update gradient.derivation_build set wanted = false where derivation = %s",
        "update gradient.derivation_build set probed = false where derivation = %s",
        "update gradient.derivation set drv_present = false where id = %s",
        "update gradient.derivation set walked = false where id = %s",
        "delete from gradient.build_job where derivation_build = %s",
        "update gradient.derivation_build set status = 'Created' where derivation = %s",
    ],
)
@pytest.mark.scenario(18)
def test_a_claim_checks_every_gate_once_more(world: World, closed: Any) -> None:
    world.evaluate(OTHER)
    found = candidates(world)
    try:
        with world.conn.transaction():
            world.conn.execute(closed, [world.id(OTHER)])
            assert claim(world, found) == []
            raise psycopg.Rollback  # the row alone was closed, which no message would leave so
    except psycopg.Rollback:
        pass
    assert claim(world, found) == [world.id(OTHER)]


@pytest.mark.scenario(42)
def test_nothing_of_an_aborted_evaluation_is_handed_out(world: World) -> None:
    evaluation = world.evaluate(INPUT, OTHER)
    found = candidates(world)
    running = world.assign(INPUT)
    world.conn.execute(
        "select scheduler.reject(%s, 'w1', 'not now')", [world.assignments[world.job(OTHER)]]
    )
    world.message("select graph.abort_evaluation(%s, 'enough')", evaluation)
    assert claim(world, found) == []
    assert assign(world) == []
    stops = world.rows("select * from scheduler.aborts('server-1')")
    assert [(row["worker"], row["assignment"]) for row in stops] == [("w1", running)]


def test_a_build_that_only_aborted_evaluations_name_is_not_claimed(world: World) -> None:
    evaluation = world.evaluate(OTHER)
    found = candidates(world)
    with world.conn.transaction(force_rollback=True):
        world.conn.execute(
            "update gradient.evaluation set status = 'Aborted', finished_at = now() where id = %s",
            [evaluation],
        )
        assert claim(world, found) == []
    assert claim(world, found) == [world.id(OTHER)]


def test_the_claim_names_an_evaluation_in_flight_of_the_project_it_is_for(world: World) -> None:
    first = world.evaluate(OTHER)
    second = world.evaluate(OTHER)
    world.message("select graph.abort_evaluation(%s, 'enough')", first)
    assignment = world.assign(OTHER)
    row = world.rows("select * from gradient.dispatched_job where id = %s", assignment)[0]
    assert row["evaluation"] == second
    [attempt] = world.attempts(OTHER)
    job = world.rows("select * from gradient.build_job where id = %s", attempt["build_job"])[0]
    assert (job["evaluation"], job["derivation_build"]) == (second, world.id(OTHER))
    assert attempt["dispatched_job"] == assignment
    assert attempt["outcome"] == "Running"
    assert world.build(OTHER)["dispatched_at"] == row["dispatched_at"]


# Who may run it -------------------------------------------------------------------------------


@pytest.mark.scenario(41)
@pytest.mark.parametrize(
    ("architecture", "features", "runs"),
    [
        ("x86_64-linux", (), True),
        ("x86_64-linux", ("kvm",), True),
        ("x86_64-linux", ("kvm", "big-parallel"), False),
        ("aarch64-linux", (), False),
        ("builtin", (), True),
        ("builtin", ("big-parallel",), True),
    ],
)
def test_a_build_goes_only_to_a_worker_with_its_system_and_features(
    world: World, architecture: str, features: tuple[str, ...], runs: bool
) -> None:
    special = derivation("special", architecture=architecture, features=features)
    world.worker("w1", features=["kvm"])
    world.evaluate(special)
    assert jobs_of(assign(world)) == ([world.job(special)] if runs else [])


@pytest.mark.scenario(31)
def test_a_substitution_runs_on_any_worker(world: World) -> None:
    foreign = derivation("foreign", architecture="aarch64-linux", features=("kvm",))
    world.evaluate(foreign)
    assert assign(world) == []
    upstream_hit(world, foreign)
    assert jobs_of(assign(world)) == [world.job(foreign)]


@pytest.mark.scenario(41)
@pytest.mark.parametrize("lacking", ["can_fetch", "can_eval"])
def test_an_evaluation_goes_only_to_a_worker_with_fetch_and_eval(
    world: World, lacking: str
) -> None:
    world.worker()
    evaluation = world.evaluation()
    world.conn.execute(f"update gradient.worker_connection set {lacking} = false")
    assert assign(world, kind="evaluation") == []
    world.conn.execute(f"update gradient.worker_connection set {lacking} = true")
    assert jobs_of(assign(world, kind="evaluation")) == [f"eval:{evaluation}"]


@pytest.mark.scenario(41)
def test_a_worker_that_may_not_build_is_given_no_build(world: World) -> None:
    world.evaluate(OTHER)
    world.conn.execute("update gradient.worker_connection set can_build = false")
    assert assign(world) == []


@pytest.mark.parametrize(
    "gone",
    [
        "update gradient.worker_connection set draining = true",
        "update gradient.worker_connection set disconnected_at = now()",
        "update gradient.worker_connection set projects = '{}'",
        "update gradient.server_instance set draining = true",
        "delete from gradient.server_instance",
        "update gradient.project_cache set mode = 'ReadOnly'",
        "update gradient.cache set active = false",
        "delete from gradient.project_cache",
    ],
)
def test_nothing_is_handed_out_where_nothing_may_be(world: World, gone: Any) -> None:
    world.evaluate(OTHER)
    world.evaluation()
    world.conn.execute(gone)
    assert assign(world) == []
    assert assign(world, kind="evaluation") == []
    assert world.rows("select * from scheduler.offers('w1')") == []


def test_a_connection_that_was_replaced_is_given_nothing(world: World) -> None:
    world.evaluate(OTHER)
    old = connection(world)
    projects = world.value("select projects from gradient.worker_connection")
    new = world.value(
        "select scheduler.worker_connected('w1', 'server-1', %s, true, true, true, '1')", projects
    )
    assert new != old
    ask = "select scheduler.assign('w1', %s, 'build', 1)"
    assert world.rows(ask, old) == []
    assert len(world.rows(ask, new)) == 1


def test_a_worker_is_given_only_jobs_of_the_projects_it_serves(world: World) -> None:
    world.evaluate(OTHER)
    second = world.project("second", cache="main")
    world.worker("w2")
    world.conn.execute(
        "update gradient.worker_connection set projects = %s where worker_id = 'w2'", [[second]]
    )
    assert assign(world, "w2") == []
    world.evaluate(OTHER, task=world.task(second), worker="w1")
    world.conn.execute(
        "update gradient.worker_connection set projects = %s where worker_id = 'w2'", [[second]]
    )
    [job] = assign(world, "w2")
    row = world.rows("select project from gradient.dispatched_job where id = %s", job["assignment"])
    assert row == [{"project": second}]


def test_an_unknown_kind_of_job_is_refused(world: World) -> None:
    world.worker()
    with refused("GR005", "cleaning"):
        world.message("select scheduler.assign('w1', %s, 'cleaning', 1)", connection(world))


# In what order --------------------------------------------------------------------------------


def test_prioritized_builds_go_first_then_the_oldest(world: World) -> None:
    builds = [derivation(f"b{number}", architecture=a) for number, a in enumerate(
        ["x86_64-linux", "builtin", "x86_64-linux", "builtin"])]  # fmt: skip
    world.evaluate(*builds)
    for age, build in enumerate(builds):
        world.conn.execute(
            "update gradient.ready_build set queued_at = now() - %s * interval '1 minute'"
            " where derivation_build = %s",
            [age, world.id(build)],
        )
    world.conn.execute(
        "update gradient.ready_build set priority = 1 where derivation_build = %s",
        [world.id(builds[1])],
    )
    given = [jobs_of(assign(world, slots=1)) for _ in range(4)]
    assert given == [[world.job(builds[place])] for place in (1, 3, 2, 0)]


def test_no_more_is_handed_out_than_there_are_slots(world: World) -> None:
    world.evaluate(*[derivation(f"b{number}") for number in range(5)])
    assert len(assign(world, slots=2)) == 2
    assert assign(world, slots=0) == []
    assert len(assign(world, slots=2**40)) == 3


def test_the_window_does_not_limit_the_slots(world: World) -> None:
    world.conn.execute("update gradient.setting set value = '1' where name = 'assign.window'")
    world.evaluate(*[derivation(f"b{number}") for number in range(5)])
    assert len(assign(world, slots=5)) == 5


def test_the_oldest_evaluations_go_first_and_a_prioritized_one_before_them(world: World) -> None:
    world.worker()
    first, second, third = (world.evaluation() for _ in range(3))
    world.conn.execute("update gradient.evaluation set prioritized = true where id = %s", [third])
    given = [jobs_of(assign(world, kind="evaluation", slots=1)) for _ in range(3)]
    assert given == [[f"eval:{number}"] for number in (third, first, second)]


def test_one_pass_looks_at_no_more_evaluations_than_the_setting_says(world: World) -> None:
    world.worker()
    world.conn.execute("update gradient.setting set value = '2' where name = 'eval.per_pass'")
    for _ in range(5):
        world.evaluation()
    assert len(world.rows("select * from scheduler.evaluation_candidates('w1', 2)")) == 2
    assert len(assign(world, kind="evaluation", slots=1)) == 1


def test_the_cost_of_an_assignment_does_not_grow_with_the_queue(world: World) -> None:
    world.evaluate(OTHER)
    world.conn.execute(
        "with made as ("
        "  insert into gradient.derivation (hash, name, architecture, created_at)"
        "  select lpad(n::text, 32, '0'), 'filler', 'x86_64-linux', now()"
        "  from generate_series(1, 20000) n returning id),"
        " builds as ("
        "  insert into gradient.derivation_build (derivation, status, created_at, updated_at)"
        "  select id, 'Created', now(), now() from made returning derivation)"
        " insert into gradient.ready_build"
        "   (derivation_build, project, class, queued_at, offer_generation)"
        " select b.derivation, r.project, r.class, now() + interval '1 day', 1"
        " from builds b cross join gradient.ready_build r"
    )
    world.conn.execute("analyze gradient.ready_build")

    def read(table: str) -> tuple[int, int]:
        [row] = world.rows(
            "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables"
            " where schemaname = 'gradient' and relname = %s",
            table,
        )
        return row["seq_tup_read"], row["idx_tup_fetch"]

    number = connection(world)
    for call, setting in (
        (f"select * from scheduler.assign('w1', {number}, 'build', 1)", "assign.window"),
        ("select * from scheduler.offers('w1')", "offers.limit"),
    ):
        window = world.value("select gradient.setting_int(%s)", setting)
        before = {table: read(table) for table in ("ready_build", "derivation")}
        assert world.rows(call)
        for table, (scanned, fetched) in before.items():
            assert read(table)[0] == scanned, (call, table)
            assert read(table)[1] - fetched <= 4 * window, (call, table)
    world.conn.rollback()


# What is handed out ---------------------------------------------------------------------------


def test_a_build_job_is_what_the_wire_says(world: World) -> None:
    drv = derivation("tool", outputs=("out", "dev"), timeout_secs=0)
    world.evaluate(drv)
    [raw] = assign(world)
    job = msgspec.convert(raw, AssignJob)
    assert job.job == world.job(drv)
    assert job.cache_path == f"/jobs/{job.assignment}/cache"
    spec = job.spec
    assert isinstance(spec, BuildJob)
    assert spec.build == world.id(drv)
    assert spec.drv == drv.drv
    assert spec.build_kind == "build"
    assert {output.name: output.path for output in spec.outputs} == drv.outputs
    # The derivation's own limit, even no limit, stands before the setting.
    assert spec.timeout_secs == 0
    assert spec.max_silent_secs == 3600
    assert spec.log_limit == 64 * 1024 * 1024


def test_a_builtin_fetch_is_a_download_and_another_builtin_is_a_build(world: World) -> None:
    fetch = derivation("fetch", architecture="builtin", is_fixed_output=True)
    env = derivation("env", architecture="builtin")
    world.evaluate(fetch, env)
    kinds = {job["spec"]["drv"]: job["spec"]["build_kind"] for job in assign(world)}
    assert kinds == {fetch.drv: "download", env.drv: "build"}


def test_only_the_hash_of_a_token_is_stored_and_no_two_are_alike(world: World) -> None:
    world.evaluate(INPUT, OTHER)
    jobs = assign(world)
    assert len({job["token"] for job in jobs}) == 2
    for job in jobs:
        assert len(job["token"]) == 64
        stored = world.value(
            "select upload_token_hash from gradient.dispatched_job where id = %s", job["assignment"]
        )
        assert stored == hashlib.sha256(job["token"].encode()).digest()


def test_an_evaluation_job_is_what_the_wire_says(world: World) -> None:
    world.worker()
    evaluation = world.evaluation()
    world.conn.execute(
        "update gradient.evaluation set revision = 'main', wildcard = 'checks.*' where id = %s",
        [evaluation],
    )
    world.conn.execute(
        "insert into gradient.evaluation_flake_input_override values (%s, 'nixpkgs', null),"
        " (%s, 'lib', 'github:x/y')",
        [evaluation, evaluation],
    )
    [raw] = assign(world, kind="evaluation")
    spec = msgspec.convert(raw, AssignJob).spec
    assert isinstance(spec, FlakeJob)
    assert spec.evaluation == evaluation
    assert spec.steps == ["fetch_flake", "evaluate_flake", "evaluate_derivations"]
    assert spec.source == RepositorySource(
        url="https://example.org/repository.git", revision="main"
    )
    assert spec.wildcard == "checks.*"
    assert spec.walk_mode == "pruned"
    assert spec.input_overrides == {"nixpkgs": None, "lib": "github:x/y"}
    assert (spec.timeout_secs, spec.memory_mb) == (3600, 8192)
    assert not spec.allow_import_from_derivation
    assert world.evaluation_status(evaluation) == "Queued"


def test_an_evaluation_that_is_handed_out_again_reads_the_commit_it_read_before(
    world: World,
) -> None:
    evaluation = world.start_walk()
    commit = world.value(
        "select c.hash from gradient.evaluation e join gradient.commit c on c.id = e.commit"
        " where e.id = %s",
        evaluation,
    )
    world.message(
        "select graph.return_assignments(%s, 'worker_lost')",
        [world.assignments[f"eval:{evaluation}"]],
    )
    [job] = assign(world, kind="evaluation")
    assert job["spec"]["source"]["revision"] == commit


def test_an_uploaded_source_is_given_as_a_path_of_the_cache(world: World) -> None:
    world.worker()
    evaluation = world.evaluation()
    path = "/nix/store/0c0dr3v8zllqmrmfzs9wlnv8x9jmsrzn-source"
    world.conn.execute(
        "update gradient.evaluation set repository = %s where id = %s", [path, evaluation]
    )
    [raw] = assign(world, kind="evaluation")
    spec = msgspec.convert(raw, AssignJob).spec
    assert isinstance(spec, FlakeJob)
    assert spec.source == CachedSource(path=path)


def test_a_queued_evaluation_that_a_worker_has_is_not_handed_out_again(world: World) -> None:
    world.worker()
    world.worker("w2")
    evaluation = world.evaluation()
    assert len(assign(world, kind="evaluation")) == 1
    assert world.evaluation_status(evaluation) == "Queued"
    assert assign(world, "w2", kind="evaluation") == []


# Beside the graph's writers -------------------------------------------------------------------


def test_a_build_is_not_ready_again_because_a_second_project_names_it_while_it_is_claimed(
    committed: World, clean_db: Database
) -> None:
    committed.evaluate(OTHER)
    second = committed.task(committed.project("second", cache="main"))
    evaluation = committed.start_walk(committed.evaluation(second))
    committed.upload(evaluation, OTHER)
    with TwoSessions(clean_db) as sessions:
        ask = "select scheduler.assign('w1', %s, 'build', 1)"
        assert len(sessions.a.execute(ask, [connection(committed)]).fetchall()) == 1
        record = sessions.blocks(
            sessions.b,
            "select graph.record(jsonb_build_array(jsonb_build_object('evaluation', %s::bigint,"
            " 'derivations', jsonb_build_array(%s::jsonb), 'entry_points', '[]'::jsonb,"
            " 'messages', '[]'::jsonb)))",
            [evaluation, msgspec.json.encode(OTHER.wire()).decode()],
        )
        sessions.a.commit()
        record.result(timeout=10)
        sessions.b.commit()
    committed.check()
    assert committed.ready() == set()


def test_servers_are_woken_when_a_writer_kept_a_build_from_a_worker_that_asked(
    committed: World, clean_db: Database
) -> None:
    committed.evaluate(OTHER)
    ask = "select scheduler.assign('w1', %s, 'build', 1)"
    with (
        TwoSessions(clean_db) as sessions,
        psycopg.connect(clean_db.dsn, autocommit=True) as server,
    ):
        server.execute("listen gradient")
        sessions.a.execute("select graph.sync_ready(%s)", [[committed.id(OTHER)]])
        assert sessions.b.execute(ask, [connection(committed)]).fetchall() == []
        sessions.b.rollback()
        sessions.a.commit()
        topics = {note.payload for note in server.notifies(timeout=10, stop_after=1)}
        assert topics == {"builds"}
        assert len(sessions.b.execute(ask, [connection(committed)]).fetchall()) == 1
        sessions.b.commit()
