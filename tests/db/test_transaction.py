"""Transactions: budget, three kinds of failure, retries, and no empty success."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gradient.db.connect import connect, open_pool
from gradient.db.transaction import Failure, classify, transact
from gradient.errors import GradientError, StaleAssignmentError
from tests.support.database import Database

Connection = psycopg.AsyncConnection[Any]


def raising(state: str) -> bytes:
    return f"do $$ begin raise exception using errcode = '{state}'; end $$".encode()


@pytest.mark.parametrize(
    "state, kind",
    [
        ("40P01", Failure.CONFLICT),
        ("40001", Failure.CONFLICT),
        ("57P01", Failure.OUTAGE),
        ("57P03", Failure.OUTAGE),
        ("53300", Failure.OUTAGE),
        ("08006", Failure.OUTAGE),
        ("23505", Failure.CONTENT),
        ("57014", Failure.CONTENT),
        ("GR005", Failure.CONTENT),
    ],
)
async def test_the_state_decides_the_kind_of_failure(
    clean_db: Database, state: str, kind: Failure
) -> None:
    async with await connect(clean_db.dsn) as conn:
        with pytest.raises(psycopg.Error) as caught:
            await conn.execute(raising(state))
    assert classify(caught.value) is kind


async def test_a_lost_connection_is_an_outage(clean_db: Database) -> None:
    async with await connect(clean_db.dsn, audience=None) as conn:
        clean_db.connect().execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(psycopg.Error) as first:
            await conn.execute("select 1")
        with pytest.raises(psycopg.Error) as second:
            await conn.execute("select 1")
    assert (classify(first.value), classify(second.value)) == (Failure.OUTAGE, Failure.OUTAGE)


async def test_a_value_that_psycopg_refuses_is_the_callers_fault(clean_db: Database) -> None:
    async with await connect(clean_db.dsn) as conn:
        with pytest.raises(psycopg.Error) as caught:
            await conn.execute("select %s", ["nul\0byte"])
    assert classify(caught.value) is Failure.CONTENT


@pytest.mark.parametrize("conflicts, succeeds", [(0, True), (2, True), (3, False)])
async def test_a_conflict_is_tried_three_times(
    clean_db: Database, conflicts: int, succeeds: bool
) -> None:
    calls = 0

    async def work(conn: Connection) -> int:
        nonlocal calls
        calls += 1
        if calls <= conflicts:
            await conn.execute(raising("40P01"))
        return calls

    async with await connect(clean_db.dsn) as conn:
        if succeeds:
            assert await transact(conn, work) == conflicts + 1
        else:
            with pytest.raises(psycopg.errors.DeadlockDetected):
                await transact(conn, work)
    assert calls == min(conflicts + 1, 3)


async def test_content_is_tried_once_and_undone(clean_db: Database) -> None:
    calls = 0

    async def work(conn: Connection) -> None:
        nonlocal calls
        calls += 1
        await conn.execute("create table public.half (id int)")
        await conn.execute(raising("23505"))

    async with await connect(clean_db.dsn, audience=None) as conn:
        with pytest.raises(psycopg.errors.UniqueViolation):
            await transact(conn, work)
    assert calls == 1
    found = clean_db.connect().execute("select to_regclass('public.half')").fetchall()
    assert found == [(None,)]


async def test_a_refusal_arrives_as_its_class_with_detail_and_hint(clean_db: Database) -> None:
    async def work(conn: Connection) -> None:
        await conn.execute(
            "do $$ begin raise exception using errcode = 'GR003',"
            " message = 'assignment 7 is closed', detail = 'outcome Abandoned',"
            " hint = 'select * from gradient.queue'; end $$"
        )

    async with await connect(clean_db.dsn) as conn:
        with pytest.raises(StaleAssignmentError) as caught:
            await transact(conn, work)
    refusal = caught.value
    assert (refusal.code, refusal.message) == ("GR003", "assignment 7 is closed")
    assert (refusal.detail, refusal.hint) == ("outcome Abandoned", "select * from gradient.queue")


async def test_a_code_of_ours_without_a_class_is_still_a_refusal(clean_db: Database) -> None:
    async def work(conn: Connection) -> None:
        await conn.execute(raising("GR099"))

    async with await connect(clean_db.dsn) as conn:
        with pytest.raises(GradientError):
            await transact(conn, work)


async def test_the_budget_ends_a_statement(clean_db: Database) -> None:
    async def work(conn: Connection) -> None:
        await conn.execute("select pg_sleep(60)")

    async with await connect(clean_db.dsn) as conn:
        with pytest.raises(psycopg.errors.QueryCanceled):
            await transact(conn, work, budget=0.1)
        row = await (await conn.execute("show statement_timeout")).fetchone()
    assert row is not None
    assert row[0] != "100ms"


@pytest.mark.scenario(53)
async def test_an_error_that_was_only_logged_is_no_success(clean_db: Database) -> None:
    async def work(conn: Connection) -> str:
        await conn.execute("create table public.lost (id int)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            await conn.execute(raising("23505"))
        return "looks fine"

    async with await connect(clean_db.dsn, audience=None) as conn:
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await transact(conn, work)


async def test_a_server_connection_acts_in_the_servers_role(clean_db: Database) -> None:
    async with await connect(clean_db.dsn) as conn:
        row = await (await conn.execute("select current_user")).fetchone()
        assert row == ("gradient_server",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await conn.execute("delete from gradient.deployment")


async def test_pooled_connections_have_role_and_limit(clean_db: Database) -> None:
    async with (
        open_pool(clean_db.dsn, audience="reader", statement_timeout=7) as pool,
        pool.connection() as conn,
    ):
        row = await (
            await conn.execute("select current_user, current_setting('statement_timeout')")
        ).fetchone()
    assert row == ("gradient_reader", "7s")


async def test_a_pool_replaces_a_connection_that_died(clean_db: Database) -> None:
    async with open_pool(clean_db.dsn, min_size=1, max_size=1) as pool:
        async with pool.connection() as conn:
            pid = conn.info.backend_pid
        clean_db.connect().execute("select pg_terminate_backend(%s)", [pid])
        async with pool.connection() as conn:
            row = await (await conn.execute("select 1")).fetchone()
    assert row == (1,)
