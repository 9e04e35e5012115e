"""Roles and grants, proved by trying."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from gradient.db.deploy import DeployError, upgrade
from tests.support.database import Connection, Database
from tests.support.sql_folder import SqlFolder

SCHEMAS = ["gradient", "graph", "scheduler"]


def relations(conn: Connection, kinds: str) -> list[str]:
    rows = conn.execute(
        "select c.oid::regclass::text from pg_class c"
        " where c.relnamespace::regnamespace::text = any(%s) and c.relkind::text = any(%s)",
        [SCHEMAS, list(kinds)],
    )
    return [row[0] for row in rows]


def refused(conn: Connection, statement: sql.Composed) -> bool:
    """Whether the role in force lacks the right (and not just fails for another reason)."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    except psycopg.Error as error:
        pytest.fail(f"{statement.as_string(conn)}: {error}")
    return False


@pytest.mark.parametrize("role", ["gradient_server", "gradient_operator", "gradient_reader"])
def test_no_role_but_the_owner_can_write_any_table(db: Connection, role: str) -> None:
    tables = relations(db, "rp")
    assert len(tables) > 30
    db.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    for table in tables:
        name = sql.SQL(table)
        column = db.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
            " and not attisdropped and attgenerated = '' limit 1",
            [table],
        ).fetchone()
        assert column is not None
        field = sql.Identifier(column[0])
        for statement in (
            sql.SQL("insert into {} default values").format(name),
            sql.SQL("update {} set {} = default where false").format(name, field),
            sql.SQL("delete from {} where false").format(name),
            sql.SQL("truncate {}").format(name),
        ):
            assert refused(db, statement), f"{role} may run: {statement.as_string(db)}"
    db.execute("reset role")


@pytest.mark.parametrize("role", ["gradient_server", "gradient_operator", "gradient_reader"])
def test_every_role_can_read_every_view(db: Connection, role: str) -> None:
    views = relations(db, "v")
    db.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    for view in views:
        db.execute(sql.SQL("select * from {} limit 1").format(sql.SQL(view)))
    db.execute("reset role")


def test_public_may_call_and_read_nothing(db: Connection) -> None:
    open_functions = db.execute(
        "select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace::regnamespace::text = any(%s)"
        " and has_function_privilege('public', p.oid, 'EXECUTE')",
        [SCHEMAS],
    ).fetchall()
    open_tables = db.execute(
        "select c.oid::regclass::text from pg_class c"
        " where c.relnamespace::regnamespace::text = any(%s) and c.relkind in ('r', 'p', 'v')"
        " and has_table_privilege('public', c.oid, 'SELECT')",
        [SCHEMAS],
    ).fetchall()
    assert (open_functions, open_tables) == ([], [])


def test_everything_belongs_to_the_owner_role(db: Connection) -> None:
    rows = db.execute(
        "select c.oid::regclass::text from pg_class c"
        " where c.relnamespace::regnamespace::text = any(%s) and c.relkind in ('r', 'p', 'v', 'S')"
        " and c.relowner <> 'gradient_owner'::regrole"
        " union all select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace::regnamespace::text = any(%s)"
        " and p.proowner <> 'gradient_owner'::regrole",
        [SCHEMAS, SCHEMAS],
    ).fetchall()
    assert rows == []


def test_the_roles_cannot_log_in(db: Connection) -> None:
    rows = db.execute("select rolname from pg_roles where rolname ~ '^gradient_' and rolcanlogin")
    assert rows.fetchall() == []


WRITE = """-- Execute: {audience}
create function graph.put(p_id bigint) returns void
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$ begin insert into gradient.thing (id) values (p_id); end $$;
"""


def test_a_marked_function_writes_for_the_server_and_refuses_the_others(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("graph/put.sql", WRITE.format(audience="server"))
    upgrade(empty_db.dsn, folder.root)
    empty_db.connect(role="gradient_server").execute("select graph.put(1)")
    for role in ("gradient_operator", "gradient_reader"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            empty_db.connect(role=role).execute("select graph.put(2)")
    assert empty_db.connect().execute("select id from gradient.thing").fetchall() == [(1,)]


def test_a_mark_that_is_taken_away_revokes(empty_db: Database, folder: SqlFolder) -> None:
    folder.function("graph/put.sql", WRITE.format(audience="server"))
    upgrade(empty_db.dsn, folder.root)
    folder.function("graph/put.sql", WRITE.format(audience="operator"))
    upgrade(empty_db.dsn, folder.root)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        empty_db.connect(role="gradient_server").execute("select graph.put(1)")


def test_without_a_mark_the_schema_decides(empty_db: Database, folder: SqlFolder) -> None:
    for schema in SCHEMAS:
        folder.function(
            f"{schema}.sql",
            f"create function {schema}.one() returns int language sql as 'select 1';",
        )
    upgrade(empty_db.dsn, folder.root)
    rows = empty_db.connect().execute(
        "select role, schema from unnest(array['gradient_server', 'gradient_operator',"
        " 'gradient_reader']) role, unnest(%s::text[]) schema"
        " where has_function_privilege(role, schema || '.one()', 'EXECUTE')",
        [SCHEMAS],
    )
    assert set(rows) == {("gradient_server", "gradient"), ("gradient_operator", "gradient")}


def test_a_table_marked_secret_is_read_by_the_server_only(
    empty_db: Database, folder: SqlFolder
) -> None:
    folder.function("secret.sql", "comment on table gradient.thing is 'Secret: keys of somebody.';")
    upgrade(empty_db.dsn, folder.root)
    empty_db.connect(role="gradient_server").execute("select * from gradient.thing")
    for role in ("gradient_operator", "gradient_reader"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            empty_db.connect(role=role).execute("select * from gradient.thing")


@pytest.fixture
def plain_login(empty_db: Database) -> Iterator[str]:
    """A login that owns its database and may create no role, as a managed service gives it."""
    admin = empty_db.connect()
    admin.execute("create role managed_login login nosuperuser nocreaterole")
    admin.execute(
        sql.SQL("alter database {} owner to managed_login").format(sql.Identifier(empty_db.name))
    )
    yield psycopg.conninfo.make_conninfo(empty_db.dsn, user="managed_login")
    admin.execute("drop owned by managed_login")
    admin.execute("reassign owned by managed_login to current_user")
    admin.execute("drop role managed_login")


def test_a_login_that_cannot_make_roles_owns_everything_and_is_told(
    empty_db: Database, folder: SqlFolder, plain_login: str
) -> None:
    folder.function("graph/put.sql", WRITE.format(audience="server"))
    report = upgrade(plain_login, folder.root, role_prefix="elsewhere")
    assert any("cannot create roles" in note for note in report.notes)
    with psycopg.connect(plain_login, autocommit=True) as conn:
        conn.execute("select graph.put(5)")
    owner = empty_db.connect().execute(
        "select proowner::regrole::text from pg_proc where proname = 'put'"
    )
    assert owner.fetchall() == [("managed_login",)]


def test_a_login_that_may_make_roles_needs_no_superuser(
    empty_db: Database, folder: SqlFolder, plain_login: str
) -> None:
    admin = empty_db.connect()
    admin.execute("alter role managed_login createrole")
    folder.function("graph/put.sql", WRITE.format(audience="server"))
    report = upgrade(plain_login, folder.root, role_prefix="apart")
    try:
        assert report.notes == []
        folder.function("graph/put.sql", WRITE.format(audience="server, operator"))
        upgrade(plain_login, folder.root, role_prefix="apart")
        empty_db.connect(role="apart_operator").execute("select graph.put(5)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            empty_db.connect(role="apart_server").execute("insert into gradient.thing values (1)")
    finally:
        for suffix in ("owner", "server", "operator", "reader"):
            role = sql.Identifier(f"apart_{suffix}")
            admin.execute(sql.SQL("reassign owned by {} to managed_login").format(role))
            admin.execute(sql.SQL("drop owned by {}").format(role))
            admin.execute(sql.SQL("drop role {}").format(role))


@pytest.fixture
def server_login(empty_db: Database) -> Iterator[str]:
    """A login that is nothing but a member of the server's role."""
    admin = empty_db.connect()
    admin.execute("create role restricted_login login nosuperuser nocreaterole")
    yield psycopg.conninfo.make_conninfo(empty_db.dsn, user="restricted_login")
    admin.execute("drop role restricted_login")


def test_a_login_with_the_servers_rights_only_starts_on_a_database_that_is_up_to_date(
    empty_db: Database, folder: SqlFolder, server_login: str
) -> None:
    folder.function("graph/put.sql", WRITE.format(audience="server"))
    upgrade(empty_db.dsn, folder.root)
    empty_db.connect().execute("grant gradient_server to restricted_login")
    report = upgrade(server_login, folder.root)
    assert (report.migrations, report.deployed) == ([], False)


@pytest.mark.parametrize("outstanding", ["function", "migration"])
def test_a_login_with_the_servers_rights_only_is_told_who_must_migrate(
    empty_db: Database, folder: SqlFolder, server_login: str, outstanding: str
) -> None:
    upgrade(empty_db.dsn, folder.root)
    empty_db.connect().execute("grant gradient_server to restricted_login")
    if outstanding == "function":
        folder.function("graph/put.sql", WRITE.format(audience="server"))
    else:
        folder.migration("0002.more", "create table gradient.more (id int);", "select 1;")
    with pytest.raises(DeployError, match=r"restricted_login may not .*gradient db migrate"):
        upgrade(server_login, folder.root)
