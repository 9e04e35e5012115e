"""What Nix is told, what it says it is, and whether a machine is fit to be a worker."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.worker.nix.support import Nix
from worker.nix.check import check
from worker.nix.errors import NixError
from worker.nix.settings import NixSettings, detect, parse_version

pytestmark = pytest.mark.nix


def effective(nix: Nix) -> dict[str, object]:
    """The settings as Nix understands them."""
    config = json.loads(nix.run("nix", "show-config", "--json").stdout)
    return {name: entry["value"] for name, entry in config.items()}


def test_every_setting_the_worker_relies_on_reaches_nix_whatever_nix_conf_says(
    nix: Nix,
) -> None:
    conf = Path(os.environ["NIX_CONF_DIR"], "nix.conf")
    conf.write_text(
        conf.read_text()
        + "accept-flake-config = true\nuse-registries = true\neval-cache = true\n"
        + "narinfo-cache-positive-ttl = 77\nnarinfo-cache-negative-ttl = 77\n"
        + "experimental-features =\n"
    )
    got = effective(nix)
    assert not got["accept-flake-config"]
    assert not got["use-registries"]
    assert not got["eval-cache"]
    assert got["narinfo-cache-positive-ttl"] == got["narinfo-cache-negative-ttl"] == 0


def test_nothing_of_the_workers_own_environment_leaks_into_nix(
    settings: NixSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "NIX_PATH", "XDG_CACHE_HOME", "GIT_DIR", "GRADIENT_TOKEN", "NIX_CONFIG"):
        monkeypatch.setenv(name, "/leaked")
    assert "/leaked" not in " ".join(settings.environment().values())


def test_home_and_caches_lie_in_the_workers_own_folder(settings: NixSettings) -> None:
    env = settings.environment()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        assert Path(env[name]).is_relative_to(settings.state_dir)
        assert Path(env[name]).is_dir()


def test_a_build_neither_substitutes_nor_goes_to_another_machine(
    settings: NixSettings, nix: Nix
) -> None:
    conf = Path(os.environ["NIX_CONF_DIR"], "nix.conf")
    conf.write_text(conf.read_text() + "max-jobs = 0\nbuilders = ssh://elsewhere\n")
    env = settings.build_environment()
    config = json.loads(
        subprocess.run(
            ["nix", "show-config", "--json"], env=env, capture_output=True, check=True
        ).stdout
    )
    assert config["max-jobs"]["value"] == 1
    assert config["builders"]["value"] == ""
    assert not config["substitute"]["value"]


def test_the_operators_options_win(tmp_path: Path, settings: NixSettings) -> None:
    own = NixSettings(tmp_path / "state", {"cores": "3", "max-jobs": "5"})
    assert "max-jobs = 5\n" in own.build_environment()["NIX_CONFIG"]
    assert "cores = 3\n" in own.environment()["NIX_CONFIG"]


async def test_the_machines_nix_is_detected(settings: NixSettings, nix: Nix) -> None:
    conf = Path(os.environ["NIX_CONF_DIR"], "nix.conf")
    conf.write_text(
        conf.read_text() + "system-features = kvm own-feature\nextra-platforms = riscv64-linux\n"
    )
    found = await detect(settings)
    current = nix.run("nix-instantiate", "--eval", "-E", "builtins.currentSystem").stdout
    assert found.system == current.strip().strip('"')
    assert found.systems == {found.system, "riscv64-linux"}
    assert found.features == {"kvm", "own-feature"}
    assert found.version_tuple >= (2, 8)
    assert not found.uses_daemon
    assert found.sandbox == "false"


@pytest.mark.parametrize(
    ("text", "number"),
    [("2.8.0", (2, 8, 0)), ("2.19.0pre20230101_abc", (2, 19, 0)), ("2.31", (2, 31)), ("x", ())],
)
def test_a_version_is_read(text: str, number: tuple[int, ...]) -> None:
    assert parse_version(text) == number


async def test_a_machine_without_nix_is_told_what_to_install(settings: NixSettings) -> None:
    without = NixSettings(settings.state_dir, {}, {"PATH": "/nonexistent"})
    with pytest.raises(NixError, match=r"Nix is not installed.*nix-bin"):
        await detect(without)
    report = await check(without)
    assert not report.fit
    assert report.installation is None


async def test_an_older_nix_is_refused_with_the_version_needed(
    settings: NixSettings, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nix").write_text("#!/bin/sh\necho 'nix (Nix) 2.3.16'\n")
    (tools / "nix").chmod(0o755)
    old = NixSettings(settings.state_dir, {}, {"PATH": f"{tools}:{os.environ['PATH']}"})
    with pytest.raises(NixError, match=r"Nix 2\.3\.16; the worker needs 2\.8"):
        await detect(old)


async def test_check_builds_and_says_that_the_machine_is_fit(settings: NixSettings) -> None:
    report = await check(settings)
    assert report.fit
    texts = [finding.text for finding in report.findings]
    assert "a build of one second succeeded" in texts
    assert "the store is used directly" in texts


async def test_check_shows_why_a_build_fails(settings: NixSettings) -> None:
    unbuildable = NixSettings(settings.state_dir, {"build-users-group": "no-such-group"})
    report = await check(unbuildable)
    assert not report.fit
    assert any("no-such-group" in finding.text for finding in report.findings if finding.problem)


def test_this_nix_has_no_print_out_paths_for_build(nix: Nix) -> None:
    """Why the worker asks the store process for paths, and never parses `nix build`."""
    if parse_version(nix.run("nix", "--version").stdout.split()[-1]) >= (2, 9):
        pytest.skip("newer versions have it")
    done = nix.run("nix", "build", "--print-out-paths", "--help", check=False)
    assert "unrecognised flag '--print-out-paths'" in done.stderr
