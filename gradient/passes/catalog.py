"""The passes of a server: what each calls, how often, and what wakes it."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import psycopg
import structlog

from gradient.cache.collect import collect_objects
from gradient.cache.database import Database
from gradient.cache.objects import ObjectStore
from gradient.db.call import Rules, document
from gradient.graph.writer import GraphWriter
from gradient.instance import hold_instance
from gradient.passes.runner import Pass
from gradient.sessions.registry import Sessions
from gradient.timing import Timing

log = structlog.get_logger(__name__)


class ServerPasses:
    """The passes of one server over its parts; `catalog` lists them for the runner."""

    def __init__(
        self,
        instance: str,
        dsn: str,
        rules: Rules,
        writer: GraphWriter,
        sessions: Sessions,
        database: Database,
        store: ObjectStore,
    ) -> None:
        self._instance = instance
        self._dsn = dsn
        self._rules = rules
        self._writer = writer
        self._sessions = sessions
        self._database = database
        self._store = store

    def catalog(self, timing: Timing) -> list[Pass]:
        """Every pass with its interval and its topics."""
        return [
            Pass(
                name="builds",
                run=self._builds,
                interval=timing.tick,
                topics=frozenset({"builds"}),
            ),
            Pass(name="assignment", run=self._assignment, interval=timing.tick),
            Pass(
                name="aborts",
                run=self._aborts,
                interval=timing.tick,
                topics=frozenset({"aborts"}),
            ),
            Pass(name="presence", run=self._presence, interval=timing.renewal),
            Pass(name="dead_instances", run=self._dead_instances, interval=timing.renewal),
            Pass(
                name="evaluation_collection",
                run=self._collect_evaluations,
                interval=timing.collection,
                topics=frozenset({"evaluations"}),
            ),
            Pass(name="object_collection", run=self._collect, interval=timing.collection),
        ]

    async def _builds(self) -> None:
        """What time alone brings about; what it changes kicks the sessions."""
        await self._writer.message("scheduler.build_pass", self._instance)

    async def _assignment(self) -> None:
        """A look at every standing request and offer, should a kick have been lost."""
        if await self._rules.value("scheduler.work_waits"):
            self._sessions.wake()

    async def _aborts(self) -> None:
        await self._sessions.abort(await self._rules.rows("scheduler.aborts", self._instance))

    async def _presence(self) -> None:
        """Signs of life: of this server, and of its workers, in one statement each."""
        await self._rules.value("scheduler.instance_seen", self._instance)
        self._sessions.close_silent()
        seen = self._sessions.seen()
        if seen:
            now = await self._rules.value("gradient.current_time")
            workers = [
                {"worker": worker, "at": now - timedelta(seconds=silence), "metrics": metrics}
                for worker, silence, metrics in seen
            ]
            await self._rules.value("scheduler.workers_seen", document(workers))

    async def _dead_instances(self) -> None:
        """Recover the work of servers that died, holding the lock of each meanwhile."""
        for name in await self._rules.values("scheduler.instances_presumed_dead"):
            lock = await hold_instance(self._dsn, name)
            if lock is None:
                continue
            try:
                recovered = await self._writer.message("scheduler.recover_interrupted_work", name)
                log.warning("recovered the work of a dead server", dead=name, recovered=recovered)
            finally:
                with contextlib.suppress(psycopg.Error):
                    await lock.close()

    async def _collect_evaluations(self) -> None:
        """Delete what tasks keep no longer, a few evaluations in each transaction."""
        while await self._writer.message("graph.collect_evaluations"):
            pass

    async def _collect(self) -> None:
        await collect_objects(self._database, self._store)
