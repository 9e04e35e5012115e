"""Derivations, batches and NARs made up for tests: valid names and hashes from seeds.

The same seed always gives the same path, so that two tests, or two orders of one test,
speak of the same rows. Everything is in the form that the wire and the SQL functions take.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STORE = "/nix/store/"
_ALPHABET = "0123456789abcdfghijklmnpqrsvwxyz"


def nix32(data: bytes) -> str:
    """Nix's base 32 of `data`: 32 characters for 20 bytes, 52 for 32."""
    number = int.from_bytes(data, "little")
    length = (len(data) * 8 + 4) // 5
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(length)))


def store_hash(seed: str) -> str:
    """The 32 characters that begin a store path."""
    return nix32(hashlib.sha256(seed.encode()).digest()[:20])


def sha256_hash(seed: str) -> str:
    """A content hash as the database keeps it: `sha256:` and 52 characters."""
    return "sha256:" + nix32(hashlib.sha256(seed.encode()).digest())


def source(name: str) -> str:
    """The store path of a plain source."""
    return f"{STORE}{store_hash('source ' + name)}-{name}"


def base_name(path: str) -> str:
    """A store path without `/nix/store/`."""
    return path.removeprefix(STORE)


@dataclass(frozen=True)
class Drv:
    """One derivation: `drv` is its base name, `outputs` maps names to store paths,
    `dependencies` are base names, `sources` store paths."""

    drv: str
    outputs: Mapping[str, str]
    dependencies: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    architecture: str = "x86_64-linux"
    features: tuple[str, ...] = ()
    is_fixed_output: bool = False
    prefer_local_build: bool = False
    pname: str | None = None
    top: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """The hash that begins the `.drv` file's name."""
        return self.drv[:32]

    @property
    def name(self) -> str:
        """The derivation's name, without hash and `.drv`."""
        return self.drv[33:].removesuffix(".drv")

    @property
    def path(self) -> str:
        """The store path of the `.drv` file."""
        return STORE + self.drv

    def wire(self) -> dict[str, Any]:
        """As a DiscoveredDerivation of the wire."""
        return {
            "drv": self.drv,
            "outputs": [{"name": name, "path": path} for name, path in self.outputs.items()],
            "dependencies": list(self.dependencies),
            "input_sources": list(self.sources),
            "architecture": self.architecture,
            "required_features": list(self.features),
            "is_fixed_output": self.is_fixed_output,
            "prefer_local_build": self.prefer_local_build,
            "pname": self.pname,
            **self.extra,
        }


def derivation(
    name: str,
    *inputs: Drv,
    outputs: Sequence[str] = ("out",),
    output_of: Mapping[str, Drv] | None = None,
    sources: Iterable[str] = (),
    architecture: str = "x86_64-linux",
    features: Iterable[str] = (),
    is_fixed_output: bool = False,
    **extra: Any,
) -> Drv:
    """A derivation called `name` that needs `inputs` and the plain sources named `sources`.

    `output_of` makes twins: the output of that name is the one of the given derivation.
    `extra` goes into the wire form as it is (timeout_secs, ifd, ...).
    """
    shared = {output: twin.outputs[output] for output, twin in (output_of or {}).items()}
    return Drv(
        drv=f"{store_hash('drv ' + name)}-{name}.drv",
        outputs={
            output: shared.get(output)
            or f"{STORE}{store_hash(f'output {output} {name}')}-{name}"
            + ("" if output == "out" else f"-{output}")
            for output in outputs
        },
        dependencies=tuple(i.drv for i in inputs),
        sources=tuple(source(s) for s in sources),
        architecture=architecture,
        features=tuple(features),
        is_fixed_output=is_fixed_output,
        pname=name,
        extra=extra,
    )


def batch(
    evaluation: int,
    derivations: Iterable[Drv],
    entry_points: Iterable[Drv] = (),
    messages: Iterable[Mapping[str, Any]] = (),
    assignment: int | None = None,
) -> dict[str, Any]:
    """One batch of a walk as `graph.record` takes it; attributes are the derivations' names."""
    made: dict[str, Any] = {
        "evaluation": evaluation,
        "derivations": [d.wire() for d in derivations],
        "entry_points": [{"attribute": d.name, "drv": d.drv} for d in entry_points],
        "messages": [dict(m) for m in messages],
    }
    if assignment is not None:
        made["assignment"] = assignment
    return made


def nar(
    path: str,
    references: Iterable[str] = (),
    *,
    assignment: int | None = None,
    caches: Sequence[int] | None = None,
    deriver: str | None = None,
    ca: str | None = None,
    content: str = "",
) -> dict[str, Any]:
    """A NAR as `graph.commit_nars` takes it; another `content` gives another NAR.

    `references` are store paths; `ca` is taken to be verified.
    """
    seed = path + content
    return {
        "path": path,
        "file_hash": sha256_hash("file " + seed),
        "file_size": 100 + len(seed),
        "nar_hash": sha256_hash("nar " + seed),
        "nar_size": 200 + len(seed),
        "compression": "none",
        "references": [base_name(reference) for reference in references],
        "deriver": deriver,
        "ca": ca,
        "assignment": assignment,
        "caches": list(caches) if caches is not None else None,
        "ca_verified": ca is not None,
    }


def drv_nar(drv: Drv, *, assignment: int | None = None) -> dict[str, Any]:
    """The NAR of the `.drv` file itself."""
    return nar(
        drv.path,
        [*(STORE + d for d in drv.dependencies), *drv.sources],
        assignment=assignment,
        ca="text:" + sha256_hash("text " + drv.path),
    )


def source_nar(path: str, *, assignment: int | None = None) -> dict[str, Any]:
    """The NAR of a plain source."""
    return nar(path, assignment=assignment, ca="fixed:r:" + sha256_hash("nar " + path))


def output_nars(
    drv: Drv,
    references: Iterable[str] = (),
    *,
    assignment: int | None = None,
    outputs: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The NARs of a derivation's outputs (all, or those named), each with `references`."""
    return [
        nar(path, references, assignment=assignment, deriver=drv.drv)
        for name, path in drv.outputs.items()
        if outputs is None or name in outputs
    ]
