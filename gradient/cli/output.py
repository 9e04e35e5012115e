"""What the commands print: tables and details for people, JSON for programs.

A terminal gets colour and tables that fit it; a pipe gets plain lines that are never cut. Text
that came from a repository or a builder is stripped of control characters, so that it cannot
drive the reader's terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

# Wider than any line we print: what is not a terminal must not be wrapped or cut.
_UNBOUNDED = 10_000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_STYLES = {
    "Completed": "green",
    "Substituted": "green",
    "Built": "green",
    "ok": "green",
    "Building": "cyan",
    "Running": "cyan",
    "Fetching": "cyan",
    "EvaluatingFlake": "cyan",
    "EvaluatingDerivation": "cyan",
    "Queued": "blue",
    "Waiting": "yellow",
    "Aborted": "yellow",
    "FailedTransient": "yellow",
    "Notice": "blue",
    "Warning": "yellow",
    "warn": "yellow",
    "Failed": "red",
    "FailedPermanent": "red",
    "FailedTimeout": "red",
    "DependencyFailed": "red",
    "Error": "red",
    "fail": "red",
}


def console(*, err: bool = False) -> Console:
    """A console on standard output (or error) as it is right now."""
    stream = sys.stderr if err else sys.stdout
    return Console(
        file=stream,
        width=None if stream.isatty() else _UNBOUNDED,
        highlight=False,
        emoji=False,
        markup=False,
    )


def clean(text: str) -> str:
    """The text without control characters, line ends and tabs excepted."""
    return _CONTROL.sub("", text)


def status_text(status: object) -> Text:
    """A status with its colour."""
    text = "" if status is None else clean(str(status))
    return Text(text, style=_STYLES.get(text, ""))


def age(value: datetime | None) -> Text:
    """How long ago a time was: `12s`, `5m`, `3h`, `2d`."""
    if value is None:
        return Text("-", style="dim")
    return Text(duration((datetime.now(UTC) - value).total_seconds()) + " ago")


def duration(seconds: float | None) -> str:
    """A length of time with its largest two units: `0.4s`, `1m 05s`, `2h 10m`, `3d 4h`."""
    if seconds is None:
        return "-"
    seconds = max(0.0, float(seconds))
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def size(count: int | None) -> str:
    """A number of bytes: `512 B`, `1.5 MiB`."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def cell(value: Any) -> Text:
    """Any value as the text of a table cell."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, datetime):
        return Text(value.astimezone().strftime("%Y-%m-%d %H:%M:%S"))
    if isinstance(value, list | tuple):
        return Text(" ".join(clean(str(item)) for item in value) or "-")
    if isinstance(value, dict):
        return Text(clean(msgspec.json.encode(value, enc_hook=_plain).decode()))
    return Text(clean(str(value)))


@dataclass(frozen=True)
class Column:
    """One column of a table: its heading, the key of the row, and how the value is shown."""

    heading: str
    key: str
    show: Callable[[Any], Text | str] = cell
    right: bool = False

    def text(self, row: Row) -> Text:
        """The cell of this column in `row`."""
        shown = self.show(row.get(self.key))
        return shown if isinstance(shown, Text) else Text(shown)


def print_table(rows: Sequence[Row], columns: Sequence[Column], *, empty: str) -> None:
    """Print rows as a table; `empty` is the sentence for no rows at all."""
    out = console()
    if not rows:
        out.print(Text(empty, style="dim"))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=not out.is_terminal,
        )
    for row in rows:
        table.add_row(*(column.text(row) for column in columns))
    out.print(table)


def print_details(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print one thing as lines of name and value; values of None are left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            table.add_row(Text(name), cell(value))
    console().print(table)


def print_json(value: Any) -> None:
    """Print a value as JSON, indented, with times as RFC 3339."""
    encoded = msgspec.json.encode(value, enc_hook=_plain)
    click.echo(msgspec.json.format(encoded, indent=2).decode())


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def say(text: str, *, style: str = "") -> None:
    """Print one line for a person on standard output."""
    console().print(Text(clean(text), style=style), soft_wrap=True)


def note(text: str, *, style: str = "dim") -> None:
    """Print one line for a person on standard error, out of the way of what is piped on."""
    console(err=True).print(Text(clean(text), style=style), soft_wrap=True)


def complain(message: str, *, detail: str = "", hint: str = "") -> None:
    """Print an error: one red line, then what was found and what to do."""
    err = console(err=True)
    first, *rest = clean(message).strip().splitlines() or [""]
    err.print(Text.assemble(("error: ", "bold red"), (first, "red")), soft_wrap=True)
    for line in rest:
        err.print(Text(f"       {line}"), soft_wrap=True)
    if detail:
        err.print(Text(f"  {clean(detail)}", style="dim"), soft_wrap=True)
    if hint:
        err.print(Text.assemble(("hint: ", "bold"), clean(hint)), soft_wrap=True)
