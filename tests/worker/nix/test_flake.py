"""Fetching a flake from git repositories, and the errors that a person gets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.worker.nix.git import Repository
from tests.worker.nix.support import Nix
from worker.nix import processes
from worker.nix.flake import (
    FetchError,
    FlakeSource,
    InputFetchError,
    InvalidFlakeError,
    UnknownRepositoryError,
    UnknownRevisionError,
    UnlockedFlakeError,
    fetch_repository,
    with_inputs,
)
from worker.nix.settings import NixSettings

pytestmark = pytest.mark.nix

FLAKE = "{ outputs = { self }: { rev = self.rev; value = import ./value.nix; }; }"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository without a commit."""
    return Repository(tmp_path / "repository")


def lock(nix: Nix, repository: Repository) -> None:
    """Write the lock file as its owner would, and leave it uncommitted."""
    nix.run("nix", "flake", "lock", f"path:{repository.folder}")


async def test_a_commit_is_exported_to_the_store_under_the_name_source(
    settings: NixSettings, repository: Repository, nix: Nix
) -> None:
    commit = repository.commit("Title\n\nBody of it", flake_nix=FLAKE, value_nix="1")
    source = await fetch_repository(settings, str(repository.folder), commit)
    assert source.path.endswith("-source")
    assert source.revision == commit
    assert source.inputs == frozenset()
    assert source.commit_message == "Title\n\nBody of it"
    assert source.commit_author == "Ada <ada@example.org>"
    assert source.flake_ref == f"path:{source.path}?rev={commit}"
    assert nix.is_valid(source.path)
    assert {path.name for path in Path(source.path).iterdir()} == {"flake.nix", "value.nix"}


async def test_the_commit_counts_and_not_what_lies_in_the_working_tree(
    settings: NixSettings, repository: Repository
) -> None:
    first = repository.commit(flake_nix=FLAKE, value_nix="1")
    repository.commit(value_nix="2")
    (repository.folder / "value.nix").write_text("3")
    source = await fetch_repository(settings, str(repository.folder), first)
    assert Path(source.path, "value.nix").read_text() == "1"


async def test_modes_and_links_of_the_commit_are_kept(
    settings: NixSettings, repository: Repository
) -> None:
    (repository.folder / "run").write_text("#!/bin/sh\n")
    (repository.folder / "run").chmod(0o755)
    (repository.folder / "link").symlink_to("run")
    commit = repository.commit(flake_nix=FLAKE, value_nix="1")
    path = Path((await fetch_repository(settings, str(repository.folder), commit)).path)
    assert (path / "run").stat().st_mode & stat.S_IXUSR
    assert not (path / "flake.nix").stat().st_mode & stat.S_IXUSR
    assert (path / "link").readlink() == Path("run")


async def test_a_branch_a_tag_and_the_default_branch_are_resolved_to_commits(
    settings: NixSettings, repository: Repository
) -> None:
    first = repository.commit(flake_nix=FLAKE, value_nix="1")
    repository.git("tag", "--annotate", "--message", "a tag", "v1")
    second = repository.commit(value_nix="2")
    repository.git("branch", "topic/x", first)
    for revision, commit in [("v1", first), ("topic/x", first), ("main", second), (None, second)]:
        source = await fetch_repository(settings, str(repository.folder), revision)
        assert source.revision == commit


async def test_a_branch_that_moved_is_fetched_anew(
    settings: NixSettings, repository: Repository
) -> None:
    url = str(repository.folder)
    first = repository.commit(flake_nix=FLAKE, value_nix="1")
    assert (await fetch_repository(settings, url, "main")).revision == first
    second = repository.commit(value_nix="2")
    assert (await fetch_repository(settings, url, "main")).revision == second
    repository.git("reset", "--hard", "--quiet", first)
    rewritten = repository.commit(value_nix="3")
    assert (await fetch_repository(settings, url, "main")).revision == rewritten


async def test_a_commit_that_no_branch_reaches_any_more_is_still_fetched(
    settings: NixSettings, repository: Repository
) -> None:
    repository.commit(flake_nix=FLAKE, value_nix="1")
    lost = repository.commit(value_nix="2")
    repository.git("reset", "--hard", "--quiet", "HEAD~")
    assert (await fetch_repository(settings, str(repository.folder), lost)).revision == lost


@pytest.mark.parametrize("prefix", ["git+file://", "file://", ""])
async def test_a_local_repository_has_these_urls(
    settings: NixSettings, repository: Repository, prefix: str
) -> None:
    commit = repository.commit(flake_nix=FLAKE, value_nix="1")
    source = await fetch_repository(settings, f"{prefix}{repository.folder}", commit)
    assert source.revision == commit


async def test_a_repository_of_another_owner_is_fetched(
    settings: NixSettings, repository: Repository, nix: Nix
) -> None:
    commit = repository.commit(flake_nix=FLAKE, value_nix="1")
    for path in (repository.folder, *repository.folder.rglob("*")):
        os.chown(path, 65534, 65534)
    refused = nix.run(
        "nix", "eval", f"git+file://{repository.folder}?rev={commit}#value", check=False
    )
    assert "is owned by someone else" in refused.stderr or "dubious" in refused.stderr
    source = await fetch_repository(settings, str(repository.folder), commit)
    assert source.revision == commit


async def test_the_repository_is_never_touched(
    settings: NixSettings, repository: Repository
) -> None:
    commit = repository.commit(flake_nix=FLAKE, value_nix="1")
    before = repository.state()
    await fetch_repository(settings, str(repository.folder), commit)
    assert repository.state() == before


async def test_several_fetches_of_one_repository_at_once_do_not_disturb_each_other(
    settings: NixSettings, repository: Repository
) -> None:
    commits = [repository.commit(flake_nix=FLAKE, value_nix=str(i)) for i in range(4)]
    for number, commit in enumerate(commits):
        repository.git("branch", f"b{number}", commit)
    sources = await asyncio.gather(
        *(fetch_repository(settings, str(repository.folder), f"b{i}") for i in range(4))
    )
    assert [source.revision for source in sources] == commits


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["/nonexistent/repository", "file:///nonexistent", "http://127.0.0.1:1/none"]
)
async def test_a_repository_that_is_not_there_is_named(settings: NixSettings, url: str) -> None:
    with pytest.raises(UnknownRepositoryError, match="cannot be read") as caught:
        await fetch_repository(settings, url, None)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("url", "transient"), [("http://127.0.0.1:1/none", True), ("/nonexistent/repository", False)]
)
async def test_a_server_that_cannot_be_reached_is_told_from_a_repository_that_is_not_there(
    settings: NixSettings, url: str, transient: bool
) -> None:
    with pytest.raises(UnknownRepositoryError) as caught:
        await fetch_repository(settings, url, None)
    assert caught.value.transient is transient


async def test_a_folder_that_is_no_repository_is_named(
    settings: NixSettings, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(UnknownRepositoryError, match="plain"):
        await fetch_repository(settings, str(tmp_path / "plain"), None)


@pytest.mark.parametrize("url", ["", "--upload-pack=touch /tmp/x", "-x", "a b", "x\ny"])
async def test_a_url_that_could_be_an_option_is_refused(settings: NixSettings, url: str) -> None:
    with pytest.raises(UnknownRepositoryError, match="not the URL"):
        await fetch_repository(settings, url, None)


async def test_a_transport_that_runs_commands_is_refused(
    settings: NixSettings, tmp_path: Path
) -> None:
    mark, script = tmp_path / "mark", tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {mark}\n")
    script.chmod(0o755)
    with pytest.raises(UnknownRepositoryError, match="not allowed"):
        await fetch_repository(settings, f"ext::{script}", None)
    assert not mark.exists()


async def test_a_password_in_a_url_is_not_in_the_message(settings: NixSettings) -> None:
    with pytest.raises(UnknownRepositoryError) as caught:
        await fetch_repository(settings, "http://ada:secret@127.0.0.1:1/none", None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("revision", ["0" * 40, "nobranch", "abcdef1", "-x", "a..b", "v1 v2", "x^"])
async def test_an_unknown_revision_is_named(
    settings: NixSettings, repository: Repository, revision: str
) -> None:
    repository.commit(flake_nix=FLAKE, value_nix="1")
    with pytest.raises(UnknownRevisionError) as caught:
        await fetch_repository(settings, str(repository.folder), revision)
    assert revision in str(caught.value)


@pytest.mark.parametrize(
    ("flake", "message"),
    [
        ("{ outputs = ", "cannot be read: syntax error"),
        ("{ outputs = { self }: nowhere; }", "undefined variable 'nowhere'"),
        ("{ }", "no function `outputs`"),
        ("1", "no function `outputs`"),
        ('throw "no"', "cannot be read: no"),
    ],
)
async def test_a_flake_that_nix_cannot_read_is_an_error_with_its_words(
    settings: NixSettings, repository: Repository, flake: str, message: str
) -> None:
    commit = repository.commit(flake_nix=flake)
    with pytest.raises(InvalidFlakeError, match=message):
        await fetch_repository(settings, str(repository.folder), commit)


async def test_a_repository_without_a_flake_is_an_error(
    settings: NixSettings, repository: Repository
) -> None:
    commit = repository.commit(readme_txt="nothing here")
    with pytest.raises(InvalidFlakeError, match=r"no flake\.nix"):
        await fetch_repository(settings, str(repository.folder), commit)


@pytest.mark.parametrize(
    ("flake", "named"),
    [
        ('{ inputs.other.url = "path:/nowhere"; outputs = { self, other }: { }; }', "other"),
        ("{ outputs = { self, nixpkgs }: { }; }", "nixpkgs"),
        ('{ inputs.other.url = "path:/nowhere"; outputs = args: { }; }', "other"),
    ],
)
async def test_a_flake_with_inputs_and_no_lock_is_an_error_that_names_them(
    settings: NixSettings, repository: Repository, flake: str, named: str
) -> None:
    commit = repository.commit(flake_nix=flake)
    before = repository.state()
    with pytest.raises(UnlockedFlakeError, match=rf"\({named}\) but no flake\.lock"):
        await fetch_repository(settings, str(repository.folder), commit)
    assert repository.state() == before


async def test_an_input_that_the_lock_does_not_pin_is_named(
    settings: NixSettings, repository: Repository, nix: Nix, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "other")
    other.commit(flake_nix="{ outputs = { self }: { }; }")
    line = f'inputs.other.url = "path:{other.folder}";'
    repository.commit(flake_nix=f"{{ {line} outputs = args: {{ }}; }}")
    lock(nix, repository)
    commit = repository.commit(
        flake_nix=f'{{ {line} inputs.new.url = "path:/nowhere"; outputs = args: {{ }}; }}'
    )
    with pytest.raises(UnlockedFlakeError, match="does not pin new"):
        await fetch_repository(settings, str(repository.folder), commit)


async def test_a_lock_that_does_not_match_the_flake_is_an_error(
    settings: NixSettings, repository: Repository, nix: Nix, tmp_path: Path
) -> None:
    others = [Repository(tmp_path / name) for name in ("one", "two")]
    for other in others:
        other.commit(flake_nix="{ outputs = { self }: { }; }")
    flake = '{ inputs.other.url = "path:%s"; outputs = args: { }; }'
    repository.commit(flake_nix=flake % others[0].folder)
    lock(nix, repository)
    commit = repository.commit(flake_nix=flake % others[1].folder)
    with pytest.raises(UnlockedFlakeError, match=r"does not match flake\.nix"):
        await fetch_repository(settings, str(repository.folder), commit)


async def test_a_lock_that_is_no_lock_file_is_an_error(
    settings: NixSettings, repository: Repository
) -> None:
    commit = repository.commit(flake_nix="{ outputs = { self, nixpkgs }: { }; }", flake_lock="[]")
    with pytest.raises(InvalidFlakeError, match="not a lock file"):
        await fetch_repository(settings, str(repository.folder), commit)


async def test_a_fetch_over_its_time_limit_ends(
    settings: NixSettings, repository: Repository
) -> None:
    commit = repository.commit(flake_nix=FLAKE, value_nix="1")
    with pytest.raises(processes.ProcessTimeoutError, match="did not end within"):
        await fetch_repository(settings, str(repository.folder), commit, seconds=0.01)


async def test_git_missing_on_the_machine_is_said(
    settings: NixSettings, repository: Repository, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("nix", "nix-store", "tar", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    without_git = NixSettings(settings.state_dir, {}, {"PATH": str(tools)})
    with pytest.raises(FetchError, match="git is not installed"):
        await fetch_repository(without_git, str(repository.folder), None)


# -- inputs ------------------------------------------------------------------------------------


async def test_all_inputs_direct_and_indirect_are_fetched_and_listed(
    settings: NixSettings, repository: Repository, nix: Nix, tmp_path: Path
) -> None:
    leaf, middle = Repository(tmp_path / "leaf"), Repository(tmp_path / "middle")
    leaf.commit(flake_nix='{ outputs = { self }: { name = "leaf"; }; }')
    middle.commit(flake_nix=f'{{ inputs.leaf.url = "path:{leaf.folder}"; outputs = args: {{ }}; }}')
    lock(nix, middle)
    repository.commit(
        flake_nix=f'{{ inputs.middle.url = "path:{middle.folder}"; outputs = args: {{ }}; }}'
    )
    lock(nix, repository)
    commit = repository.commit("Lock the inputs")
    before = repository.state()
    source = await fetch_repository(settings, str(repository.folder), commit)
    assert len(source.inputs) == 2
    assert all(nix.is_valid(path) for path in source.inputs)
    assert source.path not in source.inputs
    assert repository.state() == before


async def test_a_locked_input_that_is_gone_is_an_error_of_its_own(
    settings: NixSettings, repository: Repository, nix: Nix, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "other")
    other.commit(flake_nix="{ outputs = { self }: { }; }")
    repository.commit(
        flake_nix=f'{{ inputs.other.url = "path:{other.folder}"; outputs = args: {{ }}; }}'
    )
    lock(nix, repository)
    commit = repository.commit("Lock the inputs")
    shutil.rmtree(other.folder)
    nix.run("nix-store", "--gc")
    with pytest.raises(InputFetchError, match="inputs of the flake cannot be fetched"):
        await fetch_repository(settings, str(repository.folder), commit)


async def test_a_source_that_lies_in_the_store_gets_its_inputs_checked_too(
    settings: NixSettings, nix: Nix, tmp_path: Path
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "flake.nix").write_text("{ outputs = { self }: { }; }")
    path = nix.run("nix-store", "--add", str(folder)).stdout.strip()
    source = await with_inputs(settings, FlakeSource(path, None))
    assert (source.inputs, source.flake_ref) == (frozenset(), f"path:{path}")


# -- what Nix does, and why we do it this way ---------------------------------------------------


async def test_the_way_a_commit_is_named_changes_what_the_flake_sees(
    settings: NixSettings, repository: Repository, nix: Nix
) -> None:
    commit = repository.commit(
        flake_nix="""{ outputs = { self }: {
          seen = [ (self.rev or "none") (self.shortRev or "none") (self.lastModified or 0) ];
        }; }"""
    )
    source = await fetch_repository(settings, str(repository.folder), commit)

    def seen(reference: str) -> list[object]:
        shown: list[object] = json.loads(
            nix.run("nix", "eval", "--json", f"{reference}#seen").stdout
        )
        return shown

    by_git = seen(f"git+file://{repository.folder}?rev={commit}")
    plain = seen(f"path:{source.path}")
    ours = seen(source.flake_ref)
    assert plain[0] == "none"
    assert ours[:2] == by_git[:2] == [commit, commit[:7]]
    assert by_git[2] != ours[2]
    refused = nix.run("nix", "eval", f"{source.flake_ref}&lastModified=1#seen", check=False)
    assert refused.returncode != 0


def test_archiving_a_repository_itself_writes_a_lock_file_into_it(
    repository: Repository, nix: Nix, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "other")
    other.commit(flake_nix="{ outputs = { self }: { }; }")
    repository.commit(
        flake_nix=f'{{ inputs.other.url = "path:{other.folder}"; outputs = args: {{ }}; }}'
    )
    nix.run("nix", "flake", "archive", "--no-write-lock-file", f"git+file://{repository.folder}")
    assert not (repository.folder / "flake.lock").exists()
    nix.run("nix", "flake", "archive", f"git+file://{repository.folder}")
    assert "flake.lock" in repository.git("status", "--porcelain")
