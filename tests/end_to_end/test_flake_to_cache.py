"""From a flake in a repository to an ordinary Nix client that substitutes the results."""

from __future__ import annotations

import signal

import pytest

from tests.support.e2e_flake import Drv, Repository, layered
from tests.support.e2e_world import World

pytestmark = [pytest.mark.nix, pytest.mark.slow, pytest.mark.timeout(400)]


def test_one_derivation_goes_from_the_repository_to_a_user(
    world: World, repository: Repository
) -> None:
    repository.commit_drvs([Drv("hello", "echo hello > $out; echo said hello")])
    world.project()
    task = world.task(repository.url)
    world.worker("w1")
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 0
    outputs = world.outputs(evaluation)
    store = world.nix_copy(list(outputs.values()))
    assert store.real_path(outputs["hello"]).read_text() == "hello\n"
    assert world.gradient("build", "log", f"packages.x86_64-linux.hello@{evaluation}").out == (
        "said hello\n"
    )
    world.check()


def test_three_hundred_derivations_end_up_in_the_cache(
    world: World, repository: Repository
) -> None:
    drvs = layered(300, 20)
    repository.commit_drvs(drvs)
    world.project()
    task = world.task(repository.url)
    world.worker("w1", build_slots=4)
    evaluation = world.evaluate(task)
    assert world.watch(evaluation) == 0
    world.check()
    builds = world.builds(evaluation)
    assert {name: build["status"] for name, build in builds.items()} == {
        drv.name: "Completed" for drv in drvs
    }
    outputs = world.outputs(evaluation)
    assert len(outputs) == 300
    top = [outputs[drv.name] for drv in drvs if drv.entry]
    assert len(top) == 20
    world.nix_copy(top)
    world.nix_copy(list(outputs.values()))


def test_a_second_evaluation_of_an_unchanged_flake_walks_and_builds_nothing(
    world: World, repository: Repository
) -> None:
    drvs = layered(30, 5)
    repository.commit_drvs(drvs)
    world.project()
    task = world.task(repository.url)
    first = world.worker("w1")
    assert world.watch(world.evaluate(task)) == 0
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    attempts = world.row("select count(*), max(id) from gradient.build_attempt")
    objects = world.row("select count(*), max(created_at) from gradient.nar_object")
    # Another worker with an empty store: whatever it walked, it would have to upload.
    world.worker("w2")
    again = world.evaluate(task)
    assert world.watch(again) == 0
    assert world.row("select count(*), max(id) from gradient.build_attempt") == attempts
    assert world.row("select count(*), max(created_at) from gradient.nar_object") == objects
    assert set(world.outputs(again)) == {drv.name for drv in drvs if drv.entry}
    world.check()


def test_a_build_on_one_worker_gets_its_inputs_built_on_another_from_the_cache(
    world: World, repository: Repository
) -> None:
    repository.commit_drvs(
        [
            Drv("lower", "echo from w1 > $out"),
            Drv("upper", "cat ${lower} > $out; echo ${lower} >> $out"),
        ]
    )
    world.project()
    task = world.task(repository.url)
    first = world.worker("w1")
    one = world.evaluate(task, "--wildcard", "packages.x86_64-linux.lower")
    assert world.watch(one) == 0
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    world.worker("w2")
    both = world.evaluate(task, "--wildcard", "packages.x86_64-linux.upper")
    assert world.watch(both) == 0
    built_by = dict(
        world.conn.execute(
            "select d.name, o.worker_id from gradient.build_attempt a"
            " join gradient.derivation d on d.id = a.derivation_build"
            " join gradient.dispatched_job o on o.id = a.dispatched_job"
        ).fetchall()
    )
    assert built_by == {"lower": "w1", "upper": "w2"}
    outputs = world.outputs(both)
    assert world.store("w2").real_path(outputs["lower"]).read_text() == "from w1\n"
    copied = world.nix_copy([outputs["upper"]])
    assert copied.real_path(outputs["upper"]).read_text().startswith("from w1\n")
    world.check()


@pytest.mark.scenario(51)
def test_a_second_project_gets_a_cache_without_holes_and_builds_nothing(
    world: World, repository: Repository
) -> None:
    drvs = layered(12, 3)
    repository.commit_drvs(drvs)
    world.project()
    world.project("second", "second")
    first = world.task(repository.url)
    second = world.task(repository.url, "second/flake")
    world.worker("w1")
    assert world.watch(world.evaluate(first)) == 0
    attempts = world.row("select count(*) from gradient.build_attempt")
    world.worker("w2", world.token("w2", "second"))
    evaluation = world.evaluate(second)
    assert world.watch(evaluation) == 0
    assert world.row("select count(*) from gradient.build_attempt") == attempts
    outputs = world.outputs(evaluation)
    world.nix_copy([outputs[drv.name] for drv in drvs if drv.entry], cache="second")
    world.check()


@pytest.mark.scenario(59)
def test_a_commit_gives_the_same_derivations_whole_in_parts_and_from_the_cache(
    world: World, repository: Repository
) -> None:
    commit = repository.commit(
        {
            "flake.nix": (
                "{ outputs = { self }: { packages.x86_64-linux = builtins.mapAttrs (name: text:"
                ' derivation { inherit name text; system = "x86_64-linux"; builder = "/bin/sh";'
                ' rev = self.rev; src = self; args = [ "-c" "echo $rev $text > $out" ]; })'
                ' { one = "1"; two = self.shortRev; three = toString self.lastModified; }; }; }\n'
            )
        }
    )
    world.project()
    task = world.task(repository.url)
    world.worker("w1")
    for name in ("one", "two", "three"):
        part = world.evaluate(task, "--wildcard", f"packages.x86_64-linux.{name}")
        assert world.watch(part) == 0
    assert world.row("select count(*) from gradient.derivation") == (3,)
    whole = world.evaluate(task)
    assert world.watch(whole) == 0
    (source,) = world.row("select flake_source from gradient.evaluation where id = %s", whole)
    # Another worker, another store: the source comes out of the cache.
    world.worker("w2", build_slots=0)
    cached = world.task(source, "main/cached", revision=commit)
    split = world.evaluate(cached)
    assert world.watch(split) == 0
    assert len(world.outputs(split)) == 3
    assert world.row("select count(*) from gradient.derivation") == (3,)
    world.check()
