"""The fixtures themselves: what is isolated from what."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.database import Connection, Database
from tests.support.sessions import TwoSessions
from tests.support.waiting import wait_until


def test_the_rollback_connection_sees_the_deployed_schema(db: Connection) -> None:
    row = db.execute("select count(*) from gradient.deployed_object where kind = 'file'").fetchone()
    assert row is not None


@pytest.mark.parametrize("round_", [1, 2])
def test_what_a_rollback_test_writes_is_gone_for_the_next(db: Connection, round_: int) -> None:
    seen = db.execute("select to_regclass('gradient.of_this_test')").fetchone()
    db.execute("create table gradient.of_this_test (id int)")
    assert seen == (None,)


def test_a_clone_keeps_what_one_connection_committed(clean_db: Database) -> None:
    clean_db.connect().execute("create table public.kept (id int)")
    row = clean_db.connect().execute("select to_regclass('public.kept')::text").fetchone()
    assert row == ("kept",)


def test_a_second_session_waits_for_the_first(two_sessions: TwoSessions) -> None:
    two_sessions.a.execute("select pg_advisory_xact_lock(1, 1)")
    waiting = two_sessions.blocks(two_sessions.b, "select pg_advisory_xact_lock(1, 1)")
    assert not waiting.done()
    two_sessions.a.commit()
    assert waiting.result(timeout=10)


def test_the_server_runs_with_the_settings_of_the_tests(db: Connection) -> None:
    row = db.execute(
        "select current_setting('max_locks_per_transaction')::int >= 1024, current_setting('jit')"
    ).fetchone()
    assert row == (True, "off")


def test_waiting_ends_at_its_deadline() -> None:
    with pytest.raises(AssertionError, match="rain did not come about"):
        wait_until(lambda: False, timeout=0.05, what="rain")


def test_a_dropped_clone_refuses_connections(pg_server: str, template_db: str) -> None:
    with Database.clone(pg_server, template_db) as database:
        database.connect()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(database.dsn)
