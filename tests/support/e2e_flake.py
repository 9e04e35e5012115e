"""Flakes for end-to-end tests: git repositories of derivations that need no nixpkgs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Drv:
    """A derivation of the flake: a script of /bin/sh, which may name others as `${name}`.

    Attributes:
        entry: whether the flake has an attribute `packages.x86_64-linux.<name>` for it.
        attributes: further attributes of the derivation, as Nix expressions.
    """

    name: str
    script: str = "echo built > $out"
    entry: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def nix(self) -> str:
        """Its definition within the flake."""
        more = " ".join(f"{name} = {value};" for name, value in self.attributes.items())
        return (
            f'  {self.name} = derivation {{ name = "{self.name}"; system = "x86_64-linux"; '
            f'builder = "/bin/sh"; PATH = "/bin:/usr/bin"; {more}\n'
            f"    args = [ \"-c\" ''{self.script}'' ]; }};"
        )


def flake_text(drvs: Sequence[Drv], extra: str = "") -> str:
    """The text of `flake.nix`; `extra` are further attributes of `packages.x86_64-linux`."""
    definitions = "\n".join(drv.nix for drv in drvs)
    entries = " ".join(drv.name for drv in drvs if drv.entry)
    return (
        "{\n outputs = { self }: let\n"
        + definitions
        + f"\n in {{ packages.x86_64-linux = {{ inherit {entries}; {extra} }}; }};\n}}\n"
    )


class Repository:
    """A git repository with a flake in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        """What a task is given."""
        return self.folder.as_uri()

    def commit(self, files: Mapping[str, str], message: str = "Change") -> str:
        """Write files and commit everything; returns the commit."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", message)
        return self._git("rev-parse", "HEAD").strip()

    def commit_drvs(self, drvs: Iterable[Drv], extra: str = "") -> str:
        """Commit a flake of these derivations."""
        return self.commit({"flake.nix": flake_text(list(drvs), extra)})

    def _git(self, *arguments: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "ada@example.org",
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@example.org",
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout


def layered(count: int, width: int, *, prefix: str = "layer", script: str = "") -> list[Drv]:
    """A graph of `count` small derivations in layers: each needs up to three of the layer above,
    and refers at run time to one of them. The last layer is the entry points."""
    drvs: list[Drv] = []
    for index in range(count):
        layer, column = divmod(index, width)
        above = [
            drvs[(layer - 1) * width + (column + step) % width].name
            for step in range(min(3, width))
            if layer > 0
        ]
        reads = "".join(f"cat ${{{name}}} > /dev/null; " for name in above)
        refers = f"echo ${{{above[0]}}} >> $out; " if above else ""
        drvs.append(
            Drv(
                f"{prefix}-{index}",
                f"{script}{reads}echo {prefix} {index} > $out; {refers}echo log of {index}",
                entry=index >= count - width,
            )
        )
    return drvs
