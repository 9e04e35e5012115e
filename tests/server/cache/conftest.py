"""A running cache server for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.cache.support import CacheServer, MadeCache
from tests.support.database import Database
from tests.support.graph_world import World


@pytest.fixture
def server(clean_db: Database, tmp_path: Path) -> Iterator[CacheServer]:
    with CacheServer(clean_db, tmp_path).running() as running:
        yield running


@pytest.fixture
def main(server: CacheServer) -> MadeCache:
    """A private cache."""
    return server.make_cache("main")


@pytest.fixture
def world(server: CacheServer) -> World:
    """The graph's world on the server's database; its messages are committed."""
    return World(server.conn)
