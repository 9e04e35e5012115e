"""The build log: kept whole up to its limit, head and tail over it, and resent by offset."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradient import protocol as wire
from worker.build_log import BuildLog
from worker.channel import Channel


def whole(log: BuildLog) -> bytes:
    return log.read(0, log.size)


@given(pieces=st.lists(st.binary(max_size=40)), limit=st.integers(16, 200))
def test_a_log_is_whole_up_to_its_limit_and_over_it_keeps_both_ends(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], limit: int
) -> None:
    log = BuildLog(tmp_path_factory.getbasetemp(), limit)
    for piece in pieces:
        log.write(piece)
    log.finish()
    written, kept = b"".join(pieces), whole(log)
    log.close()
    if len(written) <= limit:
        assert kept == written
        return
    tail = limit // 8
    head = limit - tail
    dropped = len(written) - limit
    assert kept.startswith(written[:head])
    assert kept.endswith(written[-tail:] if tail else b"")
    assert f"{dropped} bytes of log were dropped here".encode() in kept[head:]


def test_the_beginning_can_be_read_before_the_build_has_ended(tmp_path: Path) -> None:
    log = BuildLog(tmp_path, 0)
    log.write(b"first\n")
    assert whole(log) == b"first\n"
    log.write(b"\xff\x00second")
    assert log.read(6, 100) == b"\xff\x00second"
    log.close()


def frames(channel: Channel) -> list[wire.LogFrame]:
    found: list[wire.LogFrame] = []
    while True:
        frame, _ = channel.next_log_frame(1e9)
        if frame is None:
            return found
        found.append(wire.decode_log(frame))


async def test_at_most_four_full_frames_are_under_way_and_each_answer_makes_room(
    tmp_path: Path,
) -> None:
    channel = Channel("build:1", 1, lambda: None)
    write = channel.open_log(BuildLog(tmp_path, 0))
    channel.connected()
    size = wire.MAX_LOG_FRAME_BYTES
    write(b"x" * (6 * size))
    first = frames(channel)
    assert [(frame.offset, len(frame.data)) for frame in first] == [
        (index * size, size) for index in range(4)
    ]
    channel.acknowledge_log(2 * size)
    assert [frame.offset for frame in frames(channel)] == [4 * size, 5 * size]
    channel.close()


async def test_a_new_connection_sends_again_from_the_last_stored_byte(tmp_path: Path) -> None:
    channel = Channel("build:1", 1, lambda: None)
    write = channel.open_log(BuildLog(tmp_path, 0))
    channel.connected()
    write(b"one\n")
    assert [frame.data for frame in frames(channel)] == [b"one\n"]
    channel.acknowledge_log(2)
    channel.disconnected()
    write(b"two\n")
    channel.connected()
    again = frames(channel)
    assert (again[0].offset, b"".join(frame.data for frame in again)) == (2, b"e\ntwo\n")
    channel.close()


async def test_single_lines_are_collected_instead_of_sent_one_by_one(tmp_path: Path) -> None:
    channel = Channel("build:1", 1, lambda: None)
    write = channel.open_log(BuildLog(tmp_path, 0))
    channel.connected()
    write(b"one\n")
    assert channel.next_log_frame(100.0)[0] is not None
    write(b"two\n")
    frame, again = channel.next_log_frame(100.1)
    assert frame is None
    assert again == pytest.approx(100.2)
    write(b"three\n")
    later, _ = channel.next_log_frame(100.3)
    assert later is not None
    assert wire.decode_log(later).data == b"two\nthree\n"
    channel.close()


async def test_a_flush_waits_for_the_last_byte_to_be_stored(tmp_path: Path) -> None:
    channel = Channel("build:1", 1, lambda: None)
    write = channel.open_log(BuildLog(tmp_path, 0))
    channel.connected()
    write(b"almost all")
    flush = asyncio.create_task(channel.flush_log())
    await asyncio.sleep(0)
    channel.acknowledge_log(3)
    await asyncio.sleep(0)
    assert not flush.done()
    channel.acknowledge_log(10)
    assert await asyncio.wait_for(flush, 5)
    channel.close()


async def test_a_log_that_is_never_stored_is_given_up_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.channel.LOG_FLUSH_SECONDS", 0.05)
    channel = Channel("build:1", 1, lambda: None)
    write = channel.open_log(BuildLog(tmp_path, 0))
    channel.connected()
    write(b"lost")
    assert not await asyncio.wait_for(channel.flush_log(), 5)
    channel.close()
