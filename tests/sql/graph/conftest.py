"""The world that the graph's tests play in."""

from __future__ import annotations

import pytest

from tests.support.database import Connection
from tests.support.graph_world import World


@pytest.fixture
def world(db: Connection) -> World:
    """A world with one project, its cache and a task, in a transaction that is rolled back."""
    made = World(db)
    made.task(made.project())
    return made
