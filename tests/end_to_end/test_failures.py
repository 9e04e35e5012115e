"""What fails is told to the person, by name and reason, and takes nothing else with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.e2e_flake import Drv, Repository, flake_text
from tests.support.e2e_world import World

pytestmark = [pytest.mark.nix, pytest.mark.slow, pytest.mark.timeout(400)]


def leftovers(word: str) -> list[str]:
    """Command lines of living processes that hold the word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if word in line and "pytest" not in line:
                found.append(line)
    return found


def graph_rows(world: World) -> tuple[object, ...]:
    """How much graph there is."""
    return world.row(
        "select (select count(*) from gradient.derivation),"
        " (select count(*) from gradient.derivation_build),"
        " (select count(*) from gradient.build_job)"
    )


def test_a_failing_derivation_fails_what_needs_it_and_nothing_else(
    world: World, repository: Repository
) -> None:
    repository.commit_drvs(
        [
            Drv("good-input", entry=False),
            Drv("broken", "echo the compiler says no; cat ${good-input}; exit 3", entry=False),
            Drv("above", "cat ${broken} > $out", entry=False),
            Drv("top", "cat ${above} > $out"),
            Drv("beside", "cat ${good-input} > $out"),
        ]
    )
    world.project()
    task = world.task(repository.url)
    world.worker("w1")
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 1
    builds = world.builds(evaluation)
    assert {name: build["status"] for name, build in builds.items()} == {
        "good-input": "Completed",
        "broken": "FailedPermanent",
        "above": "DependencyFailed",
        "top": "DependencyFailed",
        "beside": "Completed",
    }
    failed = world.row(
        "select a.id, a.outcome_class from gradient.build_attempt a"
        " join gradient.derivation d on d.id = a.derivation_build where d.name = 'broken'"
    )
    assert failed[1] == "builder_failed"
    for name in ("above", "top"):
        assert world.row(
            "select b.failed_by from gradient.derivation_build b"
            " join gradient.derivation d on d.id = b.derivation where d.name = %s",
            name,
        ) == (failed[0],)
    log = world.gradient("build", "log", str(builds["broken"]["id"]))
    assert log.out == "the compiler says no\nbuilt\n"
    world.check()


def test_time_and_silence_limits_end_a_build_with_their_reason_and_leave_no_process(
    world: World, repository: Repository
) -> None:
    word = "31.2718281828"
    repository.commit_drvs(
        [
            Drv(
                "too-long",
                f"while :; do echo on; sleep 0.2; done & sleep {word}; echo > $out",
                attributes={"timeout": "3"},
            ),
            Drv("too-silent", f"sleep {word}; echo > $out", attributes={"maxSilent": "3"}),
        ]
    )
    world.project()
    task = world.task(repository.url)
    world.worker("w1")
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 1
    statuses = {name: build["status"] for name, build in world.builds(evaluation).items()}
    assert statuses == {"too-long": "FailedTimeout", "too-silent": "FailedTimeout"}
    found = world.conn.execute(
        "select d.name, k.shown, extract(epoch from a.build_finished_at - a.build_started_at)"
        " from gradient.build_attempt a"
        " join gradient.outcome_class k on k.name = a.outcome_class"
        " join gradient.derivation d on d.id = a.derivation_build"
    ).fetchall()
    assert {name: shown for name, shown, _ in found} == {
        "too-long": "total",
        "too-silent": "silent",
    }
    for name, _, seconds in found:
        # Both ends are the times at which the reports arrived.
        assert 2.5 <= seconds < 5, (name, seconds)
    assert leftovers(word) == []
    world.check()


def test_fifty_mebibytes_of_log_can_be_read_in_full_while_the_server_stays_small(
    world: World, repository: Repository
) -> None:
    line = "0123456789abcdef" * 64
    count = 50 * 1024 * 1024 // (len(line) + 1) + 1
    repository.commit_drvs(
        [Drv("chatty", f"yes {line} 2> /dev/null | head -n {count}; echo the end; echo > $out")]
    )
    world.project()
    task = world.task(repository.url)
    world.worker("w1")
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 0
    builds = world.builds(evaluation)
    log = world.gradient("build", "log", str(builds["chatty"]["id"])).out
    assert len(log) > 50 * 1024 * 1024
    assert log == f"{line}\n" * count + "the end\n"
    assert world.server is not None
    status = Path(f"/proc/{world.server.pid}/status").read_text()
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert peak is not None
    assert int(peak[1]) < 300 * 1024
    world.check()


BROKEN_FLAKES = {
    "does not parse": ({"flake.nix": "{ outputs = { self }: { packages = ; }; }"}, "syntax error"),
    "has inputs and no lock": (
        {"flake.nix": '{ inputs.other.url = "path:/nowhere"; outputs = { self, other }: { }; }'},
        "no flake.lock",
    ),
    "has no flake": ({"readme": "nothing"}, "no flake.nix"),
    "matches nothing": (
        {"flake.nix": flake_text([Drv("one")])},
        "matches nothing|no derivation matches",
    ),
}


def test_bad_input_fails_the_evaluation_with_its_message_and_changes_no_graph(
    world: World, repository: Repository, tmp_path: Path
) -> None:
    world.project()
    world.worker("w1")
    task = world.task(repository.url)

    def refused(name: str, task: str, options: tuple[str, ...], message: str) -> None:
        evaluation = world.evaluate(task, *options)
        assert world.watch(evaluation) == 1, name
        shown = world.gradient("eval", "show", str(evaluation))
        assert re.search(message, shown.out), (name, shown.out)
        assert world.row("select status from gradient.evaluation where id = %s", evaluation) == (
            "Failed",
        )

    for name, (files, message) in BROKEN_FLAKES.items():
        for old in ("flake.nix", "readme"):
            (repository.folder / old).unlink(missing_ok=True)
        options: tuple[str, ...] = ("--revision", repository.commit(files, name))
        if name == "matches nothing":
            options = (*options, "--wildcard", "packages.x86_64-linux.absent")
        refused(name, task, options, message)
    refused("unknown commit", task, ("--revision", "0123456789" * 4), "has no commit 0123456789")
    away = world.task((tmp_path / "nowhere").as_uri(), "main/away")
    refused("unknown repository", away, (), "cannot be read")
    assert graph_rows(world) == (0, 0, 0)
    # Nothing is in the way of the next good one.
    good = repository.commit_drvs([Drv("one")])
    evaluation = world.evaluate(task, "--revision", good)
    assert world.watch(evaluation) == 0
    world.check()


def test_a_bad_attribute_is_named_and_the_others_are_built(
    world: World, repository: Repository
) -> None:
    repository.commit_drvs(
        [Drv("fine"), Drv("fine-too")],
        extra='bad = throw "this one is broken"; worse = 1 + "x";',
    )
    world.project()
    task = world.task(repository.url)
    world.worker("w1")
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 1
    statuses = {name: build["status"] for name, build in world.builds(evaluation).items()}
    assert statuses == {"fine": "Completed", "fine-too": "Completed"}
    shown = world.gradient("eval", "show", str(evaluation)).out
    assert "packages.x86_64-linux.bad" in shown
    assert "this one is broken" in shown
    assert "packages.x86_64-linux.worse" in shown
    world.check()
