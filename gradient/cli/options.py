"""Options and argument types that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(function: Function) -> Function:
    """Add `--json`: the rows as the view has them, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


@dataclass(frozen=True)
class TaskName:
    """A task and the project that it belongs to, typed as `project/task`."""

    project: str
    task: str

    def __str__(self) -> str:
        return f"{self.project}/{self.task}"


class TaskNameType(click.ParamType[TaskName]):
    """`project/task` on the command line."""

    name = "project/task"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> TaskName:
        """Split the two names."""
        if isinstance(value, TaskName):
            return value
        project, slash, task = str(value).partition("/")
        if not slash or not project or not task or "/" in task:
            self.fail(f"{value!r} is not of the form project/task, like acme/site", param, ctx)
        return TaskName(project, task)


_BYTES = re.compile(r"(\d+)\s*([KMGT]i?B?|B)?", re.IGNORECASE)


class SizeType(click.ParamType[int]):
    """A number of bytes, with a unit if need be: `500M`, `16GiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; K, M, G and T are powers of 1024."""
        if isinstance(value, int):
            return value
        match = _BYTES.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; write 500M or 16GiB", param, ctx)
        unit = (match.group(2) or "B")[0].upper()
        factor: int = 1024 ** "BKMGT".index(unit)
        return int(match.group(1)) * factor
