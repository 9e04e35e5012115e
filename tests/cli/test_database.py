"""`gradient db`: from an empty database to this version, and what differs from it."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli_commands import Cli
from tests.support.database import Database


def test_status_names_what_is_missing_and_migrate_applies_it(
    empty_db: Database, tmp_path: Path
) -> None:
    cli = Cli(empty_db.dsn, tmp_path)
    before = cli.type("db", "status", "--json")
    assert before.code == 1
    assert [item["applied"] for item in before.json()] == [False] * len(before.json())
    made = cli.ok("db", "migrate", "--json").json()
    assert made["migrations"] == [item["migration"] for item in before.json()]
    assert made["deployed"] is True
    after = cli.ok("db", "status", "--json").json()
    assert all(item["applied"] for item in after)
    assert cli.ok("db", "migrate").out == "up to date\n"


def test_verify_finds_what_was_changed_by_hand_and_deploy_repairs_it(
    cli: Cli, clean_db: Database
) -> None:
    cli.ok("db", "verify")
    clean_db.connect().execute("drop function gradient.kick(text) cascade")
    found = cli.type("db", "verify")
    assert found.code == 1
    assert "gradient.kick(text)" in found.out
    assert "missing from the database" in found.out
    cli.ok("db", "deploy", "--force")
    assert cli.ok("db", "verify", "--json").json()["drift"] == []


def test_the_printed_script_holds_the_functions_and_needs_no_database(no_database: Cli) -> None:
    script = no_database.ok("db", "sql").out
    assert "gradient.start_evaluation(" in script
    assert "graph.record(" in script


def test_a_database_of_a_newer_version_is_refused_in_words(cli: Cli, clean_db: Database) -> None:
    clean_db.connect().execute(
        "insert into gradient_migration._yoyo_migration"
        " (migration_hash, migration_id, applied_at_utc) values ('x', '9999.future', now())"
    )
    for command in (("db", "migrate"), ("server", "--port", "0")):
        typed = cli.type(*command)
        assert typed.code == 2, typed
        [error] = [line for line in typed.err.splitlines() if line.startswith("error: ")]
        assert "9999.future" in error
    assert "9999.future" in cli.type("doctor").out
