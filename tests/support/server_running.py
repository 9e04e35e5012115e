"""A server running in the test's own process, on a real port, with a real database."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gradient.app import Server
from gradient.config import Config, Listen, ObjectStore
from gradient.config import Database as DatabaseConfig
from gradient.protocol import DiscoveredDerivation, EntryPoint, EvalResult
from gradient.timing import Timing
from tests.support.database import Database
from tests.support.graph_builder import Drv
from tests.support.graph_world import World

# No tick and no renewal within a test: what happens, happens because of a kick.
NO_TICK = Timing(tick=3600, pause=0.05, drain=5)


def configuration(
    database: Database, folder: Path, *, instance: str = "server-1", objects: Path | None = None
) -> Config:
    """A configuration on a free port, with state and objects below `folder`."""
    return Config(
        instance=instance,
        state_dir=folder,
        listen=Listen(host="127.0.0.1", port=0),
        database=DatabaseConfig(url=database.dsn),
        object_store=ObjectStore(url=(objects or folder / "objects").as_uri()),
    )


@asynccontextmanager
async def running_server(
    database: Database,
    folder: Path,
    timing: Timing = NO_TICK,
    *,
    instance: str = "server-1",
    objects: Path | None = None,
) -> AsyncIterator[Server]:
    """A started server; stopped at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(configuration(database, folder, instance=instance, objects=objects), timing)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def new_world(database: Database, *workers: str) -> World:
    """A project with a cache and a task, and workers registered with the token `secret`."""
    world = World(database.connect())
    project = world.project()
    world.task(project)
    for worker in workers or ("w1",):
        world.value(
            "select gradient.register_worker('main', %s, %s)",
            worker,
            hashlib.sha256(b"secret").digest(),
        )
    return world


def eval_result(derivations: Iterable[Drv], entry_points: Iterable[Drv] = ()) -> EvalResult:
    """A batch as a worker reports it."""
    return EvalResult(
        derivations=[msgspec.convert(d.wire(), DiscoveredDerivation) for d in derivations],
        entry_points=[EntryPoint(attribute=d.name, drv=d.drv) for d in entry_points],
    )


async def upload(server: Server, *nars: dict[str, object]) -> None:
    """Commit NARs through the server's graph writer, as its cache's routes do."""
    for nar in nars:
        await server.writer.commit_nar(nar)
