"""`gradient doctor`: each thing that is wrong is named, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_commands import Cli, Typed
from tests.support.database import Database
from tests.support.graph_world import World


def finding(typed: Typed, check: str) -> dict[str, Any]:
    """The first finding of a check."""
    found: dict[str, Any] = next(item for item in typed.json() if item["check"] == check)
    return found


def test_a_sound_installation_passes_with_every_check_made(cli: Cli) -> None:
    cli.ok("cache", "create", "main")
    typed = cli.ok("doctor", "--json")
    states = {item["check"]: item["state"] for item in typed.json()}
    for check in (
        *("configuration", "secret", "object store", "database", "lock table"),
        *("migrations", "functions", "roles", "cache keys"),
    ):
        assert states[check] == "ok", typed.out


def test_people_read_a_line_a_check_and_the_advice_below_it(cli: Cli) -> None:
    lines = cli.ok("doctor").out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("warn  servers: "))
    assert "gradient server" in lines[place + 1]


def test_a_database_that_does_not_answer_fails(no_database: Cli) -> None:
    typed = no_database.type("doctor", "--json")
    assert typed.code == 1
    assert finding(typed, "database")["state"] == "fail"
    assert finding(typed, "object store")["state"] == "ok"


def test_missing_migrations_fail(empty_db: Database, tmp_path: Path) -> None:
    typed = Cli(empty_db.dsn, tmp_path).type("doctor", "--json")
    assert typed.code == 1
    migrations = finding(typed, "migrations")
    assert (migrations["state"], migrations["advice"]) == ("fail", "gradient db migrate")


def test_a_function_changed_by_hand_fails(cli: Cli, clean_db: Database) -> None:
    clean_db.connect().execute("drop function gradient.kick(text) cascade")
    typed = cli.type("doctor", "--json")
    assert typed.code == 1
    assert "gradient.kick(text)" in finding(typed, "functions")["found"]


def test_an_object_store_that_cannot_be_written_fails(cli: Cli, tmp_path: Path) -> None:
    cli.state.mkdir()
    (cli.state / "objects").write_text("a file where the folder should be")
    typed = cli.type("doctor", "--json")
    assert typed.code == 1
    assert finding(typed, "object store")["state"] == "fail"


def test_another_secret_than_the_one_of_the_keys_fails(cli: Cli) -> None:
    cli.ok("cache", "create", "main")
    (cli.state / "secret").unlink()
    assert finding(cli.type("doctor", "--json"), "cache keys")["state"] == "fail"
    other = Cli(cli.dsn, cli.state.with_name("other"))
    other.ok("cache", "create", "second")
    (other.state / "secret").rename(cli.state / "secret")
    typed = cli.type("doctor", "--json")
    assert typed.code == 1
    assert "cache:main" in finding(typed, "cache keys")["found"]


def test_a_secret_that_others_can_read_is_a_warning(cli: Cli) -> None:
    cli.ok("cache", "create", "main")
    (cli.state / "secret").chmod(0o644)
    assert finding(cli.ok("doctor", "--json"), "secret")["state"] == "warn"


def test_a_setting_that_is_off_is_named_with_the_statement_that_mends_it(
    cli: Cli, clean_db: Database
) -> None:
    clean_db.connect().execute(f'alter database "{clean_db.name}" set jit = on')
    typed = cli.ok("doctor", "--json")
    settings = finding(typed, "settings")
    assert settings["state"] == "warn"
    assert f"alter database {clean_db.name} set jit = 'off'" in settings["advice"]


@pytest.mark.parametrize("connected", [True, False])
def test_workers_are_listed_with_their_version_and_systems(
    cli: Cli, world: World, connected: bool
) -> None:
    if connected:
        world.worker("w1")
        assert finding(cli.ok("doctor", "--json"), "worker")["found"] == "w1: 1, x86_64-linux"
    else:
        assert finding(cli.ok("doctor", "--json"), "workers")["state"] == "warn"
