"""`gradient eval`: started, watched to the verdict, listed, aborted."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.cli_commands import PROGRAM, Cli
from tests.support.graph_builder import derivation as drv
from tests.support.graph_world import World
from tests.support.waiting import wait_until


@pytest.fixture
def task(cli: Cli) -> str:
    cli.ok("cache", "create", "main")
    cli.ok("project", "create", "acme", "--cache", "main")
    cli.ok("task", "create", "acme/site", "--repository", "https://example.org/site.git")
    return "acme/site"


def test_start_queues_an_evaluation_of_what_it_was_given(cli: Cli, task: str) -> None:
    number = cli.ok("eval", "start", task, "--revision", "v1", "--wildcard", "a.*", "--json").json()
    [row] = cli.ok("eval", "list", "--json").json()
    assert row["id"] == number["id"]
    assert (row["status"], row["revision"], row["wildcard"]) == ("Queued", "v1", "a.*")


def test_lists_are_narrowed_by_task_and_status(cli: Cli, task: str) -> None:
    cli.ok("task", "create", "acme/other", "--repository", "https://example.org/o.git")
    first = cli.ok("eval", "start", task, "--json").json()["id"]
    second = cli.ok("eval", "start", "acme/other", "--json").json()["id"]
    cli.ok("eval", "abort", str(second))
    assert [row["id"] for row in cli.ok("eval", "list", "--json").json()] == [second, first]
    listed = cli.ok("eval", "list", "--task", task, "--json").json()
    assert [row["id"] for row in listed] == [first]
    aborted = cli.ok("eval", "list", "--status", "aborted", "--json").json()
    assert [row["id"] for row in aborted] == [second]


def test_watching_a_success_ends_with_0_and_names_what_was_built(cli: Cli, world: World) -> None:
    lower = drv("lower")
    upper = drv("upper", lower)
    evaluation = world.evaluate(lower, upper, entry_points=[upper])
    world.run(lower)
    world.run(upper)
    typed = cli.ok("eval", "watch", str(evaluation))
    lines = typed.out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("Completed")] == [
        ["Completed", "lower"],
        ["Completed", "upper"],
    ]
    assert lines[-2].startswith(f"evaluation {evaluation} Completed after ")
    assert lines[-2].endswith(": 2 Completed")


def test_watching_a_failure_ends_with_1_and_names_the_culprit(cli: Cli, world: World) -> None:
    culprit = drv("culprit")
    victim = drv("victim", culprit)
    bystander = drv("bystander")
    evaluation = world.evaluate(culprit, victim, bystander, entry_points=[victim, bystander])
    world.fail(culprit, message="the compiler said no")
    world.run(bystander)
    typed = cli.type("eval", "watch", str(evaluation))
    assert typed.code == 1
    assert f"needs culprit (build {world.id(culprit)})" in typed.out
    assert "the compiler said no" in typed.out
    assert f"gradient build log {world.id(culprit)}" in typed.out
    [verdict] = [line for line in typed.out.splitlines() if " Failed after " in line]
    assert sorted(verdict.partition(": ")[2].split(", ")) == [
        "1 Completed",
        "1 DependencyFailed",
        "1 FailedPermanent",
    ]


def test_watching_an_aborted_evaluation_ends_with_2(cli: Cli, task: str) -> None:
    number = str(cli.ok("eval", "start", task, "--json").json()["id"])
    cli.ok("eval", "abort", number)
    assert cli.type("eval", "watch", number).code == 2


def test_watching_what_is_not_there_ends_with_3(cli: Cli) -> None:
    typed = cli.type("eval", "watch", "4711")
    assert (typed.code, typed.out) == (3, "")
    assert typed.err.startswith("error: There is no evaluation 4711")


def test_the_messages_of_an_evaluation_are_shown_with_their_attribute(
    cli: Cli, world: World
) -> None:
    evaluation = world.start_walk()
    message = {"level": "error", "message": "attribute is broken", "attribute": "packages.bad"}
    world.record(evaluation, [], [], [message])
    world.complete_walk(evaluation)
    typed = cli.type("eval", "watch", str(evaluation))
    assert typed.code == 1
    assert "Error packages.bad: attribute is broken" in typed.out
    assert "attribute is broken" in cli.ok("eval", "show", str(evaluation)).out


def test_watch_as_json_prints_the_final_state_alone(cli: Cli, world: World) -> None:
    only = drv("only")
    evaluation = world.evaluate(only)
    world.run(only)
    final = cli.ok("eval", "watch", str(evaluation), "--json").json()
    assert final["verdict"] == "Completed"
    assert final["builds"] == {"Completed": 1}


def test_show_counts_the_builds_by_status(cli: Cli, world: World) -> None:
    lower = drv("lower")
    upper = drv("upper", lower)
    evaluation = world.evaluate(lower, upper, entry_points=[upper])
    shown = cli.ok("eval", "show", str(evaluation), "--json").json()
    assert shown["builds_by_status"] == {"Queued": 1, "Created": 1}
    assert [point["attribute"] for point in shown["entry_points"]] == ["upper"]
    assert "1 Queued" in cli.ok("eval", "show", str(evaluation)).out


def test_a_running_evaluation_is_followed_to_its_end(
    cli: Cli, world: World, tmp_path: Path
) -> None:
    only = drv("only")
    evaluation = world.evaluate(only)
    log = tmp_path / "watch.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [PROGRAM, "eval", "watch", str(evaluation)], env=cli.environment, stdout=out
        )
    try:
        wait_until(lambda: "building 1 derivations" in log.read_text(), 30, "the first line")
        world.run(only)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert "Completed        only" in log.read_text()


def test_ctrl_c_ends_the_watching_and_not_the_evaluation(
    cli: Cli, world: World, tmp_path: Path
) -> None:
    evaluation = world.evaluate(drv("only"))
    log = tmp_path / "watch.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [PROGRAM, "eval", "watch", str(evaluation)],
            env=cli.environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            # A shell lets what it starts in the background ignore the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        wait_until(lambda: "building 1 derivations" in log.read_text(), 30, "the first line")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 3
    finally:
        process.kill()
        process.wait()
    assert f"evaluation {evaluation} goes on" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert world.evaluation_status(evaluation) == "Building"
