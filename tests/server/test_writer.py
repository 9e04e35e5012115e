"""The graph writer: what shares a transaction, who fails for what, and who never does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import psycopg
import pytest

from gradient.db.call import call
from gradient.errors import (
    ConflictError,
    MalformedContentError,
    NotFoundError,
    StaleAssignmentError,
)
from gradient.graph.writer import GraphTimeoutError, GraphWriter, RecordBatch, WriterClosedError
from tests.support.database import Connection, Database, check, with_database
from tests.support.graph_builder import Drv, batch, derivation, drv_nar, source_nar
from tests.support.graph_world import World
from tests.support.server_proxy import cutting_proxy
from tests.support.waiting import wait_until


@asynccontextmanager
async def writing(dsn: str, *, budget: float = 120.0) -> AsyncIterator[GraphWriter]:
    writer = GraphWriter(dsn, budget=budget)
    await writer.start()
    try:
        yield writer
    finally:
        await writer.close()


@contextmanager
def turn_held(database: Database) -> Iterator[Connection]:
    """Nobody writes to the graph within the block."""
    conn = database.connect(autocommit=False)
    conn.execute("select graph.take_turn()")
    try:
        yield conn
    finally:
        conn.rollback()


def writer_pid(conn: Connection) -> int | None:
    row = conn.execute(
        "select pid from pg_stat_activity where application_name = 'gradient writer'"
        " and datname = current_database()"
    ).fetchone()
    return row[0] if row else None


async def waits_for_turn(conn: Connection, other_than: int = 0) -> int:
    """Wait until the writer, on another backend than that, waits for a lock; its backend."""

    def waiting() -> int | None:
        row = conn.execute(
            "select pid from pg_stat_activity where application_name = 'gradient writer'"
            " and datname = current_database() and wait_event_type = 'Lock' and pid <> %s",
            [other_than],
        ).fetchone()
        return row[0] if row else None

    pid = await asyncio.to_thread(wait_until, waiting, 10.0, "the writer waiting")
    assert pid is not None
    return pid


def record_batch(
    evaluation: int, derivations: Iterable[Drv], entry_points: Iterable[Drv] = ()
) -> RecordBatch:
    return msgspec.convert(batch(evaluation, derivations, entry_points), RecordBatch)


def malformed(name: str) -> Drv:
    return Drv(drv=f"{derivation(name).drv}", outputs={"out": "/nix/store/not-a-path"})


def walked(world: World) -> set[str]:
    return {row["name"] for row in world.rows("select name from gradient.derivation where walked")}


def transactions(world: World) -> int:
    """How many transactions wrote the derivations."""
    found: int = world.value("select count(distinct xmin::text) from gradient.derivation")
    return found


@pytest.fixture
def world(clean_db: Database) -> World:
    return World(clean_db.connect())


async def test_queued_batches_share_one_transaction(clean_db: Database, world: World) -> None:
    evaluation = world.start_walk()
    drvs = [derivation(f"package-{number}") for number in range(5)]
    async with writing(clean_db.dsn) as writer:
        with turn_held(clean_db):
            first = asyncio.create_task(writer.record(record_batch(evaluation, [derivation("a")])))
            await waits_for_turn(world.conn)
            others = [
                asyncio.create_task(writer.record(record_batch(evaluation, [drv], [drv])))
                for drv in drvs
            ]
            await asyncio.sleep(0)
        await asyncio.gather(first, *others)
    assert walked(world) == {"a"} | {drv.name for drv in drvs}
    assert transactions(world) == 2


async def test_a_message_sees_every_batch_queued_before_it(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    drv = derivation("package")
    async with writing(clean_db.dsn) as writer:
        with turn_held(clean_db):
            recorded = await writer.submit_record(record_batch(evaluation, [drv], [drv]))
            completed = asyncio.create_task(
                writer.message("graph.stream_completed", *world.assignment(f"eval:{evaluation}"))
            )
            await waits_for_turn(world.conn)
        report, _ = await asyncio.gather(recorded, completed)
    assert report["skipped"] is False
    assert report["entry_points"] == 1
    assert world.evaluation_status(evaluation) == "Building"


@pytest.mark.scenario(9)
async def test_a_malformed_batch_fails_only_its_evaluation(
    clean_db: Database, world: World
) -> None:
    good, bad, other = world.start_walk(), world.start_walk(), world.start_walk()
    async with writing(clean_db.dsn) as writer:
        with turn_held(clean_db):
            waiting = asyncio.create_task(writer.record(record_batch(good, [derivation("a")])))
            await waits_for_turn(world.conn)
            futures = [
                await writer.submit_record(record_batch(good, [derivation("b")])),
                await writer.submit_record(record_batch(bad, [malformed("c")])),
                await writer.submit_record(record_batch(other, [derivation("d")])),
            ]
        await waiting
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results[1], MalformedContentError)
    assert not any(isinstance(result, Exception) for result in (results[0], results[2]))
    assert walked(world) == {"a", "b", "d"}
    assert world.evaluation_status(bad) == "Failed"
    assert "not-a-path" in world.errors(bad)[0]
    assert world.evaluation_status(good) == "EvaluatingDerivation"


async def test_a_batch_that_comes_too_late_fails_no_evaluation(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    stale = world.assignments[f"eval:{evaluation}"]
    world.message("select graph.return_assignments(%s, 'worker_lost')", [stale])
    world.start_walk(evaluation)
    late = msgspec.convert(batch(evaluation, [derivation("late")], assignment=stale), RecordBatch)
    async with writing(clean_db.dsn) as writer:
        with pytest.raises(StaleAssignmentError):
            await writer.record(late)
        with pytest.raises(NotFoundError):
            await writer.record(record_batch(4711, [derivation("nowhere")]))
    assert world.evaluation_status(evaluation) == "EvaluatingDerivation"
    assert world.errors(evaluation) == []
    assert walked(world) == set()


async def test_a_bad_nar_fails_only_its_uploader(clean_db: Database, world: World) -> None:
    evaluation = world.start_walk()
    assignment = world.assignments[f"eval:{evaluation}"]
    drvs = [derivation(f"package-{number}") for number in range(150)]
    nars = [drv_nar(drv, assignment=assignment) for drv in drvs]
    nars[70] = {**nars[70], "path": "/nix/store/not-a-path"}
    async with writing(clean_db.dsn) as writer:
        with turn_held(clean_db):
            tasks = [asyncio.create_task(writer.commit_nar(nar)) for nar in nars]
            await waits_for_turn(world.conn)
        results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [place for place, result in enumerate(results) if isinstance(result, Exception)]
    assert failed == [70]
    assert isinstance(results[70], MalformedContentError)
    assert [r["path"] for r in results if not isinstance(r, BaseException)] == [
        drv.path for place, drv in enumerate(drvs) if place != 70
    ]


async def test_other_content_for_a_backed_path_is_refused_among_good_ones(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    assignment = world.assignments[f"eval:{evaluation}"]
    backed = drv_nar(derivation("backed"), assignment=assignment)
    async with writing(clean_db.dsn) as writer:
        await writer.commit_nar(backed)
        other = {**backed, "nar_hash": drv_nar(derivation("other"))["nar_hash"]}
        with turn_held(clean_db):
            tasks = [
                asyncio.create_task(writer.commit_nar(nar))
                for nar in (drv_nar(derivation("a"), assignment=assignment), other, backed)
            ]
            await waits_for_turn(world.conn)
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(second, ConflictError)
    assert not isinstance(first, BaseException)
    assert first["created"]
    assert not isinstance(third, BaseException)
    assert third["created"] is False


async def test_more_bad_nars_than_savepoints_each_get_their_own_error(
    clean_db: Database, world: World
) -> None:
    bad = [{**source_nar(derivation(f"p-{n}").path), "path": f"bad-{n}"} for n in range(100)]
    async with writing(clean_db.dsn) as writer:
        results = await asyncio.gather(
            *(writer.commit_nar(nar) for nar in bad), return_exceptions=True
        )
    assert all(isinstance(result, MalformedContentError) for result in results)
    assert all(f"bad-{n}" in str(result) for n, result in enumerate(results))


async def test_a_deadlock_retries_the_transaction(clean_db: Database, world: World) -> None:
    evaluation = world.start_walk()
    # The writer's wait is the one that is looked at, so that the writer is the victim.
    world.conn.execute(f"alter database {clean_db.name} set deadlock_timeout = '1s'")
    async with writing(clean_db.dsn) as writer:
        rival = clean_db.connect(autocommit=False)
        rival.execute("set deadlock_timeout = '60s'")
        rival.execute("select from gradient.evaluation where id = %s for update", [evaluation])
        recorded = await writer.submit_record(record_batch(evaluation, [derivation("a")]))
        await waits_for_turn(world.conn)

        def collide() -> None:
            rival.execute("select graph.take_turn()")
            rival.rollback()

        thread = threading.Thread(target=collide)
        thread.start()
        report = await recorded
        await asyncio.to_thread(thread.join)
        assert writer.health.failures == {"conflict": 1}
    assert report["skipped"] is False
    assert walked(world) == {"a"}


@pytest.mark.scenario(53)
async def test_a_transaction_aborted_by_a_swallowed_error_is_not_an_empty_success(
    clean_db: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = world.start_walk()
    swallowed = 0

    async def careless(conn: Any, function: str, *arguments: Any) -> Any:
        nonlocal swallowed
        if not swallowed:
            swallowed += 1
            try:
                await conn.execute("select 1 / 0")
            except psycopg.Error:
                return "as if nothing had happened"
        return await call(conn, function, *arguments)

    monkeypatch.setattr("gradient.graph.writer.call", careless)
    async with writing(clean_db.dsn) as writer:
        await writer.message("graph.fail_evaluation", evaluation, "the reason", "test")
        assert writer.health.failures == {"conflict": 1}
    assert world.evaluation_status(evaluation) == "Failed"


@pytest.mark.scenario(56)
async def test_a_connection_killed_in_the_middle_of_a_flush_fails_nobody(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    async with writing(clean_db.dsn) as writer:
        with turn_held(clean_db):
            recorded = await writer.submit_record(record_batch(evaluation, [derivation("a")]))
            pid = await waits_for_turn(world.conn)
            world.conn.execute("select pg_terminate_backend(%s)", [pid])
            await waits_for_turn(world.conn, other_than=pid)
            also = await writer.submit_record(record_batch(evaluation, [derivation("b")]))
        reports = await asyncio.gather(recorded, also)
        assert writer.health.failures == {"outage": 1}
        assert writer.health.reason is None
    assert [report["created"] for report in reports] == [1, 1]
    assert walked(world) == {"a", "b"}
    assert world.evaluation_status(evaluation) == "EvaluatingDerivation"


@pytest.mark.scenario(56)
@pytest.mark.parametrize("before", [True, False], ids=["before-commit", "after-commit"])
async def test_a_connection_lost_around_commit_fails_nobody_and_records_once(
    clean_db: Database, world: World, before: bool
) -> None:
    evaluation = world.start_walk()
    assignment = world.assignments[f"eval:{evaluation}"]
    drv = derivation("a")
    async with cutting_proxy(clean_db.dsn) as (proxy, dsn), writing(dsn) as writer:
        await writer.record(record_batch(evaluation, [derivation("b")]))
        proxy.arm(b"commit", before=before)
        recorded = await writer.submit_record(record_batch(evaluation, [drv], [drv]))
        committed = asyncio.create_task(writer.commit_nar(drv_nar(drv, assignment=assignment)))
        await asyncio.gather(recorded, committed)
        assert proxy.cuts == 1
        proxy.arm(b"commit", before=before)
        await writer.message("graph.stream_completed", *world.assignment(f"eval:{evaluation}"))
        assert proxy.cuts == 2
        assert writer.health.failures == {"outage": 2}
    assert walked(world) == {"a", "b"}
    assert world.value("select count(*) from gradient.entry_point") == 1
    assert world.evaluation_status(evaluation) == "Building"
    assert world.errors(evaluation) == []


async def test_a_database_that_is_away_keeps_the_queue(clean_db: Database, world: World) -> None:
    evaluation = world.start_walk()
    async with writing(clean_db.dsn) as writer:
        await writer.record(record_batch(evaluation, [derivation("a")]))
        admin = psycopg.connect(with_database(clean_db.dsn, "postgres"), autocommit=True)
        admin.execute(f"alter database {clean_db.name} with allow_connections false")
        admin.execute("select pg_terminate_backend(%s)", [writer_pid(world.conn)])
        recorded = await writer.submit_record(record_batch(evaluation, [derivation("b")]))
        async with asyncio.timeout(15):
            while (reason := writer.health.reason) is None:
                await asyncio.sleep(0.01)
        assert not recorded.done()
        assert "no database" in reason
        admin.execute(f"alter database {clean_db.name} with allow_connections true")
        admin.close()
        await recorded
        health = writer.health
    assert health.reason is None
    assert walked(world) == {"a", "b"}


async def test_a_transaction_over_its_budget_fails_its_callers(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    assignment = world.assignments[f"eval:{evaluation}"]
    async with writing(clean_db.dsn, budget=0.3) as writer:
        with turn_held(clean_db):
            recorded = await writer.submit_record(record_batch(evaluation, [derivation("a")]))
            committed = asyncio.create_task(
                writer.commit_nar(drv_nar(derivation("a"), assignment=assignment))
            )
            with pytest.raises(GraphTimeoutError, match=r"^graph transaction exceeded 0.3s$"):
                await committed
            # The evaluation cannot be failed either, and its caller does not hear before it is.
            async with asyncio.timeout(15):
                while writer.health.failures["budget"] < 3:
                    await asyncio.sleep(0.01)
            assert not recorded.done()
        with pytest.raises(GraphTimeoutError):
            await recorded
    assert world.evaluation_status(evaluation) == "Failed"
    assert world.errors(evaluation) == ["graph transaction exceeded 0.3s"]


async def test_a_full_queue_makes_callers_wait_before_they_are_queued(
    clean_db: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradient.graph.writer.QUEUED_DERIVATIONS", 3)
    evaluation = world.start_walk()
    async with writing(clean_db.dsn) as writer:
        with turn_held(clean_db):
            futures = [await writer.submit_record(record_batch(evaluation, [derivation("p-0")]))]
            await waits_for_turn(world.conn)
            futures += [
                await writer.submit_record(record_batch(evaluation, [derivation(f"p-{n}")]))
                for n in range(1, 4)
            ]
            late = asyncio.create_task(
                writer.submit_record(record_batch(evaluation, [derivation("late")]))
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(late), 0.1)
            assert writer.health.queued == 3
        await asyncio.gather(*futures, await late)
    assert walked(world) == {"p-0", "p-1", "p-2", "p-3", "late"}


async def test_closing_writes_what_is_queued_and_takes_nothing_more(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    writer = GraphWriter(clean_db.dsn)
    await writer.start()
    with turn_held(clean_db):
        futures = [
            await writer.submit_record(record_batch(evaluation, [derivation(f"p-{n}")]))
            for n in range(3)
        ]
        await waits_for_turn(world.conn)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
    await closing
    assert len([future.result() for future in futures]) == 3
    with pytest.raises(WriterClosedError):
        await writer.record(record_batch(evaluation, [derivation("late")]))
    assert walked(world) == {"p-0", "p-1", "p-2"}


async def test_closing_without_a_database_gives_the_callers_an_error(
    clean_db: Database, world: World
) -> None:
    evaluation = world.start_walk()
    writer = GraphWriter(clean_db.dsn)
    await writer.start()
    with turn_held(clean_db):
        recorded = await writer.submit_record(record_batch(evaluation, [derivation("a")]))
        await waits_for_turn(world.conn)
        await writer.close(patience=0.2)
    with pytest.raises(WriterClosedError):
        await recorded
    assert walked(world) == set()


@pytest.mark.scenario(55)
async def test_two_servers_record_overlapping_walks_and_nobody_fails(
    clean_db: Database, world: World
) -> None:
    first, second = world.start_walk(), world.start_walk()
    layers = [[derivation(f"base-{n}") for n in range(40)]]
    for depth in range(1, 12):
        below = layers[-1]
        layers.append(
            [derivation(f"layer-{depth}-{n}", below[n], below[(n * 7 + 3) % 40]) for n in range(40)]
        )
    drvs = [drv for layer in reversed(layers) for drv in layer]
    chunks = [drvs[start : start + 20] for start in range(0, len(drvs), 20)]

    async def walk(writer: GraphWriter, evaluation: int, order: list[list[Drv]]) -> None:
        for start in range(0, len(order), 4):
            await asyncio.gather(
                *(
                    writer.record(record_batch(evaluation, chunk, chunk))
                    for chunk in order[start : start + 4]
                )
            )

    async with writing(clean_db.dsn) as one, writing(clean_db.dsn) as two:
        await asyncio.gather(walk(one, first, chunks), walk(two, second, list(reversed(chunks))))
        failures = one.health.failures | two.health.failures
    assert not {"content", "outage", "budget"} & failures.keys()
    assert world.value("select count(*) from gradient.derivation where walked") == len(drvs)
    assert world.value("select count(*) from gradient.derivation_dependency") == sum(
        len(drv.dependencies) for drv in drvs
    )
    for evaluation in (first, second):
        assert world.evaluation_status(evaluation) == "EvaluatingDerivation"
    check(world.conn)
