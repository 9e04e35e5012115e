"""Fixtures of the end-to-end suite."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import Database
from tests.support.e2e_flake import Repository
from tests.support.e2e_world import World, running_world
from tests.support.nix_store import unavailable_reason


@pytest.fixture
def world(clean_db: Database, tmp_path: Path) -> Iterator[World]:
    """Database and server, running."""
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with running_world(clean_db, tmp_path) as world:
        yield world


@pytest.fixture
def meeting() -> Iterator[Path]:
    """A folder that builders can write to, whoever they run as."""
    with tempfile.TemporaryDirectory(prefix="gradient-meeting-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty git repository."""
    return Repository(tmp_path / "repository")
