"""The SQL of this project as files: where it lies and what each file declares.

`sql/migrations` holds tables and types, `sql/functions` everything that is
deployed: functions, views, triggers and comments. A function file begins with a
comment that may carry two markers:

    -- Execute: server, operator     who may call what the file declares
    -- Family: <why>                 several functions in one file on purpose
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

SCHEMAS = ("gradient", "graph", "scheduler")
AUDIENCES = ("server", "operator", "reader")
DEFAULT_AUDIENCE = {"gradient": ("server", "operator"), "graph": (), "scheduler": ()}


class SourceError(Exception):
    """A file of the SQL folder breaks a rule of the loader; the text names file and rule."""


class Kind(StrEnum):
    """What a deployed statement makes."""

    FUNCTION = "function"
    VIEW = "view"
    TRIGGER = "trigger"
    COMMENT = "comment"


@dataclass(frozen=True)
class Statement:
    """One statement of a function file.

    `name` is schema-qualified; for a trigger it is `schema.table.trigger`, for a
    comment it is empty. `text` is ready to run: CREATE is CREATE OR REPLACE.
    """

    kind: Kind
    name: str
    text: str


@dataclass(frozen=True)
class SqlFile:
    """One file of `sql/functions`: its path below that folder and what it declares."""

    path: str
    text: str
    statements: tuple[Statement, ...]
    audience: tuple[str, ...] | None
    family: bool

    @property
    def sha256(self) -> str:
        """The checksum of the whole file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def may_execute(self, name: str) -> tuple[str, ...]:
        """The audiences that may call `name`: the file's marker or the schema's default."""
        if self.audience is not None:
            return self.audience
        return DEFAULT_AUDIENCE[name.split(".", 1)[0]]


def sql_root() -> Path:
    """The SQL folder of the installed package, or of the checkout this file lies in."""
    packaged = Path(str(resources.files("gradient"))) / "_sql"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "sql"


def read_functions(root: Path) -> list[SqlFile]:
    """Every function file below `root`/functions, by path. Raises SourceError."""
    folder = root / "functions"
    files = [
        read_file(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.sql"))
    ]
    declared: dict[tuple[Kind, str], str] = {}
    for file in files:
        for statement in file.statements:
            if statement.kind is Kind.COMMENT:
                continue
            other = declared.setdefault((statement.kind, statement.name), file.path)
            if other != file.path:
                raise SourceError(
                    f"{file.path}: {statement.kind} {statement.name} is declared in {other} too; "
                    "put all its overloads into one file"
                )
    return files


# Comments, strings and dollar-quoted bodies: what may hold words that are not ours to read.
_OPAQUE = re.compile(
    r"""
      --[^\n]*
    | /\*.*?\*/
    | \b[eE]'(?:[^'\\]|''|\\.)*'
    | '(?:[^']|'')*'
    | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag)
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = r"([a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*)"
_HEADS = {
    Kind.FUNCTION: re.compile(rf"create\s+(or\s+replace\s+)?(?:function|procedure)\s+{_NAME}"),
    Kind.VIEW: re.compile(rf"create\s+(or\s+replace\s+)?view\s+{_NAME}"),
    Kind.TRIGGER: re.compile(
        rf"create\s+(or\s+replace\s+)?trigger\s+([a-z_][a-z0-9_]*)\b.*?\bon\s+{_NAME}", re.DOTALL
    ),
    Kind.COMMENT: re.compile(r"comment\s+on\s"),
}
_MARKER = re.compile(r"^--\s*(Execute|Family):\s*(.*?)\s*$", re.MULTILINE)


def _blank(text: str) -> str:
    """The text with everything opaque replaced by blanks of the same length, in lower case."""
    return _close_atomic(
        _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text).lower()
    )


def _close_atomic(blanked: str) -> str:
    """Blank the semicolons inside BEGIN ATOMIC … END, which end no statement of the file."""
    start = 0
    while match := re.compile(r"\bbegin\s+atomic\b").search(blanked, start):
        depth = 1
        start = len(blanked)
        for word in re.compile(r"\b(begin|case|end)\b").finditer(blanked, match.end()):
            depth += -1 if word.group() == "end" else 1
            if depth == 0:
                start = word.end()
                break
        body = blanked[match.end() : start].replace(";", " ")
        blanked = blanked[: match.end()] + body + blanked[start:]
    return blanked


def read_file(path: str, text: str) -> SqlFile:
    """Read one function file: its header markers and its statements. Raises SourceError."""
    header = text[: len(text) - len(re.sub(r"\A(?:--[^\n]*(?:\n|\Z)|\s)*", "", text))]
    markers = dict(_MARKER.findall(header))
    return SqlFile(
        path=path,
        text=text,
        statements=tuple(_statements(path, text)),
        audience=_audience(path, markers.get("Execute")),
        family="Family" in markers,
    )


def _audience(path: str, marker: str | None) -> tuple[str, ...] | None:
    if marker is None:
        return None
    words = [word.strip() for word in marker.rstrip(".").split(",")]
    if words in (["none"], ["owner"]):
        return ()
    unknown = [word for word in words if word not in AUDIENCES]
    if unknown:
        raise SourceError(
            f"{path}: '-- Execute: {marker}' names {', '.join(map(repr, unknown))}; "
            f"known are {', '.join(AUDIENCES)} and none"
        )
    return tuple(audience for audience in AUDIENCES if audience in words)


def _statements(path: str, text: str) -> Iterator[Statement]:
    blanked = _blank(text)
    start = 0
    for end in [match.start() for match in re.finditer(";", blanked)] + [len(blanked)]:
        head = blanked[start:end]
        if head.strip():
            offset = start + len(head) - len(head.lstrip())
            yield _statement(path, head.strip(), text[offset:end].rstrip())
        start = end + 1


def _statement(path: str, head: str, text: str) -> Statement:
    for kind, pattern in _HEADS.items():
        match = pattern.match(head)
        if match is None:
            continue
        if kind is Kind.COMMENT:
            return Statement(kind, "", text)
        replaceable = text if match.group(1) else re.sub(r"\A\w+", "create or replace", text)
        if kind is Kind.TRIGGER:
            return Statement(kind, f"{match.group(3)}.{match.group(2)}", replaceable)
        schema = match.group(2).split(".")[0]
        if schema not in SCHEMAS:
            raise SourceError(f"{path}: {match.group(2)} is outside {', '.join(SCHEMAS)}")
        return Statement(kind, match.group(2), replaceable)
    raise SourceError(
        f"{path}: '{head[:60]}' is not allowed here; a function file holds CREATE FUNCTION, "
        "PROCEDURE, VIEW and TRIGGER with schema-qualified lower-case names, and COMMENT"
    )
