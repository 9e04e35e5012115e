"""Fixtures for real Nix: each test has an empty store of its own, mounted over /nix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.nix_store import NixStore, unavailable_reason
from tests.worker.nix.support import Nix
from worker.nix.building import BuildSlot
from worker.nix.serve import ServeProcess
from worker.nix.settings import NixSettings


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[NixStore]:
    """An empty store over /nix, for this process and its children, until the test ends."""
    if reason := unavailable_reason():
        pytest.skip(reason)
    with NixStore(tmp_path / "own-store").entered() as store:
        yield store


@pytest.fixture
def settings(tmp_path: Path, own_store: NixStore) -> NixSettings:
    """How the worker runs Nix in the test's store."""
    return NixSettings(tmp_path / "state")


@pytest.fixture
def nix(settings: NixSettings) -> Nix:
    """Nix's own commands, run to their end, in the test's store."""
    return Nix(settings)


@pytest.fixture
async def serve(settings: NixSettings) -> AsyncIterator[ServeProcess]:
    """A store process."""
    process = await ServeProcess.start(settings)
    yield process
    await process.close()


@pytest.fixture
async def slot(settings: NixSettings) -> AsyncIterator[BuildSlot]:
    """A build slot."""
    slot = BuildSlot(settings)
    yield slot
    await slot.close()
