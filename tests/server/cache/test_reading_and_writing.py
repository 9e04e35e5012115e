"""What may be read and written, by whom, and what is answered."""

from __future__ import annotations

import base64

import pytest

from tests.server.cache.support import (
    CacheServer,
    MadeCache,
    built_upload,
    narinfo_fields,
    sha256,
    some_path,
    source_upload,
    text_upload,
)


def test_a_pushed_path_is_read_back_as_it_was(server: CacheServer, main: MadeCache) -> None:
    upload = source_upload("hello", {"bin": {"hello": b"#!/bin/sh\n"}, "empty": b""})
    assert server.push(main.url, main.write_token, upload).status_code == 201

    answer = server.get(f"{main.url}/{upload.hash_part}.narinfo", main.read_token)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/x-nix-narinfo"
    fields = narinfo_fields(answer.text)
    assert fields["StorePath"] == upload.path
    assert fields["NarHash"] == sha256(upload.nar)
    assert fields["FileSize"] == str(len(upload.file))
    assert fields["CA"] == upload.ca

    nar = server.get(f"{main.url}/{fields['URL']}", main.read_token)
    assert nar.content == upload.file
    assert nar.headers["content-length"] == str(len(upload.file))


@pytest.mark.parametrize("compression", ["none", "xz", "zstd"])
def test_every_compression_is_measured_decompressed(
    server: CacheServer, main: MadeCache, compression: str
) -> None:
    upload = source_upload("data", b"content " * 200_000, compression=compression)
    assert server.push(main.url, main.write_token, upload).status_code == 201
    measured = server.conn.execute(
        "select nar_hash, nar_size, file_size, compression from gradient.nar_object"
    ).fetchall()
    assert measured == [(sha256(upload.nar), len(upload.nar), len(upload.file), compression)]


def test_head_answers_like_get_without_a_body(server: CacheServer, main: MadeCache) -> None:
    upload = source_upload("hello", b"hello")
    missing = f"{main.url}/{upload.hash_part}.narinfo"
    assert server.head(missing, main.read_token).status_code == 404
    assert server.head(f"{main.url}/nar/{upload.file_name}", main.read_token).status_code == 404
    server.push(main.url, main.write_token, upload)

    for url in (missing, f"{main.url}/nar/{upload.file_name}"):
        got, asked = server.get(url, main.read_token), server.head(url, main.read_token)
        assert asked.status_code == 200
        assert asked.content == b""
        assert asked.headers["content-length"] == str(len(got.content))
        assert asked.headers["content-type"] == got.headers["content-type"]


def test_the_cache_tells_its_store_and_priority(server: CacheServer, main: MadeCache) -> None:
    answer = server.get(f"{main.url}/nix-cache-info", main.read_token)
    assert answer.text == "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 40\n"


def test_a_private_cache_shows_nothing_without_a_token(
    server: CacheServer, main: MadeCache
) -> None:
    upload = source_upload("hello", b"hello")
    server.push(main.url, main.write_token, upload)
    for path in ("nix-cache-info", f"{upload.hash_part}.narinfo", f"nar/{upload.file_name}"):
        for token in (None, "f" * 32):
            answer = server.get(f"{main.url}/{path}", token)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == 'Basic realm="main"'
            assert "private" in answer.text


def test_a_public_cache_is_read_by_everybody_and_written_with_a_token(
    server: CacheServer,
) -> None:
    public = server.make_cache("open", public=True)
    upload = source_upload("hello", b"hello")
    before = server.everything()
    for token in (None, "f" * 32, public.read_token):
        assert server.put_nar(public.url, token, upload).status_code in (401, 403)
        assert server.put_narinfo(public.url, token, upload).status_code in (401, 403)
    assert server.everything() == before
    assert server.push(public.url, public.write_token, upload).status_code == 201
    # A netrc file has one token for a whole host: that of another cache does not shut out.
    for token in (None, "f" * 32):
        assert server.get(f"{public.url}/{upload.hash_part}.narinfo", token).status_code == 200


def test_a_token_that_may_only_read_does_not_write(server: CacheServer, main: MadeCache) -> None:
    before = server.everything()
    answer = server.put_nar(main.url, main.read_token, source_upload("hello", b"hello"))
    assert answer.status_code == 403
    assert "may read" in answer.text
    assert server.everything() == before


def test_a_token_opens_its_own_cache_only(server: CacheServer, main: MadeCache) -> None:
    other = server.make_cache("other")
    assert server.get(f"{other.url}/nix-cache-info", main.write_token).status_code == 401


def test_a_token_is_taken_as_the_password_of_any_user(server: CacheServer, main: MadeCache) -> None:
    basic = base64.b64encode(f"anybody:{main.read_token}".encode()).decode()
    answer = server.client.get(
        f"{main.url}/nix-cache-info", headers={"Authorization": f"Basic {basic}"}
    )
    assert answer.status_code == 200


def test_an_unknown_cache_is_not_found(server: CacheServer) -> None:
    answer = server.get(f"{server.url}/cache/nowhere/nix-cache-info")
    assert answer.status_code == 404
    assert "nowhere" in answer.text


def test_a_cache_does_not_hand_out_the_nar_of_another_cache(
    server: CacheServer, main: MadeCache
) -> None:
    other = server.make_cache("other", public=True)
    for upload in (source_upload("a", b"secret"), built_upload(some_path("b"), b"hidden")):
        server.push(main.url, main.write_token, upload)
        assert server.get(f"{main.url}/nar/{upload.file_name}", main.read_token).status_code == 200
        assert server.get(f"{other.url}/nar/{upload.file_name}").status_code == 404
        assert server.get(f"{other.url}/{upload.hash_part}.narinfo").status_code == 404


def test_a_content_addressed_push_backs_and_another_one_does_not(
    server: CacheServer, main: MadeCache
) -> None:
    backed = [source_upload("tree", {"a": b"1"}), text_upload("x.drv", b"Derive()")]
    for upload in backed:
        assert server.push(main.url, main.write_token, upload).status_code == 201
    named_wrongly = source_upload("tree", {"a": b"2"})
    named_wrongly.path = some_path("tree")
    plain = built_upload(some_path("built"), b"built")
    executable = text_upload("run", b"#!")
    for upload in (named_wrongly, plain):
        assert server.push(main.url, main.write_token, upload).status_code == 201
    executable.references = [f"{named_wrongly.hash_part}-tree"]
    assert server.push(main.url, main.write_token, executable).status_code == 201

    rows = server.conn.execute("select hash from gradient.cached_path").fetchall()
    assert {hash_part for (hash_part,) in rows} == {upload.hash_part for upload in backed}
    rows = server.conn.execute("select hash from gradient.pushed_path").fetchall()
    assert {hash_part for (hash_part,) in rows} == {
        upload.hash_part for upload in (named_wrongly, plain, executable)
    }


def test_the_same_nar_again_is_fine_and_another_is_a_conflict(
    server: CacheServer, main: MadeCache
) -> None:
    for first, second in (
        (built_upload(some_path("built"), b"one"), built_upload(some_path("built"), b"two")),
        (source_upload("src", b"one"), built_upload(source_upload("src", b"one").path, b"two")),
    ):
        assert server.push(main.url, main.write_token, first).status_code == 201
        assert server.push(main.url, main.write_token, first).status_code == 201
        assert server.put_nar(main.url, main.write_token, second).status_code == 201
        before = server.everything()
        answer = server.put_narinfo(main.url, main.write_token, second)
        assert answer.status_code == 409
        assert first.path in answer.text
        assert sha256(first.nar) in answer.text
        assert server.everything() == before


def test_the_same_path_pushed_into_two_caches_is_served_by_both(
    server: CacheServer, main: MadeCache
) -> None:
    other = server.make_cache("other")
    for upload in (built_upload(some_path("built"), b"one"), source_upload("src", b"one")):
        for cache in (main, other):
            assert server.push(cache.url, cache.write_token, upload).status_code == 201
            found = server.get(f"{cache.url}/{upload.hash_part}.narinfo", cache.read_token)
            assert narinfo_fields(found.text)["Sig"].startswith(f"{cache.name}-1:")
