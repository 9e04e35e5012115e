"""Rules on what is deployed: comments, pinned paths, and PL/pgSQL that holds together."""

from __future__ import annotations

import pytest

from gradient.db.catalog import tables_depending
from gradient.db.source import Kind
from tests.support.database import Connection, Database

SCHEMAS = ["gradient", "graph", "scheduler"]


def listed(conn: Connection, query: bytes) -> list[str]:
    """The rows of a query over our schemas, as lines."""
    return [" ".join(map(str, row)) for row in conn.execute(query, {"schemas": SCHEMAS})]


def test_every_table_view_and_function_has_a_comment(db: Connection) -> None:
    assert (
        listed(
            db,
            b"select c.oid::regclass::text from pg_class c"
            b" where c.relnamespace::regnamespace::text = any(%(schemas)s)"
            b" and c.relkind in ('r', 'p', 'v', 'm')"
            b" and coalesce(obj_description(c.oid, 'pg_class'), '') = ''"
            b" union all select p.oid::regprocedure::text from pg_proc p"
            b" where p.pronamespace::regnamespace::text = any(%(schemas)s)"
            b" and coalesce(obj_description(p.oid, 'pg_proc'), '') = ''",
        )
        == []
    )


def test_every_function_with_the_owners_rights_pins_its_search_path(db: Connection) -> None:
    assert (
        listed(
            db,
            b"select p.oid::regprocedure from pg_proc p"
            b" where p.pronamespace::regnamespace::text = any(%(schemas)s) and p.prosecdef"
            b" and not exists (select from unnest(p.proconfig) c where c like 'search_path=%%')",
        )
        == []
    )


def test_every_writing_entry_function_has_the_owners_rights(db: Connection) -> None:
    """A VOLATILE function that a role may call would otherwise fail at its first write."""
    assert (
        listed(
            db,
            b"select p.oid::regprocedure from pg_proc p"
            b" where p.pronamespace::regnamespace::text = any(%(schemas)s)"
            b" and p.provolatile = 'v' and p.prokind = 'f' and not p.prosecdef"
            b" and (has_function_privilege('gradient_server', p.oid, 'EXECUTE')"
            b"  or has_function_privilege('gradient_operator', p.oid, 'EXECUTE'))",
        )
        == []
    )


def test_no_table_depends_on_what_is_deployed(db: Connection) -> None:
    db.execute("set local search_path = pg_catalog")
    deployed = db.execute(
        "select kind, identity from gradient.deployed_object where kind in ('function', 'view')"
    ).fetchall()
    held = {identity: tables_depending(db, Kind(kind), identity) for kind, identity in deployed}
    assert {identity: tables for identity, tables in held.items() if tables} == {}


def test_no_time_column_has_a_default(db: Connection) -> None:
    assert (
        listed(
            db,
            b"select d.adrelid::regclass, a.attname from pg_attrdef d"
            b" join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum"
            b" join pg_class c on c.oid = d.adrelid"
            b" where c.relnamespace::regnamespace::text = any(%(schemas)s)"
            b" and a.atttypid in ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)",
        )
        == []
    )


def test_plpgsql_check_finds_nothing(clean_db: Database) -> None:
    """Every PL/pgSQL function, checked with an empty path, so that names must be qualified."""
    conn = clean_db.connect()
    available = conn.execute(
        "select 1 from pg_available_extensions where name = 'plpgsql_check'"
    ).fetchone()
    if available is None:
        pytest.skip("plpgsql_check is not installed for this PostgreSQL (CI: the run on 15)")
    conn.execute("create schema lint")
    conn.execute("create extension plpgsql_check schema lint")
    conn.execute("set search_path = pg_catalog")
    found = conn.execute(
        "select p.oid::regprocedure::text, t.tgrelid::regclass::text, c.lineno, c.level, c.message"
        "  from pg_proc p join pg_language l on l.oid = p.prolang"
        "  left join pg_trigger t on t.tgfoid = p.oid"
        " cross join lateral lint.plpgsql_check_function_tb("
        "    p.oid::regprocedure, coalesce(t.tgrelid, 0)::regclass,"
        "    newtable := t.tgnewtable, oldtable := t.tgoldtable,"
        "    extra_warnings := true, performance_warnings := false, security_warnings := true) c"
        " where p.pronamespace::regnamespace::text = any(%s) and l.lanname = 'plpgsql'"
        "   and (p.prorettype <> 'trigger'::regtype or t.oid is not null)"
        # An assignment that casts, like '{}' to an array, is meant.
        "   and c.message not like 'target type is different%%'",
        [SCHEMAS],
    ).fetchall()
    assert found == [], "\n".join(map(str, found))
