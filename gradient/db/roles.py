"""The four roles that the deployment grants to, and what each may do.

`<prefix>_owner` owns every object; `<prefix>_server` may call the messages and the
passes and reads everything, but can write no table; `<prefix>_operator` may call the
operator functions; `<prefix>_reader` reads. None can log in: a DBA grants them to
logins. Roles belong to the cluster, which is why no migration makes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors, sql

from gradient.db.migrate import BOOKKEEPING_SCHEMA
from gradient.db.source import AUDIENCES, SCHEMAS

DEFAULT_PREFIX = "gradient"
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,39}")
# Tables whose comment begins with this word hold keys or token hashes.
SECRET_MARK = "Secret:"


@dataclass(frozen=True)
class Roles:
    """The roles of one deployment that exist, and what is given up where they do not.

    `owner` is None where the login itself owns everything. `audiences` maps
    server, operator and reader to role names. `existing` are all that exist, `notes`
    sentences for a person.
    """

    prefix: str
    existing: tuple[str, ...]
    owner: str | None
    audiences: Mapping[str, str]
    notes: tuple[str, ...]


def ensure_roles(conn: psycopg.Connection[Any], prefix: str = DEFAULT_PREFIX) -> Roles:
    """Make the roles that are missing, as far as this login may; never fails for lack of rights.

    `conn` must be in autocommit mode. Raises ValueError for a malformed prefix.
    """
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"role prefix {prefix!r}: use a lower-case letter, then letters, digits and _, "
            "at most 40 characters"
        )
    wanted = [f"{prefix}_{suffix}" for suffix in ("owner", *AUDIENCES)]
    missing = [role for role in wanted if not _ensure_role(conn, role)]
    notes = []
    if missing:
        notes.append(
            f"this login cannot create roles; missing: {', '.join(missing)}. Without them nothing "
            "but discipline keeps a connection from writing tables directly. As a superuser: "
            + " ".join(f"create role {role} nologin;" for role in missing)
        )
    owner: str | None = f"{prefix}_owner"
    if owner in missing:
        owner = None
    elif not _can_become(conn, f"{prefix}_owner"):
        owner = None
        notes.append(
            f"this login is not a member of {prefix}_owner, so it owns every object itself. "
            f"As a superuser: grant {prefix}_owner to <this login>;"
        )
    audiences = {
        audience: f"{prefix}_{audience}"
        for audience in AUDIENCES
        if f"{prefix}_{audience}" not in missing
    }
    existing = tuple(role for role in wanted if role not in missing)
    return Roles(prefix, existing, owner, audiences, tuple(notes))


def _ensure_role(conn: psycopg.Connection[Any], role: str) -> bool:
    found = conn.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone()
    if found:
        return True
    try:
        conn.execute(sql.SQL("create role {} nologin").format(sql.Identifier(role)))
    except (errors.DuplicateObject, errors.UniqueViolation):
        # A deployer of another database of this cluster was faster.
        return True
    except errors.InsufficientPrivilege:
        return False
    return True


def _can_become(conn: psycopg.Connection[Any], role: str) -> bool:
    if _is_member(conn, role):
        return True
    try:
        conn.execute(sql.SQL("grant {} to current_user").format(sql.Identifier(role)))
    except errors.InsufficientPrivilege:
        return False
    return _is_member(conn, role)


def _is_member(conn: psycopg.Connection[Any], role: str) -> bool:
    # From PostgreSQL 16 on, membership alone does not give the right to SET ROLE.
    wanted = "SET" if conn.info.server_version >= 160000 else "MEMBER"
    found = conn.execute("select pg_has_role(current_user, %s, %s)", [role, wanted]).fetchone()
    return bool(found and found[0])


def take_ownership(conn: psycopg.Connection[Any], roles: Roles) -> None:
    """Give every object of our schemas to the owner role; nothing when there is none."""
    if roles.owner is None:
        return
    database = conn.info.dbname
    owner = sql.Identifier(roles.owner)
    # To own a schema a role needs the right to create one.
    conn.execute(
        sql.SQL("grant create on database {} to {}").format(sql.Identifier(database), owner)
    )
    for kind, identity in conn.execute(_FOREIGN_OBJECTS, [list(SCHEMAS), roles.owner]).fetchall():
        conn.execute(
            sql.SQL("alter {} {} owner to {}").format(sql.SQL(kind), sql.SQL(identity), owner)
        )


# Objects of our schemas that another role owns, as ALTER names them; schemas come first,
# since the new owner of an object needs CREATE there. Extensions' members are left alone,
# an identity's sequence follows its table.
_FOREIGN_OBJECTS = """
with schemas as (
  select oid, nspname, nspowner from pg_namespace where nspname = any(%s)
), wanted as (
  select oid from pg_roles where rolname = %s
), objects as (
  select 1 as turn, 'schema' as kind, format('%%I', nspname) as identity, nspowner as owner
    from schemas
  union all
  select 2,
         case c.relkind when 'v' then 'view' when 'S' then 'sequence'
                        when 'm' then 'materialized view' else 'table' end,
         c.oid::regclass::text, c.relowner
    from pg_class c join schemas s on s.oid = c.relnamespace
   where c.relkind in ('r', 'p', 'v', 'm', 'S')
     and not exists (
       select from pg_depend d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('i', 'a', 'e'))
  union all
  select 3, case t.typtype when 'd' then 'domain' else 'type' end, t.oid::regtype::text, t.typowner
    from pg_type t join schemas s on s.oid = t.typnamespace
    left join pg_class c on c.oid = t.typrelid
   where t.typtype in ('e', 'd') or (t.typtype = 'c' and c.relkind = 'c')
  union all
  select 4, case p.prokind when 'p' then 'procedure' else 'function' end,
         p.oid::regprocedure::text, p.proowner
    from pg_proc p join schemas s on s.oid = p.pronamespace
   where not exists (
       select from pg_depend d
        where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
)
select kind, identity from objects, wanted where owner <> wanted.oid order by turn, identity
"""


def grant(
    conn: psycopg.Connection[Any], roles: Roles, executable: Mapping[str, tuple[str, ...]]
) -> None:
    """Revoke everything from PUBLIC and the roles, then grant anew.

    `executable` maps a function with its argument types to the audiences that may
    call it.
    """
    everyone = [sql.SQL("public"), *(sql.Identifier(role) for role in roles.audiences.values())]
    grantees = sql.SQL(", ").join(everyone)
    schemas = sql.SQL(", ").join(sql.Identifier(schema) for schema in SCHEMAS)
    for kind in ("tables", "sequences", "functions", "procedures"):
        conn.execute(
            sql.SQL("revoke all on all {} in schema {} from {}").format(
                sql.SQL(kind), schemas, grantees
            )
        )
    conn.execute(sql.SQL("revoke all on schema {} from {}").format(schemas, grantees))
    if not roles.audiences:
        return
    members = sql.SQL(", ").join(everyone[1:])
    conn.execute(sql.SQL("grant usage on schema {} to {}").format(schemas, members))
    conn.execute(sql.SQL("grant select on all tables in schema {} to {}").format(schemas, members))
    # Whoever may not migrate can still see that nothing is left to migrate.
    bookkeeping = sql.Identifier(BOOKKEEPING_SCHEMA)
    conn.execute(sql.SQL("grant usage on schema {} to {}").format(bookkeeping, members))
    conn.execute(
        sql.SQL("grant select on all tables in schema {} to {}").format(bookkeeping, members)
    )
    _hide_secrets(conn, roles)
    for audience, role in roles.audiences.items():
        callable_by_role = [
            sql.SQL(identity) for identity, who in sorted(executable.items()) if audience in who
        ]
        if callable_by_role:
            conn.execute(
                sql.SQL("grant execute on routine {} to {}").format(
                    sql.SQL(", ").join(callable_by_role), sql.Identifier(role)
                )
            )


def _hide_secrets(conn: psycopg.Connection[Any], roles: Roles) -> None:
    others = [role for audience, role in roles.audiences.items() if audience != "server"]
    secret = conn.execute(
        "select c.oid::regclass::text from pg_class c"
        " where c.relnamespace = any(%s::regnamespace[]) and c.relkind in ('r', 'p')"
        " and obj_description(c.oid, 'pg_class') like %s",
        [list(SCHEMAS), SECRET_MARK + "%"],
    ).fetchall()
    for (table,) in secret:
        for role in others:
            conn.execute(
                sql.SQL("revoke all on {} from {}").format(sql.SQL(table), sql.Identifier(role))
            )
