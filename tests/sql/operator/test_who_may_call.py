"""What each role may call and read: the grants that the headers of the files ask for."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.database import Database

HIDDEN = ["cache", "cache_token", "project", "team_worker", "worker_registration"]
VIEWS = [
    "assignment_overview",
    "build_overview",
    "cache_overview",
    "evaluation_overview",
    "project_overview",
    "queue",
    "server_overview",
    "task_overview",
    "worker_overview",
    "worker_registration_overview",
]


@pytest.mark.parametrize("role", ["gradient_server", "gradient_operator", "gradient_reader"])
def test_every_role_reads_every_view(clean_db: Database, role: str) -> None:
    conn = clean_db.connect(role=role)
    for view in VIEWS:
        assert conn.execute(f"select * from gradient.{view}").fetchall() == []


@pytest.mark.parametrize("role", ["gradient_operator", "gradient_reader"])
@pytest.mark.parametrize("table", HIDDEN)
def test_people_do_not_read_tables_with_secrets(clean_db: Database, role: str, table: str) -> None:
    conn = clean_db.connect(role=role)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(f"select * from gradient.{table}")


def test_an_operator_makes_what_a_reader_may_not(clean_db: Database) -> None:
    call = "select gradient.create_project('main')"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        clean_db.connect(role="gradient_reader").execute(call)
    clean_db.connect(role="gradient_operator").execute(call)


def test_only_a_server_hands_out_jobs(clean_db: Database) -> None:
    call = "select scheduler.assign('w1', 1, 'build', 1)"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        clean_db.connect(role="gradient_operator").execute(call)
    assert clean_db.connect(role="gradient_server").execute(call).fetchall() == []


@pytest.mark.parametrize(
    "internal",
    [
        "scheduler.claim_builds('w1', '{}', '{}', '{}', 1)",
        "scheduler.new_token()",
        "scheduler.build_candidates('w1', 1)",
        "gradient.lock_worker_id('w1')",
    ],
)
def test_nobody_calls_what_is_internal(clean_db: Database, internal: str) -> None:
    for role in ("gradient_server", "gradient_operator", "gradient_reader"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            clean_db.connect(role=role).execute(f"select * from {internal}")


def test_a_server_runs_a_whole_session_of_a_worker(clean_db: Database) -> None:
    conn = clean_db.connect(role="gradient_server")
    conn.execute("select scheduler.instance_started('s1', '1', 'http://localhost')")
    conn.execute("select scheduler.recover_interrupted_work('s1')")
    conn.execute("select gradient.create_project('main')")
    conn.execute(
        "select gradient.create_cache('main', 'main-1', %s, 'sealed')",
        ["main-1:" + "A" * 43 + "="],
    )
    conn.execute("select gradient.subscribe_cache('main', 'main')")
    conn.execute("select gradient.register_worker('main', 'w1', sha256('token'))")
    conn.execute("select gradient.create_task('main', 'site', '/srv/site')")
    row = conn.execute("select projects from scheduler.authenticate_worker('w1', '{token}')")
    projects = row.fetchall()[0][0]
    [(number,)] = conn.execute(
        "select scheduler.worker_connected('w1', 's1', %s, true, true, true, '1')", [projects]
    ).fetchall()
    conn.execute(
        'select scheduler.worker_capabilities(\'w1\', %s, \'{"architectures": ["x86_64-linux"],'
        ' "system_features": [], "build_slots": 1, "eval_slots": 1}\')',
        [number],
    )
    conn.execute("select scheduler.resume('w1', %s, '{}')", [number])
    conn.execute("select gradient.start_evaluation('main', 'site')")
    assert len(conn.execute("select * from scheduler.offers('w1')").fetchall()) == 1
    jobs = conn.execute("select scheduler.assign('w1', %s, 'evaluation', 1)", [number]).fetchall()
    assert [job["job"] for (job,) in jobs] == ["eval:1"]
    conn.execute("select scheduler.reject(%s, 'w1', 'no')", [jobs[0][0]["assignment"]])
    conn.execute("select scheduler.offer_scores('w1', '[]')")
    conn.execute('select scheduler.workers_seen(\'[{"worker": "w1"}]\')')
    conn.execute("select scheduler.instance_seen('s1')")
    conn.execute("select scheduler.build_pass('s1')")
    conn.execute("select * from scheduler.aborts('s1')")
    conn.execute("select * from scheduler.instances_presumed_dead()")
    conn.execute("select scheduler.pass_finished('s1', 'build', 1.5, null, 5.0)")
    conn.execute("select scheduler.worker_draining('w1', %s)", [number])
    conn.execute("select scheduler.worker_disconnected('w1', %s)", [number])
    conn.execute("select scheduler.instance_draining('s1')")
