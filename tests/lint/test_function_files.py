"""Every function file keeps the rules, and every rule finds its sin."""

from __future__ import annotations

import pytest

from gradient.db.source import sql_root
from tests.lint.rules import problems

FOLDER = sql_root() / "functions"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.sql"))


@pytest.mark.parametrize("path", FILES)
def test_the_file_keeps_the_rules(path: str) -> None:
    assert problems(path, (FOLDER / path).read_text(encoding="utf-8")) == []


def plpgsql(body: str, options: str = "volatile", name: str = "graph.f") -> str:
    return (
        f"create function {name}() returns void language plpgsql {options}"
        f" as $$ begin {body} end $$; comment on function {name}() is 'F.';"
    )


def sql(body: str, returns: str = "int", options: str = "stable") -> str:
    return (
        f"create function graph.f() returns {returns} language sql {options}"
        f" as $$ {body} $$; comment on function graph.f() is 'F.';"
    )


def procedure(body: str, options: str = "") -> str:
    return (
        f"-- Execute: operator\ncreate procedure graph.f() language plpgsql {options}"
        f" as $$ begin {body} end $$; comment on procedure graph.f() is 'F.';"
    )


PINNED = "security definer set search_path = pg_catalog, pg_temp"


@pytest.mark.parametrize(
    "text, sin",
    [
        (plpgsql("null;", name="graph.g"), "name the file after it"),
        (plpgsql("null;") + plpgsql("null;", name="graph.g"), "one function a file"),
        (plpgsql("null;").split("; comment")[0] + ";", "has no COMMENT"),
        ("create view gradient.f as select 1 as one;", "has no COMMENT"),
        ("-- Execute: server\n" + plpgsql("null;"), "without SET search_path"),
        (plpgsql("null;", "security definer"), "without SET search_path"),
        (
            plpgsql("null;", "security definer set search_path = pg_temp, pg_catalog"),
            "end its search_path with pg_temp",
        ),
        (procedure("perform 1;"), "without SET search_path"),
        (procedure("perform 1; commit;", "security definer"), "commits, which PostgreSQL allows"),
        (plpgsql("perform pg_advisory_xact_lock(1);", "stable"), "must be VOLATILE plpgsql"),
        (plpgsql("perform graph.take_turn();", "stable"), "must be VOLATILE plpgsql"),
        (
            sql("select id from gradient.t for update", "setof bigint", "volatile"),
            "must be VOLATILE plpgsql",
        ),
        (sql("select count(*)::int from gradient.t"), "scalar SQL function that reads t"),
        (sql("select 1 where exists (select from gradient.t)"), "scalar SQL function that reads t"),
        (sql("select n from t", "setof int"), "reads t without its schema"),
        (plpgsql("perform n from t;"), "reads t without its schema"),
        (plpgsql("if exists (select from t) then null; end if;"), "reads t without its schema"),
        (plpgsql("update t set n = 1;"), "reads t without its schema"),
        (plpgsql("perform now();"), "uses 'now('"),
        (plpgsql("perform current_timestamp;"), "uses 'current_timestamp'"),
        (plpgsql("perform clock_timestamp();"), "uses 'clock_timestamp('"),
        (plpgsql("perform 1; exception when others then null;"), "catches OTHERS"),
        (plpgsql("raise exception 'bad';"), "without ERRCODE"),
        (plpgsql("raise exception using message = 'bad';"), "without ERRCODE"),
    ],
)
def test_a_rule_finds_its_sin(text: str, sin: str) -> None:
    assert any(sin in problem for problem in problems("graph/f.sql", text)), problems(
        "graph/f.sql", text
    )


@pytest.mark.parametrize(
    "text",
    [
        "-- Family: twins.\n" + plpgsql("null;") + plpgsql("null;", name="graph.g"),
        "-- Execute: server\n" + plpgsql("null;", PINNED),
        procedure("perform 1; commit;"),
        plpgsql("perform pg_advisory_xact_lock(1);"),
        plpgsql("-- now() is forbidden\n perform gradient.current_time();"),
        plpgsql("raise exception using errcode = 'GR001', message = 'bad';"),
        plpgsql("raise exception sqlstate 'GR001' using message = 'bad';"),
        plpgsql("perform 1; exception when unique_violation then raise;"),
        plpgsql("perform 1 from (with t as (select 1) select * from t) s;"),
        plpgsql("raise notice 'a step';"),
        sql("select n from gradient.t", "table (n int)"),
        sql("select 1 + 1"),
        "-- Execute: reader\ncreate function graph.f() returns table (n int) language sql stable"
        " begin atomic select n from gradient.t; end; comment on function graph.f() is 'F.';",
        "create function graph.f() returns trigger language plpgsql as $$ begin"
        " perform count(*) from added; return null; end $$;"
        "comment on function graph.f() is 'F.';"
        "create trigger f after insert on gradient.t referencing new table as added"
        " for each statement execute function graph.f();",
    ],
)
def test_an_innocent_file_passes(text: str) -> None:
    assert problems("graph/f.sql", text) == []
