"""The command line in tests: every command there is, and a way to type one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from gradient.cli.root import root

PROGRAM = Path(sys.executable).with_name("gradient")


@dataclass(frozen=True)
class Typed:
    """What a command left: exit code, standard output as bytes and as text, standard error."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        """Standard output as text."""
        return self.raw.decode()

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.raw)


class Cli:
    """Types commands against one database, with a state folder of its own."""

    def __init__(self, dsn: str, state: Path) -> None:
        self.dsn = dsn
        self.state = state

    @property
    def environment(self) -> dict[str, str]:
        """What a process of the command line is given; nothing of this machine's own."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GRADIENT")}
        return {
            **kept,
            "GRADIENT_CONFIG": os.devnull,
            "GRADIENT_DATABASE_URL": self.dsn,
            "GRADIENT_STATE_DIR": str(self.state),
            "GRADIENT_INSTANCE": "cli-test",
            "GRADIENT_LISTEN_PORT": "0",
        }

    def type(self, *words: str) -> Typed:
        """Run a command in this process; an exception that is no exit fails the test."""
        runner = CliRunner(env={**dict.fromkeys(_ours()), **self.environment})
        result = runner.invoke(root, list(words), prog_name="gradient")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Typed(result.exit_code, result.stdout_bytes, result.stderr)

    def ok(self, *words: str) -> Typed:
        """Run a command that must succeed."""
        typed = self.type(*words)
        assert typed.code == 0, f"gradient {' '.join(words)}: {typed}"
        return typed


def _ours() -> list[str]:
    return [name for name in os.environ if name.startswith("GRADIENT")]


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that call it."""
    yield from _leaves(root, (), click.Context(root))


def _leaves(
    group: click.Group, words: tuple[str, ...], ctx: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from _leaves(command, (*words, name), click.Context(command, parent=ctx))
        else:
            yield (*words, name), command


def processes_naming(text: str) -> list[int]:
    """The living processes whose command line holds `text`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in line:
                found.append(int(folder.name))
    return found
