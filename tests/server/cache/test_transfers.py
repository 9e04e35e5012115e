"""Large and many transfers at once: nothing waits for them, nothing is mixed up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

from gradient.cache.ingest import Ingest
from tests.server.cache.support import (
    CacheServer,
    MadeCache,
    bearer,
    built_upload,
    sha256,
    some_path,
    source_upload,
)


@pytest.mark.scenario(46)
def test_hashing_and_decompressing_hold_up_nobody(
    server: CacheServer, main: MadeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = built_upload(some_path("large"), os.urandom(2_000_000))
    entered, go_on = threading.Event(), threading.Event()
    feed = Ingest.feed

    def slow(self: Ingest, data: bytes) -> None:
        entered.set()
        assert go_on.wait(60)
        feed(self, data)

    monkeypatch.setattr(Ingest, "feed", slow)
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(server.push, main.url, main.write_token, upload)
        assert entered.wait(60)
        assert server.get(f"{main.url}/nix-cache-info", main.read_token).status_code == 200
        assert not sending.done()
        go_on.set()
        assert sending.result(timeout=60).status_code == 201


@pytest.mark.scenario(46)
def test_a_reader_that_does_not_read_holds_up_nobody(server: CacheServer, main: MadeCache) -> None:
    upload = built_upload(some_path("large"), os.urandom(30_000_000), compression="none")
    server.push(main.url, main.write_token, upload)
    url = f"{main.url}/nar/{upload.file_name}"
    with server.client.stream("GET", url, headers=bearer(main.read_token)) as answer:
        pieces = answer.iter_bytes(65536)
        received = next(pieces)
        with httpx.Client(timeout=60) as other:
            found = other.get(f"{main.url}/nix-cache-info", headers=bearer(main.read_token))
            assert found.status_code == 200
        assert received + b"".join(pieces) == upload.file


def test_the_same_file_uploaded_many_times_at_once_is_stored_once(
    server: CacheServer, main: MadeCache
) -> None:
    upload = source_upload("x", os.urandom(3_000_000), compression="none")
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(
                lambda _: server.push(main.url, main.write_token, upload).status_code, range(24)
            )
        )
    assert answers == [201] * 24
    assert server.object_files() == [(f"nar/{upload.file_name}", len(upload.file))]
    assert server.value("select count(*) from gradient.cached_path") == 1


def test_more_uploads_than_are_received_at_once_all_arrive(
    server: CacheServer, main: MadeCache
) -> None:
    uploads = [source_upload(f"x{n}", os.urandom(200_000)) for n in range(40)]

    def slowly(number: int) -> int:
        upload = uploads[number]

        def body() -> Iterator[bytes]:
            for start in range(0, len(upload.file), 20_000):
                yield upload.file[start : start + 20_000]

        with httpx.Client(timeout=60) as client:
            url = f"{main.url}/nar/{upload.file_name}"
            headers = bearer(main.write_token)
            assert client.put(url, content=body(), headers=headers).status_code == 201
        return server.put_narinfo(main.url, main.write_token, upload).status_code

    with ThreadPoolExecutor(40) as threads:
        assert list(threads.map(slowly, range(40))) == [201] * 40
    rows = server.conn.execute("select file_hash from gradient.cached_path").fetchall()
    assert {row[0] for row in rows} == {sha256(upload.file) for upload in uploads}
