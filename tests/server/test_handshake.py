"""The greeting: who is let in, and what those hear who are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import websockets
from websockets.asyncio.client import connect

from gradient.protocol import (
    MAX_HANDSHAKE_BYTES,
    SUBPROTOCOL,
    InitAck,
    Reject,
    RequestJobList,
    decode_server_message,
    encode,
)
from gradient.timing import Timing
from tests.support.database import Database
from tests.support.server_client import connected, hello, worker_client
from tests.support.server_running import NO_TICK, new_world, running_server


async def test_a_worker_with_its_token_is_welcome(clean_db: Database, tmp_path: Path) -> None:
    world = new_world(clean_db)
    world.conn.execute("update gradient.worker_registration set enable_eval = false")
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send(hello("w1", "secret", can_fetch=False))
        ack = await worker.expect(InitAck)
    assert ack.projects == ["main"]
    assert (ack.can_fetch, ack.can_eval, ack.can_build) == (False, False, True)
    assert ack.worker_grace_secs == 120


@pytest.mark.parametrize(
    ("name", "token", "code"),
    [("w1", "wrong", 401), ("w1", "", 401), ("unknown", "secret", 403)],
    ids=["wrong-token", "empty-token", "unknown-worker"],
)
async def test_a_worker_without_its_token_is_refused(
    clean_db: Database, tmp_path: Path, name: str, token: str, code: int
) -> None:
    world = new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send(hello(name, token))
        refusal = await worker.expect(Reject)
        await worker.wait_closed()
    assert refusal.code == code
    assert name in refusal.reason or "token" in refusal.reason
    assert world.value("select count(*) from gradient.worker_connection") == 0


async def test_a_worker_of_projects_without_a_cache_is_refused(
    clean_db: Database, tmp_path: Path
) -> None:
    world = new_world(clean_db)
    world.conn.execute("delete from gradient.project_cache")
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send(hello("w1", "secret"))
        assert (await worker.expect(Reject)).code == 495


@pytest.mark.parametrize(
    ("frame", "words", "close"),
    [
        ("this is not JSON", "not JSON", 1002),
        ('{"type": "greeting"}', "$.type", 1002),
        ('{"type": "init_connection", "worker_id": "w1"}', "tokens", 1002),
        (encode(RequestJobList()), "init_connection", 1002),
        (b"\x00\x01binary", "not JSON", 1002),
        ("x" * (MAX_HANDSHAKE_BYTES + 1), str(MAX_HANDSHAKE_BYTES), 1009),
    ],
    ids=["not-json", "unknown-type", "missing-field", "other-message", "binary", "too-large"],
)
async def test_a_first_frame_that_is_no_greeting_is_refused(
    clean_db: Database, tmp_path: Path, frame: str | bytes, words: str, close: int
) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server, connected(server.url) as worker:
        await worker.send_raw(frame)
        refusal = await worker.expect(Reject)
        assert refusal.code == 400
        assert words in refusal.reason
        assert (await worker.wait_closed())[0] == close


async def test_a_caller_that_says_nothing_is_sent_away(clean_db: Database, tmp_path: Path) -> None:
    new_world(clean_db)
    timing = Timing(tick=3600, handshake=0.2)
    async with (
        running_server(clean_db, tmp_path, timing) as server,
        connected(server.url) as worker,
    ):
        assert "0.2 seconds" in (await worker.expect(Reject)).reason
        await worker.wait_closed()


async def test_another_subprotocol_is_refused(clean_db: Database, tmp_path: Path) -> None:
    new_world(clean_db)
    async with running_server(clean_db, tmp_path) as server:
        address = server.url.replace("http", "ws", 1) + "/proto"
        async with connect(address, ping_interval=None) as socket:
            refusal = decode_server_message(await socket.recv())
            assert isinstance(refusal, Reject)
            assert SUBPROTOCOL in refusal.reason
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1002


async def test_a_second_connection_of_a_worker_replaces_the_first(
    clean_db: Database, tmp_path: Path
) -> None:
    new_world(clean_db)
    async with (
        running_server(clean_db, tmp_path, NO_TICK) as server,
        worker_client(server.url) as first,
        worker_client(server.url) as second,
    ):
        assert (await first.wait_closed())[0] == 4409
        await second.ping()
