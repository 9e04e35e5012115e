"""Derivations made by hand: no evaluator, no network, /bin/sh as builder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gradient.protocol import BuildJob, Output
from tests.support.scripted_server import ScriptedServer
from worker.derivations import drv_archive, references_of, text_path
from worker.nix.derivation import Derivation, write_derivation
from worker.nix.derivation import Output as DrvOutput
from worker.nix.store_path import nix32_encode


@dataclass(frozen=True)
class Made:
    """A derivation and the names it goes by."""

    path: str
    text: bytes
    derivation: Derivation

    @property
    def out(self) -> str:
        return self.derivation.outputs["out"].path

    def job(self, **limits: int) -> BuildJob:
        return BuildJob(
            build=1,
            drv=self.path.removeprefix("/nix/store/"),
            build_kind="build",
            outputs=[Output(name=n, path=o.path) for n, o in self.derivation.outputs.items()],
            is_fixed_output=False,
            **{"timeout_secs": 60, "max_silent_secs": 0, "log_limit": 0, **limits},
        )

    def put(self, server: ScriptedServer) -> Made:
        """Lay the `.drv` into the cache."""
        server.put(*drv_archive(self.path, self.text, references_of(self.derivation)))
        return self


def make_drv(
    name: str,
    script: str,
    inputs: Mapping[str, frozenset[str]] | None = None,
    sources: frozenset[str] = frozenset(),
    outputs: tuple[str, ...] = ("out",),
) -> Made:
    """A derivation that runs a script with /bin/sh; each name gives other output paths."""
    paths = {}
    for output in outputs:
        digest = hashlib.sha256(f"{name}:{output}:{script}".encode()).digest()[:20]
        suffix = "" if output == "out" else f"-{output}"
        paths[output] = f"/nix/store/{nix32_encode(digest)}-{name}{suffix}"
    derivation = Derivation(
        outputs={output: DrvOutput(path) for output, path in paths.items()},
        input_drvs=dict(inputs or {}),
        input_srcs=sources,
        system="x86_64-linux",
        builder=b"/bin/sh",
        args=(b"-c", script.encode()),
        env={
            b"name": name.encode(),
            b"PATH": b"/bin:/usr/bin",
            **{output.encode(): path.encode() for output, path in paths.items()},
        },
    )
    text = write_derivation(derivation)
    return Made(text_path(f"{name}.drv", text, references_of(derivation)), text, derivation)
