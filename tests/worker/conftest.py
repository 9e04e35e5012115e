"""Fixtures of the worker's suite: a store, a scripted peer, and a worker between them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.nix_store import NixStore, unavailable_reason
from tests.support.scripted_server import TOKEN, ScriptedServer
from worker.agent import Agent
from worker.config import WorkerConfig
from worker.nix.settings import NixSettings, detect

AgentFactory = Callable[..., Awaitable[Agent]]


@pytest.fixture
def meeting() -> Iterator[Path]:
    """A folder that builders can write to, whoever they run as."""
    with tempfile.TemporaryDirectory(prefix="gradient-meeting-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NixStore]:
    """An empty Nix store over /nix for this process and its children, until the test ends."""
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with NixStore(tmp_path / "store").entered() as entered:
        yield entered


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """The scripted peer, listening."""
    async with ScriptedServer().running() as running:
        yield running


@pytest_asyncio.fixture
async def start_worker(
    store: NixStore, server: ScriptedServer, tmp_path: Path
) -> AsyncIterator[AgentFactory]:
    """Starts a worker in this process; all are stopped at the end."""
    running: list[tuple[Agent, asyncio.Task[None]]] = []

    async def start(build_slots: int = 1, eval_slots: int = 1, name: str = "w1") -> Agent:
        state_dir = tmp_path / name
        settings = NixSettings(state_dir=state_dir, options={"sandbox": "false"})
        config = WorkerConfig(
            server=server.url,
            worker_id=name,
            tokens=[TOKEN],
            build_slots=build_slots,
            eval_slots=eval_slots,
            state_dir=state_dir,
        )
        agent = Agent(config, settings, await detect(settings))
        running.append((agent, asyncio.create_task(agent.run())))
        return agent

    yield start
    for agent, task in running:
        agent.stop()
        await asyncio.wait((task,), timeout=15)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
