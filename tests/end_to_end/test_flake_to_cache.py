"""From a flake in a repository to an ordinary Nix client that substitutes the results."""

from __future__ import annotations

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
