"""Uploads that are wrong: each is refused with a clear text, and nothing is kept of it."""

from __future__ import annotations

import bz2
import gzip
import http.client
import lzma
import os
import resource
from collections.abc import Callable, Iterator

import pytest
from backports import zstd

from gradient.cache import routes
from tests.server.cache.support import (
    CacheServer,
    MadeCache,
    Upload,
    bearer,
    built_upload,
    make_nar,
    sha256,
    some_path,
    source_upload,
    word,
    words,
)
from tests.support.database import Database
from tests.support.waiting import wait_until

GIBIBYTE = 1024**3


@pytest.fixture(scope="module")
def server(
    pg_server: str, template_db: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CacheServer]:
    """One server for all these tests: none of them may change anything."""
    with (
        Database.clone(pg_server, template_db) as database,
        CacheServer(database, tmp_path_factory.mktemp("cache")).running() as running,
    ):
        yield running


@pytest.fixture(scope="module")
def main(server: CacheServer) -> MadeCache:
    return server.make_cache("main")


@pytest.fixture
def good() -> Upload:
    return source_upload("hello", {"bin": b"hello"})


@pytest.mark.parametrize(
    "field, value, says",
    [
        ("NarHash", sha256(b"other"), "NarHash"),
        ("NarHash", "sha256:abc", "NarHash"),
        ("NarHash", "md5:d41d8cd98f00b204e9800998ecf8427e", "NarHash"),
        ("NarSize", "1", "NarSize"),
        ("NarSize", "-5", "NarSize"),
        ("FileSize", "1", "FileSize"),
        ("FileSize", "many", "FileSize"),
        ("FileHash", sha256(b"other"), "FileHash"),
        ("Compression", "xz", "Compression"),
        ("URL", "nar/../../etc/passwd", "URL"),
        ("URL", "https://example.org/x.nar", "URL"),
        ("StorePath", "/nix/store/short-hello", "StorePath"),
        ("StorePath", "/etc/passwd", "StorePath"),
        ("StorePath", some_path("another"), "StorePath"),
        ("StorePath", some_path("x") + "/bin", "StorePath"),
        ("References", "not-a-path", "References"),
        ("References", f"{some_path('full')}", "References"),
        ("Deriver", "nothing", "Deriver"),
        ("CA", "fixed:r sha256", "CA"),
    ],
)
def test_a_narinfo_that_lies_is_refused_by_the_field(
    server: CacheServer, main: MadeCache, good: Upload, field: str, value: str, says: str
) -> None:
    assert server.put_nar(main.url, main.write_token, good).status_code == 201
    before = server.everything()
    good.fields[field] = value
    answer = server.put_narinfo(main.url, main.write_token, good)
    assert answer.status_code == 400
    assert answer.text.startswith(f"{says}:")
    assert server.everything() == before


def test_a_narinfo_before_its_nar_is_refused(server: CacheServer, main: MadeCache) -> None:
    before = server.everything()
    answer = server.put_narinfo(main.url, main.write_token, source_upload("x", b"never sent"))
    assert answer.status_code == 400
    assert "was not uploaded" in answer.text
    assert server.everything() == before


@pytest.mark.parametrize("text", ["", "\0", "StorePath", "StorePath: x\nStorePath: y", "\xff\xfe"])
def test_what_is_no_narinfo_is_refused(
    server: CacheServer, main: MadeCache, good: Upload, text: str
) -> None:
    before = server.everything()
    answer = server.client.put(
        f"{main.url}/{good.hash_part}.narinfo",
        content=text.encode("latin-1"),
        headers=bearer(main.write_token),
    )
    assert answer.status_code == 400
    assert "narinfo" in answer.text
    assert server.everything() == before


@pytest.mark.parametrize(
    "path",
    [
        "cache/ma%00in/nix-cache-info",
        "cache/%ff/nix-cache-info",
        "cache/../cache/nowhere/nix-cache-info",
        "cache/main/%00.narinfo",
        "cache/main/..%2f..%2fetc%2fpasswd",
        "cache/main/nar/..%2f..%2fsecret",
        "cache/main/nar/%00.nar",
        "cache/main/log/x",
    ],
)
def test_an_address_that_is_none_is_not_found(
    server: CacheServer, main: MadeCache, path: str
) -> None:
    before = server.everything()
    assert server.get(f"{server.url}/{path}", main.write_token).status_code == 404
    put = server.client.put(f"{server.url}/{path}", content=b"x", headers=bearer(main.write_token))
    assert put.status_code in (400, 404, 405)
    assert server.everything() == before


def test_a_narinfo_without_end_is_refused(
    server: CacheServer, main: MadeCache, good: Upload
) -> None:
    answer = server.client.put(
        f"{main.url}/{good.hash_part}.narinfo",
        content=good.narinfo.encode() + b"x" * (5 * 1024 * 1024),
        headers=bearer(main.write_token),
    )
    assert answer.status_code == 413


def _put_raw(
    server: CacheServer, main: MadeCache, file: bytes, name: str | None = None
) -> tuple[int, str]:
    name = name or f"{sha256(file).removeprefix('sha256:')}.nar"
    answer = server.client.put(
        f"{main.url}/nar/{name}", content=file, headers=bearer(main.write_token)
    )
    return answer.status_code, answer.text


def _regular(contents: bytes) -> bytes:
    return words("(", "type", "regular", "contents") + contents + words(")")


def _directory(*entries: bytes) -> bytes:
    return words("(", "type", "directory") + b"".join(entries) + words(")")


def _entry(name: bytes, node: bytes | None = None) -> bytes:
    node = _regular(word(b"x")) if node is None else node
    return words("entry", "(", "name") + word(name) + words("node") + node + words(")")


_MAGIC = word(b"nix-archive-1")


@pytest.mark.parametrize(
    "nar",
    [
        b"",
        b"hello",
        make_nar(b"hello")[:-1],
        make_nar(b"hello") + b"x",
        make_nar({"a": b"1"})[:-16],
        word(b"nix-archive-2") + _regular(word(b"x")),
        _MAGIC + words("(", "type", "socket", ")"),
        _MAGIC + _regular(word(b"x")[:-1] + b"!"),
        _MAGIC + _directory(_entry(b"..")),
        _MAGIC + _directory(_entry(b".")),
        _MAGIC + _directory(_entry(b"a/b")),
        _MAGIC + _directory(_entry(b"a\0b")),
        _MAGIC + _directory(_entry(b"")),
        _MAGIC + _directory(_entry(b"n" * 256)),
        _MAGIC + _directory(_entry(b"b"), _entry(b"a")),
        _MAGIC + _directory(_entry(b"a"), _entry(b"a")),
        _MAGIC + words("(", "type", "symlink", "target") + word(b"") + words(")"),
        _MAGIC + words("(", "type", "symlink", "target") + word(b"t" * 5000) + words(")"),
    ],
)
def test_what_is_no_nar_is_refused_and_not_stored(
    server: CacheServer, main: MadeCache, nar: bytes
) -> None:
    before = server.everything()
    status, text = _put_raw(server, main, nar)
    assert status == 400
    assert "NAR" in text or "the end" in text
    assert server.everything() == before


def test_a_nar_nested_without_end_is_refused(server: CacheServer, main: MadeCache) -> None:
    before = server.everything()
    opening = words("(", "type", "directory", "entry", "(", "name", "d", "node")
    status, text = _put_raw(server, main, _MAGIC + opening * 5000)
    assert status == 400
    assert "deep" in text
    assert server.everything() == before


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_file_with_another_hash_than_its_name_is_refused(
    server: CacheServer, main: MadeCache, size: int
) -> None:
    before = server.everything()
    name = f"{sha256(b'promised').removeprefix('sha256:')}.nar"
    status, text = _put_raw(server, main, make_nar(os.urandom(size)), name)
    assert status == 400
    assert "hash" in text
    assert server.everything() == before


@pytest.mark.parametrize(
    "name", ["x.nar", "0" * 52 + ".tar", "e" * 52 + ".nar", "z" * 52 + ".nar", "0" * 52 + ".nar.br"]
)
def test_a_file_name_that_is_no_hash_is_refused(
    server: CacheServer, main: MadeCache, name: str
) -> None:
    before = server.everything()
    status, text = _put_raw(server, main, make_nar(b"hello"), name)
    assert status == 400
    assert name in text
    assert server.everything() == before


@pytest.mark.parametrize("extension", [".xz", ".zst", ".gz", ".bz2"])
@pytest.mark.parametrize("damage", [lambda f: f[:-9], lambda f: b"garbage" + f, lambda f: b""])
def test_a_damaged_compressed_file_is_refused(
    server: CacheServer, main: MadeCache, extension: str, damage: Callable[[bytes], bytes]
) -> None:
    compressions: dict[str, Callable[[bytes], bytes]] = {
        ".xz": lzma.compress,
        ".zst": zstd.compress,
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
    }
    before = server.everything()
    file = damage(compressions[extension](make_nar(os.urandom(5000))))
    name = f"{sha256(file).removeprefix('sha256:')}.nar{extension}"
    status, text = _put_raw(server, main, file, name)
    assert status == 400
    assert "the file" in text
    assert server.everything() == before


def _zeros(mebibytes: int, extension: str, head: bytes = b"") -> bytes:
    """A compressed file of `head` and that many mebibytes of zeros, quickly made."""
    compress = zstd.compress if extension == ".zst" else lzma.compress
    return compress(head) + compress(bytes(16 * 1024 * 1024)) * (mebibytes // 16)


@pytest.fixture(scope="module")
def limited(server: CacheServer) -> MadeCache:
    return server.make_cache("limited", max_nar_size=GIBIBYTE)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("extension", [".zst", ".xz"])
def test_a_decompression_bomb_is_refused_in_little_memory_and_disk(
    server: CacheServer, main: MadeCache, limited: MadeCache, extension: str
) -> None:
    """Zeros; a NAR that says how large it is; one that goes on behind what it said."""
    header = _MAGIC + words("(", "type", "regular", "contents")
    small = server.make_cache(f"small{extension.replace('.', '-')}", max_nar_size=GIBIBYTE // 8)
    before = server.everything()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for cache, head, says in (
        (limited, b"", "not a valid NAR"),
        (limited, header + (8 * GIBIBYTE).to_bytes(8, "little"), f"file of {8 * GIBIBYTE} bytes"),
        (small, header + (GIBIBYTE // 8 - 4096).to_bytes(8, "little"), "NAR"),
    ):
        bomb = _zeros(8192, extension, head)
        name = f"{sha256(bomb).removeprefix('sha256:')}.nar{extension}"
        status, text = _put_raw(server, cache, bomb, name)
        assert status in (400, 413)
        assert says in text
        assert server.everything() == before
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < 200 * 1024, "KiB"


def test_a_file_that_decompresses_to_nothing_is_bounded_too(server: CacheServer) -> None:
    small = server.make_cache("small", max_nar_size=100_000)
    before = server.everything()
    file = zstd.compress(b"") * 50_000
    name = f"{sha256(file).removeprefix('sha256:')}.nar.zst"
    status, _ = _put_raw(server, small, file, name)
    assert status == 413

    def unannounced() -> Iterator[bytes]:
        for start in range(0, len(file), 65536):
            yield file[start : start + 65536]

    answer = server.client.put(
        f"{small.url}/nar/{name}", content=unannounced(), headers=bearer(small.write_token)
    )
    assert answer.status_code == 413
    assert server.everything() == before


def test_a_nar_of_exactly_the_limit_is_taken(server: CacheServer) -> None:
    upload = built_upload(some_path("x"), os.urandom(20_000), compression="none")
    exact = server.make_cache("exact", max_nar_size=len(upload.nar))
    below = server.make_cache("below", max_nar_size=len(upload.nar) - 1)
    assert server.push(exact.url, exact.write_token, upload).status_code == 201
    before = server.everything()
    assert server.put_nar(below.url, below.write_token, upload).status_code == 413
    # The object is known from the other cache; this one's limit holds all the same.
    assert server.put_narinfo(below.url, below.write_token, upload).status_code == 413
    assert server.everything() == before


def test_an_upload_that_breaks_off_leaves_nothing(server: CacheServer, main: MadeCache) -> None:
    file = make_nar(os.urandom(8_000_000))
    name = f"{sha256(file).removeprefix('sha256:')}.nar"
    before = server.everything()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("PUT", f"/cache/main/nar/{name}")
    connection.putheader("Authorization", f"Bearer {main.write_token}")
    connection.putheader("Content-Length", str(len(file)))
    connection.endheaders()
    connection.send(file[:6_000_000])
    complete = before[-1]
    wait_until(lambda: server.object_files() != complete, what="a part of the upload on disk")
    connection.close()
    wait_until(lambda: server.object_files() == complete, what="the part of the upload deleted")
    assert server.everything() == before


def test_an_upload_that_stalls_is_given_up(
    server: CacheServer, main: MadeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "IDLE_SECONDS", 0.2)
    before = server.everything()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("PUT", f"/cache/main/nar/{'0' * 52}.nar")
    connection.putheader("Authorization", f"Bearer {main.write_token}")
    connection.putheader("Content-Length", "5000000")
    connection.endheaders()
    connection.send(make_nar(os.urandom(4_000_000)))
    answer = connection.getresponse()
    assert answer.status == 408
    assert b"nothing is kept" in answer.read()
    connection.close()
    assert server.everything() == before
