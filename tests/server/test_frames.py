"""Bad frames: each gets an error that names what is wrong, and the session goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import websockets

from gradient.protocol import MAX_FRAME_BYTES, Error, LogFrame, StaleAssignment, encode_log
from tests.support.database import Database
from tests.support.server_client import hello, worker_client
from tests.support.server_running import new_world, running_server

_LONG_DRV = "0" * 32 + "-x.drv"


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
