"""A small world in a database: projects, caches, tasks, evaluations, workers, and the messages
that they send. Every step calls the function that the server would call, then checks that no
invariant is broken.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.support.database import Connection, check
from tests.support.graph_builder import (
    Drv,
    batch,
    drv_nar,
    nar,
    output_nars,
    source,
    source_nar,
)

ARCHITECTURE = "x86_64-linux"


@contextmanager
def refused(sqlstate: str, *words: str) -> Iterator[None]:
    """The block is refused with this SQLSTATE and a message that holds all of `words`."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert caught.value.sqlstate == sqlstate, caught.value
    for word in words:
        assert word in str(caught.value)


class World:
    """One connection and what a test made through it.

    With `checked` (the default) `gradient.violations()` must be empty after every step.
    """

    def __init__(self, conn: Connection, *, checked: bool = True) -> None:
        self.conn = conn
        self.checked = checked
        self.assignments: dict[str, int] = {}
        self.walker: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self._now: datetime | None = None

    # Calls ------------------------------------------------------------------------------------

    def rows(self, query: LiteralString, *params: Any) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, params).fetchall()

    def value(self, query: LiteralString, *params: Any) -> Any:
        """The first column of the only row; None when there is no row."""
        found = self.conn.execute(query, params).fetchall()
        assert len(found) <= 1, found
        return found[0][0] if found else None

    def message(self, call: LiteralString, *params: Any) -> Any:
        """One message in a transaction of its own (a savepoint inside of one), then the check."""
        with self.conn.transaction():
            result = self.value(call, *params)
        self.check()
        return result

    def check(self) -> None:
        """Fail when an invariant is broken."""
        if self.checked:
            check(self.conn)

    # The clock --------------------------------------------------------------------------------

    def at(self, moment: datetime) -> None:
        """Stop the database's clock at this moment, for this session."""
        self.conn.execute("update gradient.setting set value = 'on' where name = 'fake_clock'")
        self.conn.execute("select set_config('gradient.fake_now', %s, false)", [moment.isoformat()])
        self._now = moment

    def later(self, **duration: float) -> None:
        """Move the database's clock on, by what timedelta takes."""
        now: datetime = self._now or self.value("select gradient.current_time()")
        self.at(now + timedelta(**duration))

    # People, places, workers ------------------------------------------------------------------

    def project(self, name: str = "main", *, cache: str | None = None) -> int:
        """A project with a cache of its own, or with the one named."""
        project: int = self.value(
            "insert into gradient.project (name, display_name, created_at)"
            " values (%s, %s, gradient.current_time()) returning id",
            name,
            name,
        )
        found = self.value("select id from gradient.cache where name = %s", cache or name)
        self.subscribe(project, found or self.cache(cache or name))
        return project

    def cache(self, name: str) -> int:
        """A cache; it signs nothing here."""
        made: int = self.value(
            "insert into gradient.cache"
            " (name, display_name, key_name, public_key, private_key_encrypted, created_at)"
            " values (%s, %s, %s, 'key', 'key', gradient.current_time()) returning id",
            name,
            name,
            f"{name}-1",
        )
        return made

    def subscribe(self, project: int, cache: int, mode: str = "ReadWrite") -> None:
        """Let a project use a cache."""
        self.conn.execute(
            "insert into gradient.project_cache (project, cache, mode) values (%s, %s, %s)",
            [project, cache, mode],
        )

    def task(self, project: int, name: str | None = None) -> int:
        """A task of a project."""
        name = name or f"task-{next(self._numbers)}"
        made: int = self.value(
            "insert into gradient.task (project, name, display_name, repository, created_at)"
            " values (%s, %s, %s, 'https://example.org/repository.git', gradient.current_time())"
            " returning id",
            project,
            name,
            name,
        )
        return made

    def evaluation(self, task: int | None = None) -> int:
        """A queued evaluation of the task, or of the only project's first task."""
        if task is None:
            task = self.value("select min(id) from gradient.task")
        if task is None:
            project = self.value("select id from gradient.project") or self.project()
            task = self.task(project)
        made: int = self.value(
            "insert into gradient.evaluation"
            " (task, repository, wildcard, status, concurrent, created_at, updated_at)"
            " select id, repository, wildcard, 'Queued', true, gradient.current_time(),"
            " gradient.current_time() from gradient.task where id = %s returning id",
            task,
        )
        return made

    def worker(
        self,
        name: str = "w1",
        *,
        architectures: Sequence[str] = (ARCHITECTURE,),
        features: Sequence[str] = (),
        instance: str = "server-1",
    ) -> str:
        """A connected worker that can do everything, for every project there is."""
        self.conn.execute(
            "insert into gradient.server_instance (name, version, address, started_at)"
            " values (%s, '1', 'http://localhost', gradient.current_time())"
            " on conflict (name) do nothing",
            [instance],
        )
        self.conn.execute(
            "insert into gradient.worker_connection"
            " (worker_id, instance, projects, can_fetch, can_eval, can_build, architectures,"
            " system_features, build_slots, eval_slots, version, connected_at)"
            " select %s, %s, array(select id from gradient.project), true, true, true, %s, %s,"
            " 1000000, 1000000, '1', gradient.current_time()"
            " on conflict (worker_id) do update set projects = excluded.projects",
            [name, instance, list(architectures), list(features)],
        )
        return name

    def take(self, kind: str, worker: str = "w1", slots: int = 1000) -> list[str]:
        """Have the worker assigned what it may run; the jobs it got, remembered with their ids."""
        self.worker(worker)
        connection = self.value(
            "select connection from gradient.worker_connection where worker_id = %s", worker
        )
        with self.conn.transaction():
            jobs = [
                job
                for (job,) in self.conn.execute(
                    "select scheduler.assign(%s, %s, %s, %s)", [worker, connection, kind, slots]
                )
            ]
        self.check()
        for job in jobs:
            self.assignments[job["job"]] = job["assignment"]
            self.walker[job["assignment"]] = worker
        return [job["job"] for job in jobs]

    def assignment(self, job: str) -> tuple[int, str]:
        """The assignment of a job that was taken, and its worker."""
        assignment = self.assignments[job]
        return assignment, self.walker[assignment]

    # Evaluations ------------------------------------------------------------------------------

    def start_walk(self, evaluation: int | None = None, worker: str = "w1") -> int:
        """An evaluation (a new one if none is given) handed out and walking; its id."""
        if evaluation is None:
            evaluation = self.evaluation()
        self.worker(worker)
        job = f"eval:{evaluation}"
        if job not in self.take("evaluation", worker):
            raise AssertionError(f"{job} was not handed out")
        assignment = self.assignments[job]
        flake = source(f"flake-{evaluation}")
        self.message("select graph.fetch_started(%s, %s)", assignment, worker)
        self.commit(source_nar(flake, assignment=assignment))
        self.message(
            "select graph.fetch_completed(%s, %s, %s, %s, %s, %s)",
            assignment,
            worker,
            flake,
            hashlib.sha1(flake.encode(), usedforsecurity=False).hexdigest(),
            "a change",
            "someone",
        )
        self.message("select graph.evaluating_flake(%s, %s)", assignment, worker)
        self.message("select graph.evaluating_derivations(%s, %s)", assignment, worker)
        return evaluation

    def record(
        self,
        evaluation: int,
        derivations: Iterable[Drv],
        entry_points: Iterable[Drv] = (),
        messages: Iterable[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Record one batch of an evaluation; its report."""
        return self.record_all([batch(evaluation, derivations, entry_points, messages)])[0]

    def record_all(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Record several batches in one message, as the graph writer's flush does."""
        reports: list[dict[str, Any]] = self.message(
            "select graph.record(%s)", Jsonb(list(batches))
        )
        assert len(reports) == len(batches)
        return reports

    def commit(self, *nars: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Commit NARs in one message; their reports."""
        reports: list[dict[str, Any]] = self.message(
            "select graph.commit_nars(%s)", Jsonb([dict(n) for n in nars])
        )
        return reports

    def upload(self, evaluation: int, *drvs: Drv) -> None:
        """Upload the `.drv` files and the sources of derivations, as their walk does first."""
        assignment = self.assignments[f"eval:{evaluation}"]
        sources = sorted({path for drv in drvs for path in drv.sources})
        nars = [drv_nar(drv, assignment=assignment) for drv in drvs]
        nars += [source_nar(path, assignment=assignment) for path in sources]
        if nars:
            self.commit(*nars)

    def complete_walk(self, evaluation: int) -> dict[str, Any]:
        """The evaluation's worker is done."""
        report: dict[str, Any] = self.message(
            "select graph.stream_completed(%s, %s)", *self.assignment(f"eval:{evaluation}")
        )
        return report

    def evaluate(
        self,
        *derivations: Drv,
        entry_points: Iterable[Drv] | None = None,
        task: int | None = None,
        worker: str = "w1",
    ) -> int:
        """A whole evaluation: walk, uploads, one batch, done. All are entry points by default."""
        evaluation = self.start_walk(self.evaluation(task), worker)
        self.upload(evaluation, *derivations)
        self.record(evaluation, derivations, derivations if entry_points is None else entry_points)
        self.complete_walk(evaluation)
        return evaluation

    def evaluation_status(self, evaluation: int) -> str:
        """The evaluation's status."""
        status: str = self.value("select status from gradient.evaluation where id = %s", evaluation)
        return status

    def errors(self, evaluation: int) -> list[str]:
        """The evaluation's error messages."""
        return [
            row["message"]
            for row in self.rows(
                "select message from gradient.evaluation_message"
                " where evaluation = %s and level = 'Error' order by id",
                evaluation,
            )
        ]

    # Builds -----------------------------------------------------------------------------------

    def id(self, drv: Drv) -> int:
        """The derivation's id, which is its shared build's."""
        found = self.value(
            "select id from gradient.derivation where hash = %s and name = %s", drv.hash, drv.name
        )
        assert found is not None, f"{drv.drv} is not recorded"
        return int(found)

    def build(self, drv: Drv) -> dict[str, Any]:
        """The row of the shared build."""
        [row] = self.rows(
            "select * from gradient.derivation_build where derivation = %s", self.id(drv)
        )
        return row

    def derivation(self, drv: Drv) -> dict[str, Any]:
        """The row of the derivation."""
        [row] = self.rows("select * from gradient.derivation where id = %s", self.id(drv))
        return row

    def status(self, drv: Drv) -> str:
        """The status of the shared build."""
        status: str = self.build(drv)["status"]
        return status

    def statuses(self, *drvs: Drv) -> list[str]:
        """The statuses of several shared builds."""
        return [self.status(drv) for drv in drvs]

    def ready(self) -> set[str]:
        """The names of the derivations that a worker could be given."""
        return {
            row["name"]
            for row in self.rows(
                "select d.name from gradient.ready_build r"
                " join gradient.derivation d on d.id = r.derivation_build"
            )
        }

    def attempts(self, drv: Drv) -> list[dict[str, Any]]:
        """The attempts of the shared build, oldest first."""
        return self.rows(
            "select * from gradient.build_attempt where derivation_build = %s order by id",
            self.id(drv),
        )

    def job(self, drv: Drv) -> str:
        """The name of the build's job."""
        return f"build:{self.id(drv)}"

    def assign(self, drv: Drv, worker: str = "w1") -> int:
        """Have the build handed out (with whatever else is ready); its assignment."""
        job = self.job(drv)
        open_one = self.value(
            "select id from gradient.dispatched_job where job = %s and finished_at is null", job
        )
        if open_one is None:
            taken = self.take("build", worker)
            assert job in taken, f"{drv.name}, {self.status(drv)}, was not handed out"
        return self.assignments[job]

    def start(
        self, drv: Drv, worker: str = "w1", *, builder_started: bool = True
    ) -> dict[str, Any]:
        """Hand the build out if it is not, and report that it runs."""
        self.assign(drv, worker)
        report: dict[str, Any] = self.message(
            "select graph.build_started(%s, %s, %s)",
            *self.assignment(self.job(drv)),
            builder_started,
        )
        return report

    def upload_outputs(
        self, drv: Drv, *references: str, outputs: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Upload outputs of the running build; `references` are store paths."""
        assignment = self.assignments[self.job(drv)]
        return self.commit(*output_nars(drv, references, assignment=assignment, outputs=outputs))

    def report_output(self, drv: Drv, *, substituted: bool = False) -> None:
        """Report that the outputs exist on the worker."""
        self.message(
            "select graph.build_output(%s, %s, %s, %s)",
            *self.assignment(self.job(drv)),
            substituted,
            Jsonb({"build_time_ms": 1}),
        )

    def complete(self, drv: Drv) -> dict[str, Any]:
        """Report the running build as completed."""
        report: dict[str, Any] = self.message(
            "select graph.build_completed(%s, %s)", *self.assignment(self.job(drv))
        )
        return report

    def run(self, drv: Drv, *references: str, worker: str = "w1") -> None:
        """The whole life of a build that succeeds; `references` are those of its outputs."""
        self.start(drv, worker)
        self.report_output(drv)
        self.upload_outputs(drv, *references)
        self.complete(drv)

    def fail(
        self,
        drv: Drv,
        outcome_class: str = "builder_failed",
        message: str = "it broke",
        missing_paths: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Report the build as failed; it is started first if it was not."""
        if self.status(drv) != "Building":
            self.start(drv)
        report: dict[str, Any] = self.message(
            "select graph.build_failed(%s, %s, %s, %s, %s)",
            *self.assignment(self.job(drv)),
            outcome_class,
            message,
            list(missing_paths),
        )
        return report

    def claims(self, cache: int) -> set[str]:
        """The store paths that a cache claims."""
        return {
            row["path"]
            for row in self.rows(
                "select '/nix/store/' || p.hash || '-' || p.package as path"
                " from gradient.cached_path_signature s"
                " join gradient.cached_path p on p.id = s.cached_path where s.cache = %s",
                cache,
            )
        }


def stray_nar(path: str, references: Iterable[str] = (), content: str = "") -> dict[str, Any]:
    """A NAR that no job uploads: kept in no cache."""
    return nar(path, references, caches=[], content=content)
