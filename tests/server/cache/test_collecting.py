"""Collecting objects: what no path has goes after its grace, everything else stays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gradient.cache.collect import collect_objects
from gradient.cache.database import Database as CacheDatabase
from gradient.cache.objects import ObjectStore
from gradient.db.connect import open_pool
from tests.server.cache.support import (
    CacheServer,
    MadeCache,
    Upload,
    built_upload,
    make_nar,
    sha256,
    some_path,
    source_upload,
)
from tests.support.sessions import TwoSessions

LONG_AGO = 1_500_000_000


def collect(server: CacheServer) -> int:
    """One run of the collector, as the server makes it."""

    async def run() -> int:
        async with open_pool(server.database.dsn) as pool:
            return await collect_objects(CacheDatabase(pool), ObjectStore(server.objects.as_uri()))

    return asyncio.run(run())


def age(server: CacheServer) -> None:
    """Make everything stored older than any grace."""
    server.conn.execute("update gradient.nar_object set created_at = '2017-01-01'")
    for path in server.objects.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def names(server: CacheServer) -> set[str]:
    return {Path(name).name for name, _ in server.object_files()}


def test_an_upload_without_a_narinfo_is_collected_after_its_grace(
    server: CacheServer, main: MadeCache
) -> None:
    kept = [source_upload("a", b"backed"), built_upload(some_path("b"), b"pushed")]
    for upload in kept:
        server.push(main.url, main.write_token, upload)
    orphan = source_upload("c", b"orphan")
    server.put_nar(main.url, main.write_token, orphan)
    assert collect(server) == 0
    age(server)
    assert collect(server) == 1
    assert names(server) == {upload.file_name for upload in kept}
    assert server.value("select count(*) from gradient.nar_object") == 2
    assert collect(server) == 0
    for upload in kept:
        nar = server.get(f"{main.url}/nar/{upload.file_name}", main.read_token)
        assert nar.content == upload.file


@pytest.mark.scenario(50)
def test_an_object_of_two_paths_survives_the_end_of_one(
    server: CacheServer, main: MadeCache
) -> None:
    one, two = (built_upload(some_path(name), b"the same") for name in "ab")
    assert one.file_name == two.file_name
    for upload in (one, two):
        server.push(main.url, main.write_token, upload)
    age(server)
    server.conn.execute("delete from gradient.pushed_path where hash = %s", [one.hash_part])
    assert collect(server) == 0
    found = server.get(f"{main.url}/nar/{two.file_name}", main.read_token)
    assert found.content == two.file
    server.conn.execute("delete from gradient.pushed_path where hash = %s", [two.hash_part])
    assert collect(server) == 1
    assert names(server) == set()


def test_what_dead_servers_left_in_the_store_is_collected(
    server: CacheServer, main: MadeCache
) -> None:
    """A file that was written but not recorded, a half-written one, and a foreign one."""
    kept = source_upload("a", b"kept")
    server.push(main.url, main.write_token, kept)
    lost = make_nar(b"lost")
    folder = server.objects / "nar"
    (folder / f"{sha256(lost).removeprefix('sha256:')}.nar").write_bytes(lost)
    (folder / f"{kept.file_name}#3").write_bytes(b"half")
    (folder / "README").write_text("not ours")
    assert collect(server) == 0
    age(server)
    assert collect(server) == 2
    assert names(server) == {kept.file_name, "README"}


@pytest.mark.scenario(50)
def test_an_object_that_is_uploaded_again_while_it_is_collected_is_not_lost(
    two_sessions: TwoSessions,
) -> None:
    """The upload waits for the deletion, and then finds its object gone; or the other way."""
    collector, upload = two_sessions.a, two_sessions.b
    file_hash = sha256(b"x")
    row = (
        f'{{"file_hash": "{file_hash}", "file_size": 1, "nar_hash": "{file_hash}",'
        ' "nar_size": 1, "compression": "none"}'
    )
    recorded = "select graph.nar_uploaded(%s::text::jsonb)"
    orphan = "select graph.is_orphan_object(%s)"

    assert collector.execute(orphan, [file_hash]).fetchone() == (True,)
    waiting = two_sessions.blocks(upload, recorded, [row])
    collector.commit()
    waiting.result(timeout=10)

    asking = two_sessions.blocks(collector, orphan, [file_hash])
    upload.commit()
    assert asking.result(timeout=10) == [(False,)]


@pytest.mark.scenario(50)
def test_a_narinfo_on_its_way_keeps_its_object(server: CacheServer, main: MadeCache) -> None:
    upload = source_upload("a", b"x")
    server.put_nar(main.url, main.write_token, upload)
    age(server)
    # The first thing that the PUT of a narinfo does.
    server.value("select file_hash from graph.nar_object(%s)", sha256(upload.file))
    assert collect(server) == 0
    assert server.put_narinfo(main.url, main.write_token, upload).status_code == 201


def test_an_upload_whose_object_was_collected_meanwhile_is_not_acknowledged(
    server: CacheServer, main: MadeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = source_upload("a", b"x")
    assert server.context is not None
    recorded = server.context.database.nar_uploaded

    async def collected_first(measured: object) -> None:
        (server.objects / "nar" / upload.file_name).unlink()
        await recorded(measured)  # type: ignore[arg-type]

    monkeypatch.setattr(server.context.database, "nar_uploaded", collected_first)
    assert server.put_nar(main.url, main.write_token, upload).status_code == 503
    monkeypatch.undo()
    assert server.push(main.url, main.write_token, upload).status_code == 201


def test_an_object_that_vanished_is_not_found(server: CacheServer, main: MadeCache) -> None:
    upload: Upload = source_upload("a", b"x")
    server.push(main.url, main.write_token, upload)
    (server.objects / "nar" / upload.file_name).unlink()
    for answer in (
        server.get(f"{main.url}/nar/{upload.file_name}", main.read_token),
        server.head(f"{main.url}/nar/{upload.file_name}", main.read_token),
    ):
        assert answer.status_code == 404
