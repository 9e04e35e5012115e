"""`gradient check`, and the commands that stop, retry and hurry."""

from __future__ import annotations

import pytest

from tests.support.cli_commands import Cli
from tests.support.database import Database
from tests.support.graph_builder import derivation as drv
from tests.support.graph_world import World

LEAF = drv("leaf")
TOP = drv("top", LEAF)


def test_a_healthy_database_is_clean(cli: Cli, world: World) -> None:
    world.evaluate(LEAF, TOP)
    typed = cli.ok("check")
    assert typed.out.splitlines()[-1].startswith("clean")
    report = cli.ok("check", "--json").json()
    assert (report["drift"], report["violations"], report["complete"]) == (0, 0, True)


def test_what_was_repaired_ends_with_1_and_is_clean_the_next_time(cli: Cli, world: World) -> None:
    world.evaluate(LEAF, TOP)
    world.conn.execute("update gradient.derivation_build set blocking_deps = 5")
    typed = cli.type("check")
    assert typed.code == 1
    assert "2 values were wrong and have been repaired" in typed.out
    cli.ok("check")
    world.conn.execute("delete from gradient.drift")


def test_violations_that_are_left_end_with_2(cli: Cli, world: World) -> None:
    world.evaluate(LEAF)
    world.conn.execute("update gradient.derivation_build set retry_at = gradient.current_time()")
    typed = cli.type("check", "--json")
    assert typed.code == 2
    assert typed.json()["violations"] == 1
    assert "1 violations are left" in cli.type("check").out
    world.conn.execute("update gradient.derivation_build set retry_at = null")


def test_a_check_that_cannot_run_ends_with_3(
    cli: Cli, no_database: Cli, clean_db: Database
) -> None:
    assert no_database.type("check").code == 3
    assert cli.type("check", "--budget", "never").code == 3
    clean_db.connect().execute("select pg_advisory_lock(647, 0)")
    typed = cli.type("check", "--json")
    assert (typed.code, typed.raw) == (3, b"")
    assert "another consistency check runs" in typed.err


def test_the_budget_is_seconds(cli: Cli, world: World) -> None:
    world.conn.execute("select gradient.set('check.budget', '0')")
    typed = cli.ok("check")
    assert "stopped after" in typed.out
    assert cli.ok("check", "--budget", "600", "--json").json()["complete"]


def test_a_build_is_aborted_and_tried_again(cli: Cli, world: World) -> None:
    evaluation = str(world.evaluate(LEAF, TOP))
    assert cli.ok("build", "abort", evaluation, LEAF.drv, "--json").json() == {
        "id": world.id(LEAF),
        "evaluation": int(evaluation),
        "status": "Aborted",
        "dependents": 1,
    }
    typed = cli.ok("build", "retry", evaluation, LEAF.drv)
    assert "2 builds came back" in typed.out
    assert f"gradient eval watch {evaluation}" in typed.out
    assert world.status(LEAF) == "Queued"
    assert "2 builds in all" in cli.ok("build", "prioritize", TOP.drv).out


def test_an_evaluation_is_tried_again(cli: Cli, world: World) -> None:
    evaluation = str(world.evaluate(LEAF, TOP))
    assert "1 of its builds are ready" in cli.ok("eval", "prioritize", evaluation).out
    world.fail(LEAF)
    report = cli.ok("eval", "retry", evaluation, "--json").json()
    assert report == {"id": int(evaluation), "status": "Building", "builds": 2}


@pytest.mark.parametrize("words", [("eval", "retry"), ("eval", "prioritize")])
def test_a_refusal_says_why_and_what_to_do(cli: Cli, world: World, words: tuple[str, str]) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    typed = cli.type(*words, str(evaluation))
    assert typed.code == 1
    assert "EvaluationFinished: it is Completed." in typed.err
