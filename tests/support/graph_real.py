"""Large graphs: the real one of nixpkgs of June 2015, and one of the same shape made up.

The real graph is read where it lies (GRADIENT_REAL_GRAPH, or ../shared/data beside the
checkout); whoever does not have it works on the generated one.
"""

from __future__ import annotations

import bisect
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.graph_builder import STORE, Drv, base_name, derivation, store_hash

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BATCH = 50
FETCHED_LEVEL = 31
_DEFAULT = (
    Path(__file__).resolve().parents[3] / "shared" / "data" / "nixpkgs-2015-06-graph.jsonl.zst"
)


def real_graph_path() -> Path | None:
    """Where the real graph lies on this machine; None when it is not here."""
    path = Path(os.environ.get("GRADIENT_REAL_GRAPH", _DEFAULT))
    return path if path.exists() else None


def load_graph(path: Path) -> list[Drv]:
    """Every derivation of a graph file, inputs before what needs them."""
    opened = zstd.open(path, "rt") if path.suffix == ".zst" else path.open()
    with opened as lines:
        return [_read(json.loads(line)) for line in lines if line.strip()]


def _read(row: dict[str, object]) -> Drv:
    fields: dict[str, object] = dict(row)
    inputs = fields["inputs"]
    outputs = fields["outputs"]
    sources = fields["srcs"]
    features = fields["features"]
    assert isinstance(inputs, dict)
    assert isinstance(outputs, dict)
    assert isinstance(sources, list)
    assert isinstance(features, list)
    return Drv(
        drv=str(fields["drv"]),
        outputs={name: STORE + path for name, path in outputs.items()},
        dependencies=tuple(inputs),
        sources=tuple(STORE + path for path in sources),
        architecture=str(fields["system"]),
        features=tuple(features),
        is_fixed_output=bool(fields["fod"]),
        prefer_local_build=bool(fields["prefer_local"]),
        pname=str(fields["pname"]),
        top=bool(fields["top"]),
    )


# The shape of the real graph, in thousandths: (inputs up to, share of the derivations), and the
# depth up to which that share lies. The fetched sources, 40 in 100, lie at one depth.
_INPUTS = (
    *((0, 9), (2, 13), (3, 43), (4, 543), (5, 635), (6, 686), (7, 791), (8, 845), (9, 886)),
    *((10, 912), (12, 944), (16, 967), (24, 982), (40, 994), (100, 999), (300, 1000)),
)
_DEPTHS = (
    *((1, 9), (5, 17), (26, 22), (29, 34), (31, 440), (33, 503), (36, 527), (40, 568), (41, 646)),
    *((44, 730), (47, 764), (58, 800), (60, 895), (62, 957), (64, 985), (70, 995), (78, 1000)),
)


def generate_graph(size: int, seed: int = 1) -> list[Drv]:
    """A graph of `size` derivations in the shape of the real one, inputs first.

    78 levels; one derivation that 94 in 100 need directly, above a bootstrap chain; few
    derivations needed by many, many needed by one; sources shared; a third entry points.
    """
    rng = random.Random(seed)
    fetched: list[Drv] = []
    levels = sorted(_pick(_DEPTHS, rng.randrange(1000), rng) for _ in range(size))
    made: list[Drv] = []
    starts: dict[int, int] = {}
    hub: Drv | None = None
    level = 0
    for place, wanted in enumerate(levels):
        # A level needs one below it, so no level is left out.
        if wanted > level:
            level += 1
            starts[level] = place
        inputs = _inputs(rng, made, starts, level, hub)
        if level > FETCHED_LEVEL and fetched and fetched[-1] not in inputs:
            inputs.append(fetched.pop())
        name = f"package-{seed}-{place}"
        made.append(
            derivation(
                name,
                *inputs,
                outputs=("out", "dev") if rng.random() < 0.002 else ("out",),
                sources=[
                    f"patch-{int(1300 * rng.random() ** 3)}" for _ in range(rng.random() > 0.01)
                ],
                architecture="i686-linux" if rng.random() < 0.02 else "x86_64-linux",
                is_fixed_output=level == FETCHED_LEVEL,
            )
        )
        if level == FETCHED_LEVEL:
            fetched.append(made[-1])
        if hub is None and level == 29:
            hub = made[-1]
    needed = {name for drv in made for name in drv.dependencies}
    return [
        replace(drv, top=True) if drv.drv not in needed or rng.random() < 0.2 else drv
        for drv in made
    ]


def _pick(steps: Sequence[tuple[int, int]], thousandth: int, rng: random.Random) -> int:
    place = bisect.bisect_right([share for _, share in steps], thousandth)
    low = steps[place - 1][0] + 1 if place else 0
    return rng.randint(low, steps[place][0])


def _inputs(
    rng: random.Random, made: list[Drv], starts: dict[int, int], level: int, hub: Drv | None
) -> list[Drv]:
    if level <= 1:
        return []
    below = starts[level]
    chosen = {rng.randrange(starts[level - 1], below)}
    for _ in range(_pick(_INPUTS, rng.randrange(1000), rng) - 2):
        # The cube makes few of them popular.
        chosen.add(int(below * rng.random() ** 3))
    inputs = [made[place] for place in sorted(chosen)]
    if hub is not None and hub not in inputs and rng.random() < 0.98:
        inputs.append(hub)
    return inputs


def renamed(graph: Sequence[Drv], copy: int) -> list[Drv]:
    """Another graph of the same shape: every derivation and output anew, the sources shared."""

    def other(name: str) -> str:
        return store_hash(f"copy {copy} {name[:32]}") + name[32:]

    return [
        replace(
            drv,
            drv=other(drv.drv),
            dependencies=tuple(map(other, drv.dependencies)),
            outputs={o: STORE + other(base_name(path)) for o, path in drv.outputs.items()},
        )
        for drv in graph
    ]


def walk_order(graph: Sequence[Drv]) -> list[Drv]:
    """The graph as a walk reports it: entry points first, then wave by wave what they need.

    What nothing needs counts as an entry point here, so that nothing is left out.
    """
    by_name = {drv.drv: drv for drv in graph}
    needed = {name for drv in graph for name in drv.dependencies}
    wave = [drv for drv in graph if drv.top or drv.drv not in needed]
    seen = {drv.drv for drv in wave}
    ordered: list[Drv] = []
    while wave:
        ordered += wave
        following: list[Drv] = []
        for drv in wave:
            for name in drv.dependencies:
                if name not in seen:
                    seen.add(name)
                    following.append(by_name[name])
        wave = following
    return ordered


def in_batches(drvs: Sequence[Drv], size: int = BATCH) -> Iterator[Sequence[Drv]]:
    """The derivations in batches as a worker sends them."""
    for start in range(0, len(drvs), size):
        yield drvs[start : start + size]
