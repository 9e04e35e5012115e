"""A person's mistake is one line and a hint, never a stack trace."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from gradient.cli.root import root
from tests.support.cli_commands import PROGRAM, Cli, commands

COMMANDS = dict(commands())

# What to type after each command so that nothing is missing.
ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("up",): ("--no-worker",),
    ("server",): (),
    ("db", "migrate"): (),
    ("db", "deploy"): (),
    ("db", "status"): (),
    ("db", "sql"): (),
    ("db", "verify"): (),
    ("doctor",): (),
    ("check",): (),
    ("project", "create"): ("acme",),
    ("project", "list"): (),
    ("project", "show"): ("acme",),
    ("project", "subscribe"): ("acme", "main"),
    ("project", "trust-key"): ("acme", "k-1:" + "A" * 43 + "="),
    ("task", "create"): ("acme/site", "--repository", "https://example.org/site.git"),
    ("task", "list"): (),
    ("task", "show"): ("acme/site",),
    ("cache", "create"): ("main",),
    ("cache", "list"): (),
    ("cache", "show"): ("main",),
    ("cache", "create-token"): ("main", "laptop"),
    ("worker-token", "create"): ("acme", "builder-1"),
    ("worker-token", "list"): (),
    ("eval", "start"): ("acme/site",),
    ("eval", "watch"): ("1",),
    ("eval", "list"): (),
    ("eval", "show"): ("1",),
    ("eval", "abort"): ("1",),
    ("eval", "retry"): ("1",),
    ("eval", "prioritize"): ("1",),
    ("build", "list"): (),
    ("build", "show"): ("1",),
    ("build", "log"): ("1",),
    ("build", "abort"): ("1", "1"),
    ("build", "retry"): ("1", "1"),
    ("build", "prioritize"): ("1",),
    ("queue",): (),
    ("workers",): (),
    ("setting", "list"): (),
    ("setting", "set"): ("worker_grace", "300"),
}
# db sql needs no database, doctor says so itself, watch and check have their own code for it.
UNREACHABLE = {("db", "sql"): 0, ("doctor",): 1, ("eval", "watch"): 3, ("check",): 3}
# Cron reads "could not run" from one code, a wrong option's too.
MISUSED: dict[tuple[str, ...], int] = {("check",): 3}


def words(command: tuple[str, ...]) -> str:
    return " ".join(command)


def test_every_command_is_tried_here() -> None:
    assert set(ARGUMENTS) == set(COMMANDS)


@pytest.mark.parametrize("command", ARGUMENTS, ids=words)
def test_without_a_database_a_command_says_so_and_what_to_do(
    no_database: Cli, command: tuple[str, ...]
) -> None:
    typed = no_database.type(*command, *ARGUMENTS[command])
    code = UNREACHABLE.get(command, 2)
    assert typed.code == code, typed
    if code in (2, 3):
        first, hint = typed.err.strip().splitlines()[-2:]
        assert first.startswith("error: cannot reach the database: ")
        assert hint.startswith("hint: ")


@pytest.mark.parametrize("command", ARGUMENTS, ids=words)
def test_an_option_that_does_not_exist_is_a_usage_error(
    no_database: Cli, command: tuple[str, ...]
) -> None:
    typed = no_database.type(*command, *ARGUMENTS[command], "--no-such-option")
    assert typed.code == MISUSED.get(command, 2)
    assert "No such option '--no-such-option'" in typed.err
    assert typed.out == ""


def examples(command: tuple[str, ...]) -> list[list[str]]:
    """The command lines that a command's help shows, without what the shell does around them."""
    text = inspect.cleandoc(COMMANDS[command].help or "")
    assert "\b\nExample" in text, "every command shows how it is typed"
    lines = text.split("\b\n")[1].replace("\\\n", " ").splitlines()[1:]
    shown = [re.split(r" [|>] ", line)[0].strip() for line in lines if line.strip()]
    return [shlex.split(re.sub(r"^[A-Z_]+=\S+ ", "", line)) for line in shown]


def parse(group: click.Group, name: str, arguments: list[str], parent: click.Context | None) -> str:
    """Parse a command line without running it; returns the name of the command it ends in."""
    ctx = group.make_context(name, arguments, parent=parent)
    found, command, rest = group.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
    assert command is not None
    if isinstance(command, click.Group):
        return f"{found} {parse(command, str(found), rest, ctx)}"
    command.make_context(found, rest, parent=ctx)
    return str(found)


@pytest.mark.parametrize("command", COMMANDS, ids=words)
def test_the_examples_of_the_help_are_command_lines_that_parse(command: tuple[str, ...]) -> None:
    shown = examples(command)
    parsed = []
    for program, *arguments in shown:
        assert program == "gradient"
        parsed.append(parse(root, program, arguments, None))
    assert words(command) in parsed


@pytest.mark.parametrize(
    "command",
    [name for name in ARGUMENTS if name[-1] in ("list", "show") or name[0] in ("queue", "workers")],
    ids=words,
)
def test_every_list_and_show_prints_json(command: tuple[str, ...]) -> None:
    names = {option for parameter in COMMANDS[command].params for option in parameter.opts}
    assert "--json" in names


@pytest.mark.parametrize(
    "typed, said",
    [
        (("eval", "start", "acme"), "is not of the form project/task"),
        (("eval", "show", "twelve"), "is not a valid integer"),
        (("eval", "list", "--status", "Nice"), "is not one of"),
        (("cache", "create", "main", "--max-nar-size", "much"), "is not a size"),
        (("nonsense",), "No such command 'nonsense'"),
    ],
)
def test_a_malformed_argument_is_named(no_database: Cli, typed: tuple[str, ...], said: str) -> None:
    result = no_database.type(*typed)
    assert result.code == 2
    assert said in result.err


@pytest.mark.parametrize(
    "typed, said",
    [
        (("project", "show", "nobody"), "there is no project nobody"),
        (("cache", "show", "nothing"), "there is no cache nothing"),
        (("task", "show", "acme/site"), "there is no task acme/site"),
        (("eval", "show", "4711"), "there is no evaluation 4711"),
        (("eval", "start", "acme/site"), "There is no project 'acme'"),
        (("eval", "abort", "4711"), "There is no evaluation 4711"),
        (("build", "show", "4711"), "There is no build '4711'"),
        (("build", "log", "default@4711"), "There is no evaluation 4711"),
        (("build", "log", "default@acme/site"), "neither an evaluation's id nor a task"),
        (("project", "create", "Not A Name"), "cannot be named"),
        (("project", "trust-key", "acme", "nonsense"), "is not a public key"),
        (("setting", "set", "no_such", "1"), 'There is no setting "no_such"'),
        (("setting", "set", "worker_grace", "soon"), "is no value for the setting"),
    ],
)
def test_what_is_refused_is_said_in_one_red_line(
    cli: Cli, typed: tuple[str, ...], said: str
) -> None:
    result = cli.type(*typed)
    assert result.code == 1, result
    assert result.out == ""
    first = result.err.splitlines()[0]
    assert first.startswith("error: ")
    assert said in first


def test_a_database_that_was_never_migrated_is_told_apart(
    no_database: Cli, empty_db: object
) -> None:
    cli = Cli(empty_db.dsn, no_database.state)  # type: ignore[attr-defined]
    typed = cli.type("project", "list")
    assert typed.code == 2
    assert "gradient db migrate" in typed.err


def test_an_embedded_database_that_does_not_run_is_told_apart(tmp_path: Path) -> None:
    typed = Cli("", tmp_path / "state").type("project", "list")
    assert typed.code == 2
    assert "the embedded one does not run" in typed.err
    assert "gradient up" in typed.err


def test_a_wrong_configuration_names_the_key_and_its_source(no_database: Cli) -> None:
    done = subprocess.run(
        [PROGRAM, "project", "list"],
        env={**no_database.environment, "GRADIENT_LISTEN_PORT": "many"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: listen.port (GRADIENT_LISTEN_PORT): ")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    done = subprocess.run(
        f"'{PROGRAM}' db sql | head -n 1",
        shell=True,
        env=cli.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_control_characters_of_others_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.ok("project", "create", "acme", "--display-name", "red \x1b[31malert\x07")
    typed = cli.ok("project", "list")
    assert "red alert" in typed.out
    assert "\x1b" not in typed.out
