"""The cache client: what it takes for a NAR, what it refuses, and when it tries again."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from backports import zstd

from tests.support.scripted_server import TOKEN, ScriptedServer
from worker.cache_client import (
    CacheAwayError,
    CacheClient,
    CacheRefusedError,
    CorruptNarError,
)
from worker.narinfo import InvalidNarInfoError, NarInfo, parse_narinfo
from worker.nix.nar import write_file_nar
from worker.nix.serve import PathInfo
from worker.nix.store_path import nix32_encode

PATH = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-thing"
NAR = write_file_nar(b"content\n" * 1000)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer().running() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: ScriptedServer, tmp_path: Path) -> AsyncIterator[CacheClient]:
    async with httpx2.AsyncClient() as http:
        yield CacheClient(http, f"{server.url}/jobs/1/cache", TOKEN, tmp_path, grace=1.0)


def info_of(nar: bytes, path: str = PATH) -> PathInfo:
    return PathInfo(path, f"sha256:{nix32_encode(hashlib.sha256(nar).digest())}", len(nar))


def lay(server: ScriptedServer, packed: bytes, compression: str, info: PathInfo) -> NarInfo:
    digest = nix32_encode(hashlib.sha256(packed).digest())
    narinfo = NarInfo(
        info=info,
        url=f"nar/{digest}.nar",
        compression=compression,
        file_hash=f"sha256:{digest}",
        file_size=len(packed),
    )
    server.objects[narinfo.url] = packed
    return narinfo


async def fetched(client: CacheClient, narinfo: NarInfo) -> bytes:
    packed = await client.download(narinfo)
    assert packed is not None
    try:
        return b"".join([piece async for piece in packed.unpacked(narinfo)])
    finally:
        packed.close()


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def test_what_is_uploaded_can_be_downloaded(
    server: ScriptedServer, client: CacheClient
) -> None:
    info = info_of(NAR)
    assert await client.narinfo(PATH) is None
    size = await client.upload(info, pieces(NAR))
    narinfo = await client.narinfo(PATH)
    assert narinfo is not None
    assert (narinfo.info, narinfo.compression, narinfo.file_size) == (info, "zstd", size)
    assert await fetched(client, narinfo) == NAR
    # The NAR is there before the narinfo that names it.
    assert [name.startswith("nar/") for method, name in server.requests if method == "PUT"] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    "compression, pack",
    [
        ("none", bytes),
        ("xz", lzma.compress),
        ("zstd", zstd.compress),
        ("zstd", lambda nar: zstd.compress(nar[:5000]) + zstd.compress(nar[5000:])),
    ],
    ids=["none", "xz", "zstd", "zstd-in-two-frames"],
)
async def test_every_compression_that_the_cache_takes_can_be_read(
    server: ScriptedServer, client: CacheClient, compression: str, pack: object
) -> None:
    assert callable(pack)
    narinfo = lay(server, pack(NAR), compression, info_of(NAR))
    assert await fetched(client, narinfo) == NAR


@pytest.mark.parametrize(
    "packed, stated",
    [
        (zstd.compress(NAR[:-8]), NAR),
        (zstd.compress(NAR + b"\0" * 8), NAR),
        (zstd.compress(b"\0" * len(NAR)), NAR),
        (zstd.compress(NAR)[:-4], NAR),
        (b"no zstd at all", NAR),
        (zstd.compress(b"\0" * (64 << 20)), NAR),
    ],
    ids=["short", "long", "other", "cut", "garbage", "bomb"],
)
async def test_what_is_not_the_nar_of_its_narinfo_is_refused(
    server: ScriptedServer, client: CacheClient, packed: bytes, stated: bytes
) -> None:
    narinfo = lay(server, packed, "zstd", info_of(stated))
    with pytest.raises(CorruptNarError):
        await fetched(client, narinfo)


async def test_a_file_that_is_not_what_its_narinfo_says_is_refused_before_it_is_unpacked(
    server: ScriptedServer, client: CacheClient
) -> None:
    narinfo = lay(server, zstd.compress(NAR), "zstd", info_of(NAR))
    server.objects[narinfo.url] = zstd.compress(NAR, level=19) + b"more"
    with pytest.raises(CorruptNarError):
        await client.download(narinfo)


async def test_an_unknown_compression_is_refused(
    server: ScriptedServer, client: CacheClient
) -> None:
    narinfo = lay(server, NAR, "brotli", info_of(NAR))
    with pytest.raises(CorruptNarError, match="brotli"):
        await fetched(client, narinfo)


async def test_a_lost_object_is_told_from_a_broken_one(
    server: ScriptedServer, client: CacheClient
) -> None:
    narinfo = lay(server, NAR, "none", info_of(NAR))
    server.objects.clear()
    assert await client.download(narinfo) is None


async def test_a_cache_that_is_away_is_asked_again_and_then_given_up(
    server: ScriptedServer, client: CacheClient
) -> None:
    answers = [503, 429]
    server.refuse = lambda method, name: answers.pop() if answers else None
    assert await client.narinfo(PATH) is None
    server.refuse = lambda method, name: 503
    with pytest.raises(CacheAwayError, match="the test says no"):
        await client.narinfo(PATH)


async def test_a_refusal_is_an_answer_and_not_asked_again(
    server: ScriptedServer, client: CacheClient
) -> None:
    server.refuse = lambda method, name: 413 if name.startswith("nar/") else None
    with pytest.raises(CacheRefusedError) as raised:
        await client.upload(info_of(NAR), pieces(NAR))
    assert raised.value.status == 413
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"StorePath: {PATH[:-1]}x\n",
        f"StorePath: {PATH}\nURL: ../../etc/passwd\nNarHash: sha256:{'0' * 52}\nNarSize: 1\n",
        f"StorePath: {PATH}\nURL: nar/a.nar\nNarHash: md5:zz\nNarSize: 1\n",
        f"StorePath: {PATH}\nURL: nar/a.nar\nNarHash: sha256:{'0' * 52}\nNarSize: many\n",
        f"StorePath: {PATH}\nURL: nar/a.nar\nNarHash: sha256:{'0' * 52}\nNarSize: 1\n"
        "References: ../evil\n",
    ],
)
def test_a_malformed_narinfo_is_refused(text: str) -> None:
    with pytest.raises(InvalidNarInfoError):
        parse_narinfo(text, PATH)
