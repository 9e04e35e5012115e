"""The objects that the functions folder declares, in an order in which they can be created."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from gradient.db.source import Kind, SourceError, SqlFile, Statement

_ORDER = (Kind.FUNCTION, Kind.VIEW, Kind.TRIGGER)
_NAMES = re.compile(r"\b[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*\b")
_QUOTED_BODY = re.compile(r"(\$(?:\w*)\$).*\1", re.DOTALL)


@dataclass
class Unit:
    """Everything that makes one named object: a function's overloads, one view, one trigger."""

    kind: Kind
    name: str
    file: SqlFile
    statements: list[Statement] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What creates it, its statements in the order of the file."""
        return ";\n\n".join(statement.text for statement in self.statements)

    @property
    def sha256(self) -> str:
        """The checksum of that text: what decides whether the object has to be touched."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def units(files: Iterable[SqlFile]) -> list[Unit]:
    """Every object of the folder, each after those that it needs when it is created.

    A quoted body is read when it is called, so only what stands outside of one orders
    a function: parsed bodies (BEGIN ATOMIC), defaults, row types of views. Raises
    SourceError when objects need each other.
    """
    found: dict[tuple[Kind, str], Unit] = {}
    for file in files:
        for statement in file.statements:
            if statement.kind is not Kind.COMMENT:
                key = (statement.kind, statement.name)
                found.setdefault(key, Unit(*key, file)).statements.append(statement)
    listed = sorted(found.values(), key=lambda unit: (_ORDER.index(unit.kind), unit.file.path))
    by_name = {unit.name: number for number, unit in enumerate(listed)}
    graph: TopologicalSorter[int] = TopologicalSorter()
    for number, unit in enumerate(listed):
        needed = {by_name[name] for name in _named(unit) if name in by_name} - {number}
        graph.add(number, *sorted(needed))
    try:
        return [listed[number] for number in graph.static_order()]
    except CycleError as error:
        names = " -> ".join(listed[number].name for number in error.args[1])
        raise SourceError(f"these objects need each other: {names}") from error


def _named(unit: Unit) -> set[str]:
    text = " ".join(_QUOTED_BODY.sub(" ", statement.text) for statement in unit.statements)
    return set(_NAMES.findall(text.lower()))
