"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_commands import Cli
from tests.support.database import Database
from tests.support.graph_world import World


@pytest.fixture
def cli(clean_db: Database, tmp_path: Path) -> Cli:
    """The command line on a migrated database of its own."""
    return Cli(clean_db.dsn, tmp_path / "state")


@pytest.fixture
def no_database(tmp_path: Path) -> Cli:
    """The command line where no database answers."""
    return Cli(f"host={tmp_path} dbname=none", tmp_path / "state")


@pytest.fixture
def world(clean_db: Database) -> World:
    """What servers and workers do to the database of `cli`."""
    return World(clean_db.connect())
