"""The whole deployment as one SQL script, for a DBA to read before it runs."""

from __future__ import annotations

from pathlib import Path

from gradient.db.roles import DEFAULT_PREFIX
from gradient.db.source import AUDIENCES, SCHEMAS, Kind, read_functions
from gradient.db.units import units

_HEADER = """\
-- Gradient: everything that "gradient db migrate" makes in an empty database.
-- psql can run it (a superuser, one transaction: psql --single-transaction -f), but only
-- "gradient db migrate" records what it applied, replaces what is there and drops what is gone.
"""


def script(root: Path, *, role_prefix: str = DEFAULT_PREFIX) -> str:
    """Migrations, functions, views, triggers, comments, ownership-free grants, in order.

    Needs no database. Raises SourceError for a malformed folder.
    """
    parts = [_HEADER, *_migrations(root)]
    parts += ["set local search_path = pg_catalog;\nset local check_function_bodies = off;\n"]
    files = read_functions(root)
    for unit in units(files):
        parts.append(f"{_rule(f'{unit.kind} {unit.name}')}{unit.text};\n")
    for file in files:
        comments = [s.text for s in file.statements if s.kind is Kind.COMMENT]
        if comments:
            parts.append(_rule(f"comments of {file.path}") + ";\n".join(comments) + ";\n")
    executable = {
        unit.name: unit.file.may_execute(unit.name)
        for unit in units(files)
        if unit.kind is Kind.FUNCTION
    }
    parts.append(_grants(executable, role_prefix))
    return "\n".join(parts)


def _rule(title: str) -> str:
    return f"-- {title} {'-' * max(3, 90 - len(title))}\n\n"


def _migrations(root: Path) -> list[str]:
    return [
        _rule(path.name) + path.read_text(encoding="utf-8")
        for path in sorted((root / "migrations").glob("*.sql"))
        if not path.name.endswith(".rollback.sql")
    ]


def _grants(executable: dict[str, tuple[str, ...]], prefix: str) -> str:
    schemas = ", ".join(SCHEMAS)
    roles = [f"{prefix}_{audience}" for audience in AUDIENCES]
    lines = [_rule("roles and grants").rstrip("\n"), ""]
    lines += [f"create role {role} nologin;" for role in (f"{prefix}_owner", *roles)]
    everyone = ", ".join(["public", *roles])
    for kind in ("tables", "sequences", "functions", "procedures"):
        lines.append(f"revoke all on all {kind} in schema {schemas} from {everyone};")
    lines.append(f"grant usage on schema {schemas} to {', '.join(roles)};")
    lines.append(f"grant select on all tables in schema {schemas} to {', '.join(roles)};")
    grants = [
        f"    ('{name}', '{prefix}_{audience}')"
        for name, audiences in sorted(executable.items())
        for audience in audiences
    ]
    if grants:
        lines += [
            "do $grants$",
            "declare",
            "  v_grant record;",
            "begin",
            "  for v_grant in",
            "    select p.oid::regprocedure as routine, g.role from (values",
            ",\n".join(grants),
            "    ) g(name, role)",
            "    join pg_proc p on p.pronamespace::regnamespace::text || '.' || p.proname = g.name",
            "  loop",
            "    execute format(",
            "      'grant execute on routine %s to %I', v_grant.routine, v_grant.role);",
            "  end loop;",
            "end $grants$;",
        ]
    return "\n".join(lines) + "\n"
