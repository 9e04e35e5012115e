"""Bad frames: each gets an error that names what is wrong, and the session goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import websockets

from gradient.protocol import (
    MAX_FRAME_BYTES,
    AssignJobResponse,
    Building,
    Error,
    InitAck,
    JobScore,
    JobScores,
    LogFrame,
    Reject,
    Report,
    RequestJob,
    ResumeAck,
    RunningJob,
    RunningJobs,
    StaleAssignment,
    WorkerCapabilities,
    WorkerMessage,
    encode_log,
)
from tests.support.database import Database
from tests.support.graph_builder import derivation
from tests.support.server_client import connected, hello, worker_client
from tests.support.server_running import new_world, running_server


@pytest.mark.parametrize(
    ("frame", "field", "words"),
    [
        ("{", None, "not JSON"),
        ("\ud7ff", None, "not JSON"),
        ("[]", None, "array"),
        ('{"slots": 1}', None, "type"),
        ('{"type": "dance"}', "$.type", "dance"),
        ('{"type": "request_job", "kind": "build"}', None, "slots"),
        ('{"type": "request_job", "kind": "nap", "slots": 1}', "$.kind", "nap"),
        ('{"type": "request_job", "kind": "build", "slots": -1}', "$.slots", ">= 0"),
        ('{"type": "report", "assignment": 1, "number": 1}', None, "event"),
        (
            '{"type": "report", "assignment": 1, "number": 1, "event": {"event": "sleeping"}}',
            "$.event.event",
            "sleeping",
        ),
        (
            '{"type": "query_known_derivations", "query": 1, "assignment": 1, "drvs": ["x"]}',
            "$.drvs[0]",
            "regex",
        ),
        (b"short", None, "16 bytes"),
        (encode_log(LogFrame(assignment=1, offset=0, data=bytes(300_000))), None, "over the limit"),
    ],
)
async def test_a_bad_frame_gets_an_error_and_the_session_goes_on(
    clean_db: Database, tmp_path: Path, frame: str | bytes, field: str | None, words: str
) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.send_raw(frame)
        error = await worker.expect(Error)
        assert words in error.message
        assert error.field == field
        await worker.ping()


@pytest.mark.parametrize(
    "message",
    [
        AssignJobResponse(assignment=10**30, accepted=False),
        JobScores(scores=[JobScore(job="build:1", missing_nar_size=10**30)]),
        JobScores(scores=[JobScore(job="\0", missing_count=10**12)]),
        WorkerCapabilities(
            architectures=["x\0"], system_features=[], build_slots=10**30, eval_slots=1
        ),
        RequestJob(kind="build", slots=10**30),
        RunningJobs(jobs=[RunningJob(job="eval:1", assignment=10**30)]),
        Report(assignment=10**30, number=1, event=Building()),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_numbers_and_texts_that_the_database_cannot_hold_do_not_end_the_session(
    clean_db: Database, tmp_path: Path, message: WorkerMessage
) -> None:
    world = new_world(clean_db)
    world.evaluate(derivation("a"), worker="walker")
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send(hello("w1", "secret"))
        await worker.expect(InitAck)
        await worker.send(message)
        await worker.ping()
        await worker.capabilities()
        if not isinstance(message, RunningJobs):
            await worker.resume()
        else:
            assert (await worker.expect(ResumeAck)).stop == [10**30]
        await worker.take("build")


async def test_a_greeting_that_the_database_cannot_hold_is_refused(
    clean_db: Database, tmp_path: Path
) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send(hello("w\0", "secret"))
        assert (await worker.expect(Reject)).code == 400


async def test_a_frame_over_the_limit_ends_the_connection(
    clean_db: Database, tmp_path: Path
) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        with contextlib.suppress(websockets.ConnectionClosed):
            await worker.send_raw(" " * (MAX_FRAME_BYTES + 1))
        assert (await worker.wait_closed())[0] == 1009


async def test_a_second_greeting_is_an_error(clean_db: Database, tmp_path: Path) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.send(hello("w1", "secret"))
        assert "greeted already" in (await worker.expect(Error)).message
        await worker.ping()


async def test_a_log_of_another_assignment_is_refused(clean_db: Database, tmp_path: Path) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, worker_client(server.url) as worker:
        await worker.send_log(4711, 0, b"hello\n")
        assert (await worker.expect(StaleAssignment)).assignment == 4711
        await worker.ping()
