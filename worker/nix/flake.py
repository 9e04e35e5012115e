"""Fetching: from a repository's URL and a revision to a flake in the store.

The repository is cloned into a bare repository of the worker's own; the user's is only read. The
commit is exported and added to the store under the name `source`; the flake's inputs are archived
from there. Every evaluation of the commit, on whichever worker, uses `FlakeSource.flake_ref`, so
that all of them see the same `self` and give the same derivations. No lock file is ever written
and no registry asked: what the lock file does not pin is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.nix import processes
from worker.nix.errors import NixError
from worker.nix.settings import TRACE_HINT, NixSettings
from worker.nix.store_path import parse_store_path

FETCH_SECONDS: Final = 1800.0
_GIT_CONFIG: Final = """\
# Repositories of other owners are read, never run; git's refusal protects who works in one.
[safe]
	directory = *
[core]
	autocrlf = false
[gc]
	autoDetach = false
"""
# Two fetches into one clone would take each other's FETCH_HEAD.
_CLONE_LOCKS: Final[dict[Path, asyncio.Lock]] = {}
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_UNREACHABLE = re.compile(
    r"could not resolve host|connection (?:refused|reset|timed out)|operation timed out"
    r"|failed to connect|network is unreachable|no route to host|early eof|error: 5\d\d"
    r"|temporary failure in name resolution|remote end hung up unexpectedly",
    re.IGNORECASE,
)
_CHECK_FLAKE = """
  let
    flake = import (/. + builtins.fromJSON ''{path}'' + "/flake.nix");
    lock = /. + builtins.fromJSON ''{path}'' + "/flake.lock";
    isFunction = builtins.isFunction (flake.outputs or null);
  in {
    hasOutputs = isFunction;
    inputs = builtins.attrNames (flake.inputs or { })
      ++ (if isFunction then builtins.attrNames (builtins.functionArgs flake.outputs) else [ ]);
    lock = if builtins.pathExists lock then builtins.readFile lock else null;
  }
"""


class FetchError(NixError):
    """The source cannot be fetched; subclasses say why.

    Attributes:
        transient: whether a server could not be reached, so that another time it may succeed.
    """

    def __init__(self, text: str, *, transient: bool = False) -> None:
        super().__init__(text)
        self.transient = transient


class UnknownRepositoryError(FetchError):
    """There is no repository at the URL, or it cannot be read."""


class UnknownRevisionError(FetchError):
    """The repository has no such commit, branch or tag."""


class InvalidFlakeError(FetchError):
    """The source has no `flake.nix`, or one that Nix cannot read."""


class UnlockedFlakeError(FetchError):
    """The flake has inputs that its lock file does not pin."""


class InputFetchError(FetchError):
    """A locked input cannot be fetched."""


@dataclass(frozen=True, slots=True)
class FlakeSource:
    """A flake in the store.

    Attributes:
        path: the store path of the exported commit, named `…-source`.
        revision: the commit; None for a source that has none.
        inputs: the store paths of all its inputs, direct and indirect.
        commit_message, commit_author: of the commit, for people; empty and None where unknown.
    """

    path: str
    revision: str | None
    inputs: frozenset[str] = frozenset()
    commit_message: str = ""
    commit_author: str | None = None

    @property
    def flake_ref(self) -> str:
        """The one form in which this flake is evaluated."""
        return f"path:{self.path}" + (f"?rev={self.revision}" if self.revision else "")


async def fetch_repository(
    settings: NixSettings,
    url: str,
    revision: str | None,
    *,
    ssh_key: str | None = None,
    seconds: float = FETCH_SECONDS,
) -> FlakeSource:
    """Fetch a commit of a git repository and its flake's inputs into the store.

    Parameters:
        url: what `git clone` takes, optionally with the prefix `git+`; a local path too, whoever
            owns it.
        revision: a commit, a branch or a tag; None for the default branch.
        ssh_key: the text of a private key; kept in a file of mode 0600 for as long as this runs.
        seconds: the limit for the whole.

    Raises:
        FetchError: by subclass: unknown repository, unknown revision, a flake that Nix cannot
            read, an input that is not locked or cannot be fetched.
        processes.ProcessTimeoutError: the limit passed.
    """
    url = _checked_url(url)
    try:
        async with asyncio.timeout(seconds):
            async with _git_environment(settings, ssh_key) as env:
                folder = _clone_folder(settings, url)
                async with _CLONE_LOCKS.setdefault(folder, asyncio.Lock()):
                    if not await asyncio.to_thread((folder / "HEAD").exists):
                        await _make_clone(folder, env)
                    commit = await _fetch_commit(folder, url, revision, env)
                    message, author = await _describe(folder, commit, env)
                    path = await _export(settings, folder, commit, env)
                source = FlakeSource(path, commit, frozenset(), message, author)
                return await with_inputs(settings, source, environment=env)
    except TimeoutError:
        raise processes.ProcessTimeoutError(
            f"fetching {_shown(url)} did not end within {seconds:g} s"
        ) from None


async def with_inputs(
    settings: NixSettings,
    source: FlakeSource,
    *,
    environment: Mapping[str, str] | None = None,
) -> FlakeSource:
    """Check the flake of a source that is in the store, and fetch its inputs.

    Raises:
        InvalidFlakeError, UnlockedFlakeError, InputFetchError: see the classes.
    """
    env = environment or settings.environment()
    if not await _check_flake(source, env):
        return dataclasses.replace(source, inputs=frozenset())
    done = await processes.run(
        ["nix", "flake", "archive", "--json", "--no-update-lock-file", source.flake_ref], env=env
    )
    if done.returncode != 0:
        text = done.error_text
        if "requires lock file changes" in text:
            raise UnlockedFlakeError(
                "flake.lock does not match flake.nix: run `nix flake lock` and commit flake.lock"
            )
        if "error: syntax error" in text or ("flake.nix" in text and "undefined variable" in text):
            raise InvalidFlakeError(f"flake.nix cannot be read: {_without_prefix(text)}")
        raise InputFetchError(
            f"the inputs of the flake cannot be fetched: {_without_prefix(text)}",
            transient=_UNREACHABLE.search(text) is not None,
        )
    found: set[str] = set()
    _collect_inputs(json.loads(done.stdout), found)
    return dataclasses.replace(source, inputs=frozenset(found - {source.path}))


async def _check_flake(source: FlakeSource, env: Mapping[str, str]) -> bool:
    """Refuse what `nix flake archive` would try to resolve by itself, before it tries.

    Returns:
        Whether the flake has inputs.
    """
    parse_store_path(source.path)
    if not await asyncio.to_thread(Path(source.path, "flake.nix").is_file):
        raise InvalidFlakeError("the source has no flake.nix at its root")
    expression = _CHECK_FLAKE.replace("{path}", json.dumps(source.path))
    done = await processes.run(
        ["nix-instantiate", "--eval", "--strict", "--json", "--read-write-mode", "-E", expression],
        env=env,
        seconds=60,
    )
    if done.returncode != 0:
        raise InvalidFlakeError(f"flake.nix cannot be read: {_without_prefix(done.error_text)}")
    flake = json.loads(done.stdout)
    if not flake["hasOutputs"]:
        raise InvalidFlakeError("flake.nix has no function `outputs`")
    inputs = set(flake["inputs"]) - {"self"}
    if not inputs:
        return False
    if flake["lock"] is None:
        raise UnlockedFlakeError(
            f"the flake has inputs ({', '.join(sorted(inputs))}) but no flake.lock: "
            "run `nix flake lock` and commit flake.lock"
        )
    try:
        lock = json.loads(flake["lock"])
        locked = set(lock["nodes"][lock["root"]].get("inputs", {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidFlakeError("flake.lock is not a lock file") from None
    if missing := inputs - locked:
        raise UnlockedFlakeError(
            f"flake.lock does not pin {', '.join(sorted(missing))}: "
            "run `nix flake lock` and commit flake.lock"
        )
    return True


def _collect_inputs(archive: Mapping[str, Any], found: set[str]) -> None:
    if path := archive.get("path"):
        found.add(path)
    for below in archive.get("inputs", {}).values():
        _collect_inputs(below, found)


# -- git ---------------------------------------------------------------------------------------


def _checked_url(url: str) -> str:
    url = url.removeprefix("git+")
    if not url or url.startswith("-") or any(c.isspace() or c == "\0" for c in url):
        raise UnknownRepositoryError(f"{url!r} is not the URL of a repository")
    return url


def _shown(url: str) -> str:
    """The URL without a password in it."""
    return re.sub(r"(://)[^/@]*@", r"\1", url)


@contextlib.asynccontextmanager
async def _git_environment(
    settings: NixSettings, ssh_key: str | None
) -> AsyncIterator[dict[str, str]]:
    """Git on its own: no user's configuration, no prompts, no transport that runs commands."""
    env = settings.environment()
    git_config = settings.state_dir / "config" / "gitconfig"
    git_config.write_text(_GIT_CONFIG)
    env["GIT_CONFIG_GLOBAL"] = str(git_config)
    env["GIT_ALLOW_PROTOCOL"] = "file:git:http:https:ssh"
    ssh = [
        "ssh",
        "-o BatchMode=yes",
        "-o StrictHostKeyChecking=accept-new",
        "-o ConnectTimeout=30",
        f"-o UserKnownHostsFile={settings.state_dir / 'known_hosts'}",
    ]
    with tempfile.TemporaryDirectory(prefix="gradient-ssh-") as folder:
        if ssh_key is not None:
            ssh += [f"-i {_write_key(Path(folder), ssh_key)}", "-o IdentitiesOnly=yes"]
        env["GIT_SSH_COMMAND"] = " ".join(ssh)
        yield env


def _write_key(folder: Path, ssh_key: str) -> Path:
    key_file = folder / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(ssh_key.rstrip("\n") + "\n")
    return key_file


async def _git(
    arguments: list[str], env: Mapping[str, str], cwd: Path | None = None
) -> processes.Completed:
    done = await processes.run(["git", *arguments], env=env, cwd=cwd)
    if done.returncode == 127:
        raise FetchError("git is not installed on this worker: install the package git")
    return done


def _clone_folder(settings: NixSettings, url: str) -> Path:
    """Where the worker's bare repository for a URL lies."""
    folder = settings.state_dir / "git" / hashlib.sha256(url.encode()).hexdigest()[:32]
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


async def _make_clone(folder: Path, env: Mapping[str, str]) -> None:
    done = await _git(["init", "--quiet", "--bare", str(folder)], env)
    if done.returncode != 0:
        raise FetchError(f"cannot make a clone in {folder}: {done.error_text}")


async def _fetch_commit(
    folder: Path, url: str, revision: str | None, env: Mapping[str, str]
) -> str:
    """Bring the revision into the clone; returns the commit."""
    if revision is not None and _COMMIT.fullmatch(revision):
        if not await _has_commit(folder, revision, env):
            # Most servers give out any commit they reach; the others give out their branches.
            by_commit = await _git(_fetch_arguments(url, "--depth=1", revision), env, folder)
            if by_commit.returncode != 0:
                by_name = await _git(
                    _fetch_arguments(
                        url, "+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*"
                    ),
                    env,
                    folder,
                )
                if by_name.returncode != 0:
                    raise _cannot_read(url, by_name)
            if not await _has_commit(folder, revision, env):
                raise UnknownRevisionError(f"{_shown(url)} has no commit {revision}")
        return revision
    wanted = "HEAD" if revision is None else revision
    if wanted.startswith("-") or re.search(r"[\s:*?\[\\^~]|\.\.", wanted):
        raise UnknownRevisionError(f"{wanted!r} is not a commit, a branch or a tag")
    done = await _git(_fetch_arguments(url, "--depth=1", wanted), env, folder)
    if done.returncode != 0:
        if "couldn't find remote ref" in done.error_text:
            raise UnknownRevisionError(
                f"{_shown(url)} has no commit, branch or tag {wanted!r}"
                + (" (write a commit with all of its 40 digits)" if revision else "")
            )
        raise _cannot_read(url, done)
    resolved = await _git(["rev-parse", "--verify", "FETCH_HEAD^{commit}"], env, folder)
    if resolved.returncode != 0:
        raise UnknownRevisionError(f"{wanted!r} of {_shown(url)} is not a commit")
    return resolved.stdout.decode().strip()


def _fetch_arguments(url: str, *what: str) -> list[str]:
    options = [part for part in what if part.startswith("--")]
    names = [part for part in what if not part.startswith("--")]
    return ["fetch", "--quiet", "--no-tags", "--force", *options, "--", url, *names]


def _cannot_read(url: str, done: processes.Completed) -> UnknownRepositoryError:
    reason = done.error_text.partition("\nPlease make sure")[0]
    return UnknownRepositoryError(
        f"the repository {_shown(url)} cannot be read: {_shown(_without_prefix(reason))}",
        transient=_UNREACHABLE.search(reason) is not None,
    )


async def _has_commit(folder: Path, commit: str, env: Mapping[str, str]) -> bool:
    done = await _git(["cat-file", "-e", f"{commit}^{{tree}}"], env, folder)
    return done.returncode == 0


async def _describe(folder: Path, commit: str, env: Mapping[str, str]) -> tuple[str, str | None]:
    done = await _git(["log", "-1", "--format=%an <%ae>%n%B", commit], env, folder)
    author, _, message = done.stdout.decode("utf-8", "replace").partition("\n")
    return message.strip(), author or None


async def _export(settings: NixSettings, folder: Path, commit: str, env: Mapping[str, str]) -> str:
    """Add the tree of a commit to the store; returns its path."""
    scratch = settings.state_dir / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="export-") as name:
        archive, tree = f"{name}/archive.tar", f"{name}/source"
        done = await _git(
            ["archive", "--format=tar", "--prefix=source/", f"--output={archive}", commit],
            env,
            folder,
        )
        if done.returncode == 0:
            tar = ["tar", "--extract", "--no-same-owner", f"--file={archive}"]
            done = await processes.run(tar, env=env, cwd=name)
        if done.returncode != 0:
            raise FetchError(f"cannot export the commit {commit}: {done.error_text}")
        done = await processes.run(["nix-store", "--add", tree], env=env)
        if done.returncode != 0:
            raise FetchError(f"cannot add the source to the store: {done.error_text}")
    path = done.stdout.decode().strip()
    parse_store_path(path)
    return path


def _without_prefix(text: str) -> str:
    return text.removeprefix("error: ").removeprefix("fatal: ").removesuffix(TRACE_HINT).strip()
