"""`gradient build`: found by any of its names, listed, its log read byte for byte."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gradient.cache.objects import ObjectStore, put_log
from tests.support.cli_commands import PROGRAM, Cli
from tests.support.graph_builder import derivation as drv
from tests.support.graph_world import World
from tests.support.waiting import wait_until

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def append_log(cli: Cli, world: World, job: str, pieces: list[bytes], start: int = 0) -> None:
    """What a server does with the log frames of a running build."""
    store = ObjectStore((cli.state / "objects").as_uri())
    assignment, worker = world.assignment(job)
    for piece in pieces:
        stored = zstd.compress(piece)
        report = world.message(
            "select graph.append_log(%s, %s, %s::bigint, %s, %s, %s)",
            assignment,
            worker,
            start,
            len(piece),
            piece.count(b"\n"),
            len(stored),
        )
        asyncio.run(put_log(store, report["attempt"], report["chunk_index"], stored))
        start += len(piece)


def test_a_build_is_found_by_each_of_its_names(cli: Cli, world: World) -> None:
    wanted = drv("wanted")
    evaluation = world.evaluate(wanted, drv("another"))
    number = world.id(wanted)
    for name in (
        str(number),
        wanted.drv,
        wanted.path,
        wanted.outputs["out"],
        wanted.hash[:8],
        f"wanted@{evaluation}",
        f"wanted@main/{task_name(world)}",
    ):
        assert cli.ok("build", "show", name, "--json").json()["id"] == number, name


def task_name(world: World) -> str:
    name: str = world.value("select name from gradient.task")
    return name


def test_an_attribute_that_is_no_entry_point_is_named_with_those_that_are(
    cli: Cli, world: World
) -> None:
    evaluation = world.evaluate(drv("one"), drv("two"))
    typed = cli.type("build", "show", f"three@{evaluation}")
    assert typed.code == 1
    assert f"evaluation {evaluation} has no entry point three" in typed.err
    assert "It has one, two." in typed.err


def test_builds_are_narrowed_by_evaluation_and_status(cli: Cli, world: World) -> None:
    broken = drv("broken")
    fine = drv("fine")
    first = world.evaluate(broken, fine)
    world.evaluate(drv("elsewhere"))
    world.fail(broken, message="it broke\nin two lines")
    listed = cli.ok("build", "list", "--eval", str(first), "--json").json()
    assert {row["name"] for row in listed} == {"broken", "fine"}
    failed = cli.ok("build", "list", "--status", "failedpermanent")
    assert "broken" in failed.out
    assert "it broke" in failed.out
    assert "fine" not in failed.out


def test_show_names_the_outputs_and_whether_they_are_in_the_cache(cli: Cli, world: World) -> None:
    one = drv("one")
    world.evaluate(one)
    before = cli.ok("build", "show", one.drv, "--json").json()["outputs"]
    assert before == [{"name": "out", "path": one.outputs["out"], "in_cache": False}]
    world.run(one)
    after = cli.ok("build", "show", one.drv, "--json").json()
    assert after["outputs"][0]["in_cache"] is True
    assert [attempt["outcome"] for attempt in after["attempts"]] == ["Built"]


def test_the_log_is_what_the_builder_wrote_byte_for_byte(cli: Cli, world: World) -> None:
    one = drv("one")
    world.evaluate(one)
    world.start(one)
    pieces = [b"first\n", b"\xff\xfe not text \x1b[31m\r\n", b"", b"no line end"]
    append_log(cli, world, world.job(one), [piece for piece in pieces if piece])
    typed = cli.ok("build", "log", one.drv)
    assert typed.raw == b"".join(pieces)
    assert "the build goes on" in typed.err


def test_a_long_log_is_read_in_full(cli: Cli, world: World) -> None:
    one = drv("one")
    world.evaluate(one)
    world.start(one)
    pieces = [f"{number:07}\n".encode() * 30_000 for number in range(20)]
    append_log(cli, world, world.job(one), pieces)
    assert cli.ok("build", "log", one.drv).raw == b"".join(pieces)


def test_the_log_of_a_failed_build_ends_with_the_reason(cli: Cli, world: World) -> None:
    one = drv("one")
    world.evaluate(one)
    world.start(one)
    append_log(cli, world, world.job(one), [b"gcc: fatal error\n"])
    world.fail(one, message="builder exited with 1")
    typed = cli.ok("build", "log", one.drv)
    assert typed.raw == b"gcc: fatal error\n"
    assert "builder_failed: builder exited with 1" in typed.err


def test_a_build_that_never_ran_has_no_log(cli: Cli, world: World) -> None:
    one = drv("one")
    world.evaluate(one)
    typed = cli.type("build", "log", one.drv)
    assert typed.code == 1
    assert "was never run: it is Queued" in typed.err


def test_a_build_that_a_dependency_kept_from_running_names_it(cli: Cli, world: World) -> None:
    culprit = drv("culprit")
    victim = drv("victim", culprit)
    world.evaluate(culprit, victim)
    world.fail(culprit)
    typed = cli.type("build", "log", victim.drv)
    assert typed.code == 1
    assert f"it is DependencyFailed, for it needs culprit (build {world.id(culprit)})" in typed.err
    assert f"hint: gradient build log {world.id(culprit)}" in typed.err


def test_another_object_store_than_the_servers_is_told(cli: Cli, world: World) -> None:
    one = drv("one")
    world.evaluate(one)
    world.start(one)
    append_log(cli, world, world.job(one), [b"first\n"])
    elsewhere = Cli(cli.dsn, cli.state.with_name("elsewhere"))
    typed = elsewhere.type("build", "log", one.drv)
    assert (typed.code, typed.raw) == (1, b"")
    assert "object_store.url" in typed.err


@pytest.mark.parametrize("outcome, code", [("built", 0), ("failed", 1)])
def test_following_goes_on_until_the_build_has_ended(
    cli: Cli, world: World, tmp_path: Path, outcome: str, code: int
) -> None:
    one = drv("one")
    world.evaluate(one)
    log = tmp_path / "followed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PROGRAM, "build", "log", "--follow", one.drv],
            env=cli.environment,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    try:
        # It waits for the first attempt, then for each piece.
        world.start(one)
        append_log(cli, world, world.job(one), [b"first\n"])
        wait_until(lambda: log.read_bytes() == b"first\n", 30, "the first line")
        append_log(cli, world, world.job(one), [b"second\n"], start=len(b"first\n"))
        wait_until(lambda: log.read_bytes() == b"first\nsecond\n", 30, "the second line")
        assert process.poll() is None
        if outcome == "built":
            world.report_output(one)
            world.upload_outputs(one)
            world.complete(one)
        else:
            world.fail(one)
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()
    assert log.read_bytes() == b"first\nsecond\n"
