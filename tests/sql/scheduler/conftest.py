"""The worlds that the scheduler's tests play in, and what a server asks for a worker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.database import Connection, Database
from tests.support.graph_world import World


@pytest.fixture
def world(db: Connection) -> World:
    """A world with one project, its cache and a task, in a transaction that is rolled back."""
    made = World(db)
    made.task(made.project())
    return made


@pytest.fixture
def committed(clean_db: Database) -> World:
    """The same in a database of its own, for what several sessions must see."""
    made = World(clean_db.connect())
    made.task(made.project())
    return made


def connection(world: World, worker: str = "w1") -> int:
    """The number of the worker's connection."""
    number: int = world.value(
        "select connection from gradient.worker_connection where worker_id = %s", worker
    )
    return number


def assign(
    world: World, worker: str = "w1", kind: str = "build", slots: int = 1000
) -> list[dict[str, Any]]:
    """What the worker, as it is connected now, is assigned."""
    jobs = [
        row["assign"]
        for row in world.rows(
            "select scheduler.assign(%s, %s, %s, %s)",
            worker,
            connection(world, worker),
            kind,
            slots,
        )
    ]
    for job in jobs:
        world.assignments[job["job"]] = job["assignment"]
        world.walker[job["assignment"]] = worker
    world.check()
    return jobs


def offers(world: World, worker: str = "w1") -> dict[str, dict[str, Any]]:
    """What the worker is offered: by job, the generation and the candidate."""
    return {row["job"]: row for row in world.rows("select * from scheduler.offers(%s)", worker)}
