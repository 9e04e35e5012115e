"""The deployer: the folder is the truth, and nothing is touched that did not change."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from gradient.db.catalog import objects
from gradient.db.deploy import DeployError, DeployReport, deploy, remove, upgrade
from gradient.db.script import script
from gradient.db.source import SourceError, sql_root
from gradient.db.verify import verify
from tests.support.database import Database
from tests.support.sql_folder import SqlFolder
from tests.support.waiting import wait_until

ADD = """-- Execute: server
create function graph.add(p_left int, p_right int) returns int
  language sql immutable as $$ select p_left + p_right $$;
comment on function graph.add(int, int) is 'Adds; says so; twice.';
"""


def call(database: Database, query: str) -> object:
    row = database.connect().execute(query.encode()).fetchone()
    return row[0] if row else None


def test_an_unchanged_folder_deploys_nothing(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    assert upgrade(empty_db.dsn, folder.root).created == ["graph.add"]
    again = upgrade(empty_db.dsn, folder.root)
    assert (again.deployed, again.created, again.dropped) == (False, [], [])


def test_comments_are_deployed(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    comment = "select obj_description('graph.add(int, int)'::regprocedure, 'pg_proc')"
    assert call(empty_db, comment) == "Adds; says so; twice."


def test_a_changed_body_is_replaced_in_place(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    before = call(empty_db, "select 'graph.add(int, int)'::regprocedure::oid")
    folder.function("graph/add.sql", ADD.replace("p_left + p_right", "p_right + p_left + 1"))
    report = upgrade(empty_db.dsn, folder.root)
    assert (report.created, report.dropped) == (["graph.add"], [])
    assert call(empty_db, "select graph.add(1, 2)") == 4
    assert call(empty_db, "select 'graph.add(int, int)'::regprocedure::oid") == before


def test_a_changed_return_type_drops_and_creates(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    folder.function(
        "operator/sums.sql",
        "create view gradient.sums as select graph.add(n, 1) as s from gradient.thing;",
    )
    upgrade(empty_db.dsn, folder.root)
    folder.function(
        "graph/add.sql",
        ADD.replace("returns int", "returns bigint").replace("p_left +", "p_left::bigint +"),
    )
    upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select pg_typeof(graph.add(1, 2))::text") == "bigint"
    assert call(empty_db, "select count(*) from gradient.sums") == 0


def test_an_overload_that_the_file_no_longer_has_is_dropped(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    folder.function("graph/add.sql", ADD.replace("int", "bigint"))
    report = upgrade(empty_db.dsn, folder.root)
    assert report.dropped == ["graph.add(integer,integer)"]
    assert call(empty_db, "select count(*) from pg_proc where proname = 'add'") == 1


def test_what_the_folder_no_longer_has_is_dropped(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    folder.function("operator/all.sql", "create view gradient.everything as select 1 as one;")
    folder.function(
        "graph/stamp.sql",
        "create function graph.stamp() returns trigger language plpgsql as"
        " $$ begin return new; end $$;"
        "create trigger stamp before insert on gradient.thing"
        " for each row execute function graph.stamp();",
    )
    upgrade(empty_db.dsn, folder.root)
    for path in ("graph/add.sql", "operator/all.sql", "graph/stamp.sql"):
        folder.remove(path)
    assert set(upgrade(empty_db.dsn, folder.root).dropped) == {
        "graph.add(integer,integer)",
        "gradient.everything",
        "gradient.thing.stamp",
        "graph.stamp()",
    }
    assert call(empty_db, "select to_regproc('graph.add')") is None


def test_what_the_deployer_did_not_make_stays(empty_db: Database, folder: SqlFolder) -> None:
    upgrade(empty_db.dsn, folder.root)
    empty_db.connect().execute(
        "create function gradient.of_a_dba() returns int language sql as 'select 7'"
    )
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select gradient.of_a_dba()") == 7


def test_views_may_stand_in_any_order(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("operator/a.sql", "create view gradient.a as select n from gradient.z;")
    folder.function("operator/z.sql", "create view gradient.z as select n from gradient.thing;")
    upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select count(*) from gradient.a") == 0


def test_what_a_migration_drops_with_a_cascade_is_deployed_again(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("operator/z.sql", "create view gradient.z as select n from gradient.thing;")
    upgrade(empty_db.dsn, folder.root)
    folder.migration(
        "0002.wider",
        "drop view gradient.z cascade; alter table gradient.thing alter n type bigint;",
        "alter table gradient.thing alter n type int;",
    )
    assert upgrade(empty_db.dsn, folder.root).created == ["gradient.z"]
    assert call(empty_db, "select count(n) from gradient.z") == 0


def test_functions_with_parsed_bodies_may_stand_in_any_order_and_change(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function(
        "graph/a.sql",
        "create function graph.a() returns setof int language sql stable begin atomic"
        " select case when n > 0 then n end from graph.b(); select n from graph.b(); end;"
        "comment on function graph.a() is 'A.';",
    )
    inner = "create function graph.b() returns table (n int) language sql stable"
    folder.function("graph/b.sql", inner + " begin atomic select 1; end;")
    upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select graph.a()") == 1
    folder.function(
        "graph/b.sql",
        inner.replace("b()", "b(p_n int default 5)") + " begin atomic select p_n; end;",
    )
    upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select graph.a()") == 5
    comment = "select obj_description('graph.a()'::regprocedure, 'pg_proc')"
    assert call(empty_db, comment) == "A."


def test_a_view_may_change_its_columns(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("operator/a.sql", "create view gradient.a as select n from gradient.z;")
    folder.function("operator/z.sql", "create view gradient.z as select n from gradient.thing;")
    upgrade(empty_db.dsn, folder.root)
    folder.function("operator/z.sql", "create view gradient.z as select id, n from gradient.thing;")
    upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select count(id) from gradient.z, gradient.a") == 0


def test_a_view_and_a_trigger_are_not_touched_by_a_change_elsewhere(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)
    folder.function("operator/z.sql", "create view gradient.z as select n from gradient.thing;")
    stamp = (
        "create function graph.stamp() returns trigger language plpgsql as"
        " $$ begin return new; end $$;"
        "create trigger stamp before insert on gradient.thing"
        " for each row execute function graph.stamp();"
    )
    folder.function("graph/stamp.sql", stamp)
    upgrade(empty_db.dsn, folder.root)
    # The trigger's function changes, its own text does not.
    folder.function("graph/stamp.sql", stamp.replace("return new", "return null"))
    blocker = empty_db.connect(autocommit=False)
    blocker.execute("insert into gradient.thing values (1)")
    blocker.execute("select * from gradient.z")
    # Replacing view or trigger would wait for this transaction.
    assert upgrade(empty_db.dsn, folder.root).created == ["graph.stamp"]
    blocker.rollback()


def test_a_function_changed_by_hand_is_found_and_put_right(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    assert verify(empty_db.dsn, folder.root) == []
    empty_db.connect().execute(
        "create or replace function graph.add(p_left int, p_right int) returns int"
        " language sql immutable as 'select 42'"
    )
    (drift,) = verify(empty_db.dsn, folder.root)
    assert (drift.identity, drift.problem) == ("graph.add(integer,integer)", "changed by hand")
    assert not upgrade(empty_db.dsn, folder.root).deployed
    assert deploy(empty_db.dsn, folder.root, force=True).created == ["graph.add"]
    assert verify(empty_db.dsn, folder.root) == []
    assert call(empty_db, "select graph.add(1, 2)") == 3


def test_verify_names_what_is_missing_unknown_and_not_deployed(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)
    folder.function("operator/z.sql", "create view gradient.z as select n from gradient.thing;")
    upgrade(empty_db.dsn, folder.root)
    conn = empty_db.connect()
    conn.execute("drop view gradient.z")
    conn.execute("create function gradient.of_a_dba() returns int language sql as 'select 7'")
    folder.function("graph/add.sql", ADD + "-- newer\n")
    assert {(drift.identity, drift.problem) for drift in verify(empty_db.dsn, folder.root)} == {
        ("gradient.z", "missing from the database"),
        ("gradient.of_a_dba()", "not from the functions folder"),
        ("graph/add.sql", "not deployed in this version"),
    }


def test_a_failing_file_changes_nothing_and_is_named(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    folder.function("graph/add.sql", ADD.replace("p_left + p_right", "0"))
    folder.function(
        "graph/broken.sql",
        "create function graph.broken() returns int language sql as 'select no_such_column';",
    )
    with pytest.raises(DeployError, match=r"graph\.broken.*no_such_column"):
        upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select graph.add(1, 2)") == 3


def test_a_function_that_a_table_depends_on_is_not_replaced_with_a_cascade(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    empty_db.connect().execute("create index on gradient.thing (graph.add(n, 1))")
    folder.remove("graph/add.sql")
    with pytest.raises(DeployError, match="thing_add_idx depends on it"):
        upgrade(empty_db.dsn, folder.root)
    assert call(empty_db, "select graph.add(1, 2)") == 3


def test_a_name_without_its_schema_is_refused(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("operator/v.sql", "create view gradient.v as select * from thing;")
    with pytest.raises(DeployError, match='relation "thing" does not exist'):
        upgrade(empty_db.dsn, folder.root)


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("create function add() returns int language sql as 'select 1';", "schema-qualified"),
        ("create table gradient.t (id int);", "not allowed here"),
        ("-- Execute: everyone\ncreate view gradient.v as select 1;", "'everyone'"),
        ("create function public.f() returns int language sql as 'select 1';", "outside gradient"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name(
    empty_db: Database, folder: SqlFolder, text: str, complaint: str
) -> None:
    folder.function("graph/bad.sql", text)
    with pytest.raises(SourceError, match=rf"graph/bad\.sql: .*{complaint}"):
        upgrade(empty_db.dsn, folder.root)


def test_overloads_in_two_files_are_refused(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/add.sql", ADD)
    folder.function("graph/add_long.sql", ADD.replace("int", "bigint"))
    with pytest.raises(SourceError, match=r"graph\.add is declared in graph/add\.sql too"):
        upgrade(empty_db.dsn, folder.root)


def test_views_that_need_each_other_are_refused(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("operator/a.sql", "create view gradient.a as select * from gradient.b;")
    folder.function("operator/b.sql", "create view gradient.b as select * from gradient.a;")
    with pytest.raises(SourceError, match="need each other"):
        upgrade(empty_db.dsn, folder.root)


def test_the_printed_script_makes_what_the_deployer_makes(pg_server: str) -> None:
    def made(database: Database) -> set[tuple[str, str, str]]:
        conn = database.connect()
        conn.execute("set search_path = pg_catalog")
        return {(found.kind, found.identity, found.fingerprint) for found in objects(conn)}

    with Database.empty(pg_server) as printed, Database.empty(pg_server) as deployed:
        upgrade(deployed.dsn, sql_root())
        conn = printed.connect(autocommit=False)
        # The roles of the cluster are there already; another prefix makes them anew.
        conn.execute(script(sql_root(), role_prefix="printed").encode())
        conn.execute("set role printed_server")
        conn.execute("select * from gradient.deployment")
        conn.execute("reset role")
        conn.execute("set search_path = pg_catalog")
        assert {(f.kind, f.identity, f.fingerprint) for f in objects(conn)} == made(deployed)
        conn.rollback()


def test_a_deployment_steps_aside_for_a_busy_table_and_comes_back(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)
    upgrade(empty_db.dsn, folder.root)
    folder.function(
        "graph/stamp.sql",
        "create function graph.stamp() returns trigger language plpgsql as"
        " $$ begin return new; end $$;"
        "create trigger stamp before insert on gradient.thing"
        " for each row execute function graph.stamp();",
    )
    holder = empty_db.connect(autocommit=False)
    holder.execute("insert into gradient.thing values (1)")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(upgrade, empty_db.dsn, folder.root)
        # Longer than the deployer's lock timeout: its first attempt has been given up, and
        # whoever wants the table meanwhile gets it.
        started = time.monotonic()
        writer = empty_db.connect()
        while time.monotonic() - started < 2.5:
            writer.execute("set lock_timeout = '5s'")
            writer.execute("insert into gradient.thing values (2) on conflict do nothing")
            time.sleep(0.05)
        assert not running.done()
        holder.rollback()
        assert "graph.stamp" in running.result(timeout=60).created


def test_deployers_of_two_databases_of_one_cluster_do_not_disturb_each_other(
    pg_server: str, folder: SqlFolder
) -> None:
    folder.function("graph/add.sql", ADD)

    def run(database: Database) -> DeployReport:
        return upgrade(database.dsn, folder.root, role_prefix="twin")

    with (
        Database.empty(pg_server) as one,
        Database.empty(pg_server) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        assert all(report.deployed for report in pool.map(run, [one, two]))
        for database in (one, two):
            remove(database.dsn)
    with psycopg.connect(pg_server, autocommit=True) as conn:
        wait_until(lambda: _dropped_roles(conn, "twin"), what="dropping the roles")


def _dropped_roles(conn: psycopg.Connection[tuple[object, ...]], prefix: str) -> bool:
    for suffix in ("server", "operator", "reader", "owner"):
        conn.execute(f"drop role if exists {prefix}_{suffix}".encode())
    return True
