"""The world that the operator's tests play in: made by the functions a person calls."""

from __future__ import annotations

import pytest

from tests.support.database import Connection
from tests.support.graph_world import World

PUBLIC_KEY = "main-1:" + "A" * 43 + "="


@pytest.fixture
def world(db: Connection) -> World:
    """A world with nothing in it, in a transaction that is rolled back."""
    return World(db)


@pytest.fixture
def furnished(world: World) -> World:
    """A world with project main, its cache main and its task site."""
    world.conn.execute("select gradient.create_project('main')")
    world.conn.execute("select gradient.create_cache('main', 'main-1', %s, 'sealed')", [PUBLIC_KEY])
    world.conn.execute("select gradient.subscribe_cache('main', 'main')")
    world.conn.execute(
        "select gradient.create_task('main', 'site', 'https://example.org/site.git')"
    )
    return world
