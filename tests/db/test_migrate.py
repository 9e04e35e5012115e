"""Migrations: once, in order, whole or not at all, and back again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from gradient.db.deploy import DeployReport, remove, upgrade
from gradient.db.lock import deploy_lock
from gradient.db.migrate import MigrationError, migrate, rollback_all, status
from gradient.db.source import sql_root
from tests.support.database import Database
from tests.support.sql_folder import SqlFolder
from tests.support.waiting import wait_until


def tables(database: Database) -> set[str]:
    query = "select c.oid::regclass::text from pg_class c where c.relkind = 'r' and %s"
    where = "c.relnamespace::regnamespace::text in ('gradient', 'graph', 'scheduler')"
    return {row[0] for row in database.connect().execute(sql.SQL(query % where))}


def test_a_migration_runs_once(empty_db: Database, folder: SqlFolder) -> None:
    assert migrate(empty_db.dsn, folder.root) == ["0000.deployment", "0001.thing"]
    assert migrate(empty_db.dsn, folder.root) == []


def test_two_deployers_at_once_migrate_once(empty_db: Database) -> None:
    def run(_: int) -> DeployReport:
        return upgrade(empty_db.dsn, sql_root())

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(run, range(4)))
    assert len([report for report in reports if report.migrations]) == 1
    assert len([report for report in reports if report.deployed]) == 1


def test_a_second_deployer_waits_for_the_first(empty_db: Database, folder: SqlFolder) -> None:
    with ThreadPoolExecutor(1) as pool:
        with deploy_lock(empty_db.dsn):
            second = pool.submit(migrate, empty_db.dsn, folder.root)
            observer = empty_db.connect()
            wait_until(
                lambda: observer.execute(
                    "select 1 from pg_stat_activity"
                    " where wait_event_type = 'Lock' and query like '%%pg_advisory_lock%%'"
                    " and datname = current_database()"
                ).fetchone(),
                what="the second deployer waiting",
            )
            assert not second.done()
        assert second.result(timeout=20) == ["0000.deployment", "0001.thing"]


def test_every_migration_goes_up_down_and_up_again(empty_db: Database) -> None:
    root = sql_root()
    first = upgrade(empty_db.dsn, root)
    before = tables(empty_db)
    remove(empty_db.dsn)
    assert rollback_all(empty_db.dsn, root) == list(reversed(first.migrations))
    left = empty_db.connect().execute(
        "select n.nspname, t.typname from pg_type t join pg_namespace n on n.oid = t.typnamespace"
        " where n.nspname in ('gradient', 'graph', 'scheduler')"
    )
    assert left.fetchall() == []
    assert upgrade(empty_db.dsn, root).migrations == first.migrations
    assert tables(empty_db) == before


def test_a_failing_migration_leaves_nothing_behind(empty_db: Database, folder: SqlFolder) -> None:
    folder.migration("0002.broken", "create table gradient.half (id int); select 1/0;", "select 1;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_db.dsn, folder.root)
    assert "gradient.half" not in tables(empty_db)
    assert [step.applied for step in status(empty_db.dsn, folder.root)] == [True, True, False]
    folder.migration("0002.broken", "create table gradient.half (id int);", "select 1;")
    assert migrate(empty_db.dsn, folder.root) == ["0002.broken"]


def test_a_migrator_killed_in_the_middle_is_simply_run_again(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.migration(
        "0002.slow",
        "create table gradient.slow (id int); select pg_sleep(600);",
        "drop table gradient.slow;",
    )
    script = (
        "import sys; from pathlib import Path; from gradient.db.migrate import migrate;"
        "migrate(sys.argv[1], Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, empty_db.dsn, str(folder.root)],
        cwd=Path(__file__).parents[2],
    )
    observer = empty_db.connect()
    asleep = "select pid from pg_stat_activity where wait_event = 'PgSleep' and datname = %s"
    found = wait_until(lambda: observer.execute(asleep, [empty_db.name]).fetchone(), 30, "sleep")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    observer.execute("select pg_terminate_backend(%s)", found)
    folder.migration(
        "0002.slow", "create table gradient.slow (id int);", "drop table gradient.slow;"
    )
    assert migrate(empty_db.dsn, folder.root) == ["0002.slow"]


def test_the_lock_row_of_a_dead_process_is_no_obstacle(
    empty_db: Database, folder: SqlFolder
) -> None:
    conn = empty_db.connect()
    conn.execute("create schema gradient_migration")
    conn.execute(
        "create table gradient_migration.yoyo_lock"
        " (locked int default 1 primary key, ctime timestamp, pid int not null)"
    )
    conn.execute("insert into gradient_migration.yoyo_lock values (1, '2026-01-01', 999999)")
    assert migrate(empty_db.dsn, folder.root) == ["0000.deployment", "0001.thing"]


def test_an_older_version_leaves_a_newer_database_alone(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.migration("0002.newer", "create table gradient.newer (id int);", "select 1;")
    upgrade(empty_db.dsn, folder.root)
    for half in ("0002.newer.sql", "0002.newer.rollback.sql"):
        (folder.root / "migrations" / half).unlink()
    with pytest.raises(MigrationError, match=r"does not know: 0002\.newer"):
        upgrade(empty_db.dsn, folder.root)


def test_a_migration_is_marked_in_the_transaction_that_runs_it(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.migration(
        "0002.look",
        "create table gradient.look as"
        " select migration_id from gradient_migration._yoyo_migration"
        " where migration_id = '0002.look';",
        "drop table gradient.look;",
    )
    migrate(empty_db.dsn, folder.root)
    assert empty_db.connect().execute("select * from gradient.look").fetchall() == [("0002.look",)]


@pytest.mark.parametrize(
    "missing, complaint",
    [
        ("0001.thing.rollback.sql", "0001.thing.rollback.sql is missing"),
        ("0001.thing.sql", "0001.thing.sql is missing"),
    ],
)
def test_a_migration_without_its_other_half_is_refused(
    empty_db: Database, folder: SqlFolder, missing: str, complaint: str
) -> None:
    (folder.root / "migrations" / missing).unlink()
    with pytest.raises(MigrationError, match=complaint):
        migrate(empty_db.dsn, folder.root)


def test_a_password_with_special_characters_works(empty_db: Database, folder: SqlFolder) -> None:
    password = "p@ss:/w%rd #1'"
    admin = empty_db.connect()
    admin.execute(
        sql.SQL("create role {} superuser login password {}").format(
            sql.Identifier("odd user@home"), sql.Literal(password)
        )
    )
    try:
        dsn = psycopg.conninfo.make_conninfo(empty_db.dsn, user="odd user@home", password=password)
        assert migrate(dsn, folder.root) == ["0000.deployment", "0001.thing"]
    finally:
        admin.execute('reassign owned by "odd user@home" to current_user')
        admin.execute('drop role "odd user@home"')
