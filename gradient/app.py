"""A server put together from its parts: pools, graph writer, sessions, passes, cache, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Coroutine, Generator, Mapping
from typing import Any, Final

import psycopg
import structlog
import uvicorn
from psycopg_pool import PoolTimeout
from starlette.applications import Starlette
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from gradient.cache.context import CacheContext
from gradient.cache.objects import ObjectStore
from gradient.cache.routes import cache_routes
from gradient.config import Config
from gradient.db.call import Rules
from gradient.db.connect import Pool, open_pool
from gradient.db.listen import EVERYTHING, listen
from gradient.errors import GradientError
from gradient.graph.writer import GraphWriter
from gradient.instance import Instance
from gradient.passes.catalog import ServerPasses
from gradient.passes.runner import Passes
from gradient.protocol import MAX_FRAME_BYTES, JobKind
from gradient.secrets import Secrets
from gradient.sessions.registry import Sessions
from gradient.sessions.session import SessionParts
from gradient.tasks import Crew
from gradient.timing import Timing
from gradient.version import VERSION
from gradient.web.health import health_routes

POOL_SIZE: Final = 8
# Enough for transfers that are under way to end by themselves.
HTTP_STOP_SECONDS: Final = 10
# Which kinds of job a topic may have made available; none stands for all.
_WORK_TOPICS: Final[Mapping[str, tuple[JobKind, ...]]] = {
    "builds": ("build",),
    "evaluations": ("evaluation",),
    EVERYTHING: (),
}

log = structlog.get_logger(__name__)


class Server:
    """One server on one database.

    `start` returns once it listens; `url` is then its address. `stop` drains it. `run` does both
    and waits for SIGTERM or SIGINT between. The database (config.database.url) is migrated and
    deployed already. Needs no Nix.
    """

    def __init__(self, config: Config, timing: Timing | None = None) -> None:
        self._config = config
        self._timing = timing or Timing()
        self._dsn = config.database.url
        self._stack = contextlib.AsyncExitStack()
        self._crew = Crew()
        self._draining = False
        self._address: tuple[str, int] | None = None
        self._rules: Rules
        self._sessions: Sessions
        self._passes: Passes
        self._instance: Instance
        self.writer: GraphWriter

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that the server really listens on."""
        if self._address is None:
            raise RuntimeError("the server does not listen yet")
        return self._address

    @property
    def url(self) -> str:
        """The server's address as a URL, without a slash at its end."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop; a second signal stops at once.

        Raises what made a part of the server fail, after stopping.
        """
        loop = asyncio.get_running_loop()
        asked, at_once = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            (at_once if asked.is_set() else asked).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            if await _first(self.start(), asked.wait()):
                return
            failure = await _first(self._crew.failure(), asked.wait())
            await _first(self.stop(), at_once.wait())
            if isinstance(failure, BaseException):
                raise failure
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def start(self) -> None:
        """Open everything, recover what was interrupted, and listen."""
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        config, timing = self._config, self._timing
        store = ObjectStore(config.object_store_url, config.object_store.options)
        secrets = Secrets.from_state_dir(config.state_dir)
        listening = _bind(config.listen.host, config.listen.port)
        self._stack.callback(listening.close)
        host, port = listening.getsockname()[:2]
        self._address = (host, port)

        pool: Pool = await self._stack.enter_async_context(
            open_pool(self._dsn, name="gradient server", max_size=POOL_SIZE)
        )
        self._rules = Rules(pool)
        self.writer = GraphWriter(self._dsn, budget=timing.graph_budget)
        await self.writer.start()
        self._stack.push_async_callback(self.writer.close)

        self._instance = Instance(
            config.instance, self.url, self._dsn, self._rules, self.writer, timing
        )
        self._stack.push_async_callback(self._instance.release)
        await self._instance.take()

        context = CacheContext(pool, store, self.writer.commit_nar, secrets)
        self._stack.callback(context.close)
        self._sessions = Sessions(
            config.instance,
            SessionParts(
                rules=self._rules,
                writer=self.writer,
                store=store,
                timing=timing,
                may_assign=lambda: self._instance.held,
            ),
        )
        catalog = ServerPasses(
            config.instance,
            self._dsn,
            self._rules,
            self.writer,
            self._sessions,
            context.database,
            store,
        ).catalog(timing)
        self._passes = Passes(
            config.instance, self._rules, timing, catalog, lambda: self._instance.held
        )

        async def proto(websocket: WebSocket) -> None:
            await self._sessions.serve(websocket)

        routes: list[BaseRoute] = [
            WebSocketRoute("/proto", proto),
            *health_routes(pool, self.writer, store, self._not_serving),
            *cache_routes(context),
        ]
        self._passes.start(self._crew)
        self._crew.start(listen(self._dsn, self._on_topic), "listener")
        self._crew.start(self._instance.watch(self._fence, self._regained), "instance")
        await self._listen(Starlette(routes=routes), listening)
        log.info("server listens", url=self.url, instance=config.instance, version=VERSION)

    async def until_failed(self) -> None:
        """Return when a part of the started server has failed: it should then be stopped."""
        failure = await self._crew.failure()
        log.error("a part of the server failed", exc_info=failure)

    async def stop(self, reason: str = "the server stops") -> None:
        """Drain: no more jobs, sessions end when idle, the graph writer is flushed last."""
        if self._address is not None and not self._draining:
            self._draining = True
            log.info("server stops", reason=reason)
            try:
                async with asyncio.timeout(5):
                    await self._rules.value("scheduler.instance_draining", self._config.instance)
            except (psycopg.Error, PoolTimeout, GradientError, TimeoutError) as error:
                log.warning("drain not recorded", error=str(error))
            await self._sessions.drain(reason, self._timing.drain)
        await self._close()
        log.info("server stopped")

    async def _close(self) -> None:
        await self._crew.dismiss()
        await self._stack.aclose()

    # Parts --------------------------------------------------------------------------------------

    async def _listen(self, app: Starlette, listening: socket.socket) -> None:
        server = _Http(
            uvicorn.Config(
                app,
                ws="websockets-sansio",
                ws_max_size=MAX_FRAME_BYTES,
                # Our own heartbeat tells who is alive; the library's would cut a session whose
                # reading has stopped.
                ws_ping_interval=None,
                ws_ping_timeout=None,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=HTTP_STOP_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve([listening]), name="http")

        async def hang_up() -> None:
            server.should_exit = True
            await serving

        self._stack.push_async_callback(hang_up)
        while not server.started:
            if serving.done():
                serving.result()
                raise RuntimeError("the HTTP server ended before it listened")
            await asyncio.sleep(0.01)

    def _on_topic(self, topic: str) -> None:
        kinds = _WORK_TOPICS.get(topic)
        if kinds is not None:
            self._sessions.wake(*kinds)
        self._passes.kick(topic)

    def _fence(self) -> None:
        self._sessions.close_all("this server has lost the database")

    def _regained(self) -> None:
        self._on_topic(EVERYTHING)

    def _not_serving(self) -> str | None:
        if self._draining:
            return "the server is stopping"
        if not self._instance.held:
            return "the instance lock is lost; passes and assignments wait for it"
        return None


async def _first(*works: Coroutine[Any, Any, Any]) -> Any:
    """The result of whichever ends first; the others are cancelled and waited for."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task for task in tasks if task in done).result()


class _Http(uvicorn.Server):
    """uvicorn without its signal handlers: the server stops in its own order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off on every connection; without,
    # it does not, and each answer of two writes waits 40 ms for the client's delayed ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
