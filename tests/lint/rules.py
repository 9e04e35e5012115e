"""The project's own rules on the files of `sql/functions`, checked with PostgreSQL's parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pglast
from pglast import ast
from pglast.visitors import Skip, Visitor

from gradient.db.source import Kind, SqlFile, read_file

CLOCK_FUNCTION = "gradient.current_time"
_CLOCKS = re.compile(
    r"\b(?:(?:now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\s*\("
    r"|current_timestamp\b|current_date\b|current_time\b(?!\s*\()|localtime(?:stamp)?\b)",
    re.IGNORECASE,
)
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# Taking a lock, ours or a row's: what is read afterwards must be read by a fresh snapshot.
_LOCKING = re.compile(
    r"\bpg_(?:try_)?advisory_(?:xact_)?lock|\bgraph\.(?:take_turn|lock_shared_builds)\s*\("
    r"|\bfor\s+(?:no\s+key\s+)?(?:update|share)\b|\bfor\s+key\s+share\b",
    re.IGNORECASE,
)
# PL/pgSQL's parser knows no catalog here, hence no type of ours; what the type of a variable
# is does not matter to the rules.
_OWN_ROWS = re.compile(r"\b(?:gradient|graph|scheduler)\.\w+%rowtype", re.IGNORECASE)
_OWN_TYPES = re.compile(
    r"(?<!function )(?<!procedure )\b(?:gradient|graph|scheduler)\.\w+(?:\.\w+%type)?"
    r"(?=(?:\[\])?\s*(?:;|:=|,|\)|[a-z]))",
    re.IGNORECASE,
)
# PostgreSQL lets a procedure commit only without the owner's rights and without SET.
_COMMITS = re.compile(r"\bcommit\s*;", re.IGNORECASE)
_DECLARATIONS = re.compile(r"\A[^$]*\$|\bdeclare\b.*?\bbegin\b", re.IGNORECASE | re.DOTALL)
# PLpgSQL's own number for RAISE EXCEPTION, and of its option ERRCODE.
_EXCEPTION_LEVEL = 21
_ERRCODE_OPTION = 0


@dataclass
class Function:
    """One CREATE FUNCTION or PROCEDURE, as far as the rules look at it."""

    name: str
    text: str
    body: str
    language: str
    volatility: str
    definer: bool
    search_path: tuple[str, ...] | None
    scalar: bool
    procedure: bool = False
    parsed_body: Any = None
    transition_tables: set[str] = field(default_factory=set)


def problems(path: str, text: str) -> list[str]:
    """Every broken rule of one function file, as sentences; empty when it is fine."""
    file = read_file(path, text)
    functions = [
        _function(statement.text)
        for statement in file.statements
        if statement.kind is Kind.FUNCTION
    ]
    transition_tables = _transition_tables(file)
    found = [*_names(file), *_comments(file)]
    for function in functions:
        function.transition_tables = transition_tables
        found += [f"{function.name}: {problem}" for problem in _function_problems(file, function)]
    return found


def _names(file: SqlFile) -> Iterator[str]:
    names = {s.name for s in file.statements if s.kind in (Kind.FUNCTION, Kind.VIEW)}
    stem = PurePosixPath(file.path).stem
    if len(names) > 1 and not file.family:
        yield (
            f"declares {', '.join(sorted(names))}: one function a file, or say why in a header "
            "line '-- Family: …'"
        )
    elif names and not any(name.split(".")[1] == stem for name in names) and not file.family:
        yield f"declares {', '.join(names)}: name the file after it"


def _comments(file: SqlFile) -> Iterator[str]:
    comments = " ".join(s.text for s in file.statements if s.kind is Kind.COMMENT)
    for statement in file.statements:
        if statement.kind in (Kind.FUNCTION, Kind.VIEW):
            pattern = rf"comment\s+on\s+(?:function|procedure|routine|view)\s+{statement.name}\b"
            if not re.search(pattern, comments, re.IGNORECASE):
                yield f"{statement.name} has no COMMENT in this file"


def _function_problems(file: SqlFile, function: Function) -> Iterator[str]:
    yield from _search_path(file, function)
    code = _COMMENTS.sub(" ", function.text)
    if _LOCKING.search(code) and (function.language, function.volatility) != (
        "plpgsql",
        "volatile",
    ):
        yield "takes locks, so it must be VOLATILE plpgsql: anything else reads the old rows"
    clock = _CLOCKS.search(code)
    if clock and function.name != CLOCK_FUNCTION:
        yield f"uses {clock.group().strip()!r}: time comes from {CLOCK_FUNCTION}()"
    if function.language == "sql":
        yield from _sql_body(function)
    if function.language == "plpgsql":
        yield from _plpgsql_body(function)


def _search_path(file: SqlFile, function: Function) -> Iterator[str]:
    entry = bool(file.may_execute(function.name)) or function.definer
    resolved_when_created = function.parsed_body is not None and not function.definer
    if not entry or resolved_when_created:
        return
    if function.procedure and _COMMITS.search(_COMMENTS.sub(" ", function.body)):
        if function.definer or function.search_path is not None:
            yield "commits, which PostgreSQL allows neither with SECURITY DEFINER nor with SET"
        return
    if function.search_path is None:
        yield "is an entry function without SET search_path"
    elif function.search_path[-1:] != ("pg_temp",):
        yield "must end its search_path with pg_temp, or a temporary table could stand in front"


def _sql_body(function: Function) -> Iterator[str]:
    statements = _body_statements(function)
    tables = [table for statement in statements for table in _tables(statement)]
    if function.scalar and function.volatility != "volatile" and tables:
        yield (
            f"is a scalar SQL function that reads {tables[0][0]}: the planner calls it row by row; "
            "make it a view or return a table"
        )
    if function.parsed_body is None:
        yield from _unqualified(function, tables)


def _plpgsql_body(function: Function) -> Iterator[str]:
    text = _OWN_ROWS.sub("record", function.text)
    text = _DECLARATIONS.sub(lambda part: _OWN_TYPES.sub("text", part.group()), text)
    tree = pglast.parse_plpgsql(text)
    for node in _nodes(tree):
        if "PLpgSQL_condition" in node and node["PLpgSQL_condition"]["condname"] == "others":
            yield "catches OTHERS: that hides deadlocks and timeouts"
        if "PLpgSQL_stmt_raise" in node:
            yield from _raise(node["PLpgSQL_stmt_raise"])
        if "PLpgSQL_expr" in node:
            for statement in _expression(node["PLpgSQL_expr"]):
                yield from _unqualified(function, _tables(statement))


def _raise(statement: dict[str, Any]) -> Iterator[str]:
    raised_again = not statement.keys() & {"message", "options", "condname"}
    if statement.get("elog_level") != _EXCEPTION_LEVEL or raised_again:
        return
    options = [
        option["PLpgSQL_raise_option"].get("opt_type", _ERRCODE_OPTION)
        for option in statement.get("options", [])
    ]
    if "condname" not in statement and _ERRCODE_OPTION not in options:
        yield f"line {statement['lineno']}: RAISE EXCEPTION without ERRCODE"


def _unqualified(function: Function, tables: list[tuple[str, str | None]]) -> Iterator[str]:
    for table, schema in tables:
        known = table in function.transition_tables or table.startswith("pg_")
        if schema is None and not known:
            yield f"reads {table} without its schema"


class _Tables(Visitor):
    """Collects the tables a statement names, and the names its WITH clauses define."""

    def __init__(self) -> None:
        self.tables: list[tuple[str, str | None]] = []
        self.defined: set[str] = set()

    def visit_RangeVar(self, _: Any, node: ast.RangeVar) -> None:  # noqa: N802
        """A table, view or common table expression that is read or written."""
        if node.relname is not None:
            self.tables.append((node.relname, node.schemaname))

    def visit_CommonTableExpr(self, _: Any, node: ast.CommonTableExpr) -> None:  # noqa: N802
        """A name that WITH defines."""
        if node.ctename is not None:
            self.defined.add(node.ctename)

    def visit_LockingClause(self, _: Any, __: ast.LockingClause) -> Any:  # noqa: N802
        """FOR UPDATE OF names what FROM has named already."""
        return Skip


def _tables(statement: Any) -> list[tuple[str, str | None]]:
    visitor = _Tables()
    visitor(statement)
    return [
        (table, schema)
        for table, schema in visitor.tables
        if schema is not None or table not in visitor.defined
    ]


def _transition_tables(file: SqlFile) -> set[str]:
    triggers = [s.text for s in file.statements if s.kind is Kind.TRIGGER]
    return {
        name.lower()
        for text in triggers
        for name in re.findall(r"(?:new|old)\s+table\s+(?:as\s+)?(\w+)", text, re.IGNORECASE)
    }


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _expression(expression: dict[str, Any]) -> list[Any]:
    """The statements of one PL/pgSQL expression; assignments and bare expressions as SELECT."""
    query = expression["query"]
    mode = expression.get("parseMode", 0)
    if mode >= 3:
        query = "select " + re.split(r":=|=", query, maxsplit=1)[-1]
    elif mode == 2:
        query = "select " + query
    try:
        return [raw.stmt for raw in pglast.parse_sql(query)]
    except pglast.parser.ParseError:
        # A type name (mode 1) and the like.
        return []


def _body_statements(function: Function) -> list[Any]:
    if function.parsed_body is not None:
        return [function.parsed_body]
    return [raw.stmt for raw in pglast.parse_sql(function.body)]


def _function(text: str) -> Function:
    statement: Any = pglast.parse_sql(text)[0].stmt
    options = {option.defname: option for option in statement.options or ()}
    body = options["as"].arg[0].sval if "as" in options else ""
    returns_rows = statement.returnType is not None and statement.returnType.setof
    has_columns = any(
        parameter.mode.value in ("t", "o", "b") for parameter in statement.parameters or ()
    )
    search_path = next(
        (
            tuple(constant.val.sval for constant in option.arg.args)
            for option in statement.options or ()
            if option.defname == "set" and option.arg.name == "search_path" and option.arg.args
        ),
        None,
    )
    return Function(
        name=".".join(part.sval for part in statement.funcname),
        text=text,
        body=body,
        language=options["language"].arg.sval,
        volatility=options["volatility"].arg.sval if "volatility" in options else "volatile",
        definer="security" in options and bool(options["security"].arg.boolval),
        search_path=search_path,
        scalar=not (returns_rows or has_columns or statement.is_procedure),
        procedure=bool(statement.is_procedure),
        parsed_body=statement.sql_body,
    )
