"""Nix expressions, derivations and commands for the tests of the Nix edge."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.nix.derivation import Derivation, parse_derivation
from worker.nix.serve import BuildRequest
from worker.nix.settings import NixSettings

PRELUDE: Final = r"""
let
  sh = name: script: extra: derivation ({
    inherit name;
    system = builtins.currentSystem;
    builder = "/bin/sh";
    PATH = "/usr/bin:/bin";
    args = [ "-c" script ];
  } // extra);
  fixed = {
    outputHashMode = "flat";
    outputHashAlgo = "sha256";
    # The hash of "fixed\n".
    outputHash = "0c3071418e6356e614898c84ed064ca95e88551bc0811b534bdf1952ecdae534";
  };
in
"""


@dataclass(frozen=True)
class Built:
    """A derivation in the store."""

    path: str
    derivation: Derivation

    @property
    def out(self) -> str:
        return self.derivation.outputs["out"].path

    def request(self, **settings: int) -> BuildRequest:
        """The request that builds it, with the outputs of its inputs that it uses."""
        return BuildRequest.of(self.path, self.derivation, inputs_of(self.derivation), **settings)


class Nix:
    """Nix's own commands as a user would call them."""

    def __init__(self, settings: NixSettings) -> None:
        self.settings = settings

    def run(
        self, *argv: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; by default it must succeed."""
        done = subprocess.run(
            argv,
            env={**self.settings.environment(), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{argv} failed: {done.stderr}")
        return done

    def derivation(self, expression: str) -> Built:
        """Instantiate an expression that may use `sh name script attributes`."""
        path = (
            self.run("nix-instantiate", "-E", PRELUDE + expression).stdout.strip().partition("!")[0]
        )
        return Built(path, parse_derivation(Path(path).read_bytes()))

    def build(self, path: str) -> list[str]:
        """Build a `.drv` by Nix itself; returns the output paths."""
        return self.run("nix-store", "--realise", path).stdout.split()

    def add(self, folder: Path, name: str, content: str) -> str:
        """Add a file to the store; returns its path."""
        file = folder / name
        file.write_text(content)
        return self.run("nix-store", "--add", str(file)).stdout.strip()

    def is_valid(self, path: str) -> bool:
        """Whether the store has a path, asked by a fresh process."""
        done = self.run("nix-store", "--check-validity", path, check=False)
        return done.returncode == 0


def inputs_of(derivation: Derivation) -> set[str]:
    """The sources, and of each input derivation the outputs that are used."""
    paths = set(derivation.input_srcs)
    for drv_path, names in derivation.input_drvs.items():
        below = parse_derivation(Path(drv_path).read_bytes())
        paths |= {below.outputs[name].path for name in names}
    return paths


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def processes_with(word: str) -> list[int]:
    """The processes that have a word in their command line, this one excepted."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in command and alive(int(folder.name)):
                found.append(int(folder.name))
    return found
