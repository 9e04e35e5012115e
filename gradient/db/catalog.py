"""What the database holds of the things that the deployer makes, and their fingerprints.

Every query here expects `search_path = pg_catalog`, under which the server prints
every other name with its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from gradient.db.source import SCHEMAS, Kind


@dataclass(frozen=True)
class Found:
    """One function, view or trigger in the database.

    `identity` has a function's argument types, `version` changes whenever the
    catalog row is written, `fingerprint` with the definition only.
    """

    kind: Kind
    identity: str
    name: str
    version: str
    fingerprint: str

    @property
    def key(self) -> tuple[str, str]:
        """What names this object in `gradient.deployed_object`."""
        return (self.kind.value, self.identity)


_OBJECTS = """
with schemas as (
  select oid, nspname from pg_namespace where nspname = any(%s)
)
select 'function' as kind, p.oid::regprocedure::text as identity,
       s.nspname || '.' || p.proname as name, p.xmin::text || p.ctid::text as version,
       md5(pg_get_functiondef(p.oid)) as fingerprint
  from pg_proc p join schemas s on s.oid = p.pronamespace
 where p.prokind in ('f', 'p')
   and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass
                      and d.objid = p.oid and d.deptype = 'e')
union all
select 'view', c.oid::regclass::text, s.nspname || '.' || c.relname, c.xmin::text || c.ctid::text,
       md5(pg_get_viewdef(c.oid) || coalesce(c.reloptions::text, ''))
  from pg_class c join schemas s on s.oid = c.relnamespace
 where c.relkind = 'v'
   and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass
                      and d.objid = c.oid and d.deptype = 'e')
union all
select 'trigger', s.nspname || '.' || c.relname || '.' || t.tgname,
       s.nspname || '.' || c.relname || '.' || t.tgname, t.xmin::text || t.ctid::text,
       md5(pg_get_triggerdef(t.oid) || t.tgenabled::text)
  from pg_trigger t join pg_class c on c.oid = t.tgrelid join schemas s on s.oid = c.relnamespace
 where not t.tgisinternal
"""


def objects(conn: psycopg.Connection[Any]) -> list[Found]:
    """Every function, view and trigger of our schemas, whoever made it."""
    return [
        Found(Kind(kind), identity, name, version, fingerprint)
        for kind, identity, name, version, fingerprint in conn.execute(_OBJECTS, [list(SCHEMAS)])
    ]


_VERSIONS = {
    Kind.FUNCTION: """
      select p.oid::regprocedure::text, p.xmin::text || p.ctid::text from pg_proc p
       where p.pronamespace = to_regnamespace(%s) and p.proname = %s""",
    Kind.VIEW: """
      select c.oid::regclass::text, c.xmin::text || c.ctid::text from pg_class c
       where c.relnamespace = to_regnamespace(%s) and c.relname = %s and c.relkind = 'v'""",
    Kind.TRIGGER: """
      select c.oid::regclass::text || '.' || t.tgname, t.xmin::text || t.ctid::text
        from pg_trigger t join pg_class c on c.oid = t.tgrelid
       where c.relnamespace = to_regnamespace(%s) and c.relname || '.' || t.tgname = %s""",
}


def versions(conn: psycopg.Connection[Any], kind: Kind, name: str) -> dict[str, str]:
    """The objects of one name (a function's overloads): identity to version, as in `Found`."""
    schema, local = name.split(".", 1)
    rows = conn.execute(sql.SQL(_VERSIONS[kind]), [schema, local])
    return {str(row[0]): str(row[1]) for row in rows}


@dataclass(frozen=True)
class Remembered:
    """One row of `gradient.deployed_object`: what the last deployment made."""

    kind: str
    identity: str
    name: str
    path: str
    sha256: str
    fingerprint: str

    @property
    def key(self) -> tuple[str, str]:
        """Kind and identity, as in `Found.key`."""
        return (self.kind, self.identity)


def remembered(conn: psycopg.Connection[Any]) -> Mapping[tuple[str, str], Remembered]:
    """What the last deployment made, by kind and identity."""
    rows = conn.execute(
        "select kind, identity, name, path, sha256, fingerprint from gradient.deployed_object"
    )
    return {(row[0], row[1]): Remembered(*row) for row in rows}


# What hangs on an object, transitively, with the catalog it stands in. A view stands in
# pg_rewrite (its rule), pg_type (its row) and pg_class; a trigger in pg_trigger.
_DEPENDENTS = """
with recursive hanging as (
  select d.classid, d.objid from pg_depend d
   where d.refclassid = %(class)s::regclass and d.refobjid = %(oid)s
     and d.deptype in ('n', 'a', 'i')
  union
  select next.classid, next.objid
    from hanging h
   cross join lateral (
     select d.classid, d.objid from pg_depend d
      where d.refclassid = h.classid and d.refobjid = h.objid and d.deptype in ('n', 'a', 'i')
     union all
     select 'pg_class'::regclass, r.ev_class from pg_rewrite r
      where h.classid = 'pg_rewrite'::regclass and r.oid = h.objid
   ) next
)
select distinct pg_describe_object(h.classid, h.objid, 0)
  from hanging h
  left join pg_class c on h.classid = 'pg_class'::regclass and c.oid = h.objid
  left join pg_type t on h.classid = 'pg_type'::regclass and t.oid = h.objid
  left join pg_type item on item.oid = t.typelem
  left join pg_class relation on relation.oid = coalesce(item.typrelid, t.typrelid)
 where h.classid not in ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_proc'::regclass)
   and coalesce(c.relkind, relation.relkind, ' ') <> 'v'
"""


def tables_depending(conn: psycopg.Connection[Any], kind: Kind, identity: str) -> list[str]:
    """What hangs on a function or view and is no function, view or trigger itself.

    Such a thing (a default, an index, a constraint) would be lost with a CASCADE
    and could not be deployed again.
    """
    if kind is Kind.FUNCTION:
        found = conn.execute("select 'pg_proc', to_regprocedure(%s)::oid", [identity]).fetchone()
    else:
        found = conn.execute("select 'pg_class', to_regclass(%s)::oid", [identity]).fetchone()
    if found is None or found[1] is None:
        return []
    rows = conn.execute(_DEPENDENTS, {"class": found[0], "oid": found[1]})
    return [str(row[0]) for row in rows]
