"""Keys and signatures, and private keys at rest."""

from __future__ import annotations

import base64
import stat
import threading
from pathlib import Path

import pytest

from gradient.cache.narinfo import fingerprint
from gradient.cache.signing import (
    check_public_key,
    generate_key_pair,
    keys_that_signed,
    sign,
)
from gradient.secrets import SecretError, Secrets
from tests.server.cache.support import (
    CacheServer,
    MadeCache,
    built_upload,
    narinfo_fields,
    some_path,
    source_upload,
)


def test_a_signature_is_that_of_its_key_and_message_only() -> None:
    (key, private), (other, _) = generate_key_pair("a-1"), generate_key_pair("b-1")
    signature = sign("a-1", private, b"message")
    assert keys_that_signed([other, key], ["x:y", "b-1:", signature], b"message") == [key]
    assert keys_that_signed([key], [signature], b"another") == []
    assert keys_that_signed([other], [signature], b"message") == []
    # The name is part of the key: the same key under another name is another one.
    renamed = "c-1:" + key.partition(":")[2]
    assert keys_that_signed([renamed], [signature], b"message") == []


def test_references_are_sorted_in_what_a_signature_covers() -> None:
    refs = ["1" * 32 + "-b", "0" * 32 + "-a", "1" * 32 + "-b"]
    text = fingerprint("/nix/store/x", "sha256:h", 7, refs).decode()
    assert text == f"1;/nix/store/x;sha256:h;7;/nix/store/{refs[1]},/nix/store/{refs[0]}"


@pytest.mark.parametrize("key", ["", "name", "name:", "name:AAAA", ":" + "A" * 43 + "=", "a b:x"])
def test_what_is_no_public_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="public key"):
        check_public_key(key)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "-a", "a\n"])
def test_a_key_name_that_nix_could_not_read_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="key name"):
        generate_key_pair(name)


@pytest.mark.parametrize("backed", [True, False])
def test_the_first_request_signs_and_the_signature_is_kept(
    server: CacheServer, main: MadeCache, backed: bool
) -> None:
    upload = (
        source_upload("x", b"x")
        if backed
        else built_upload(some_path("x"), b"x", references=[f"{'0' * 32}-r"])
    )
    server.push(main.url, main.write_token, upload)
    stored = (
        "select signature from gradient.cached_path_signature"
        if backed
        else "select signature from gradient.pushed_path"
    )
    assert server.value(stored) is None
    url = f"{main.url}/{upload.hash_part}.narinfo"
    fields = narinfo_fields(server.get(url, main.read_token).text)
    signed = fingerprint(upload.path, fields["NarHash"], int(fields["NarSize"]), upload.references)
    assert keys_that_signed([main.public_key], [fields["Sig"]], signed) == [main.public_key]
    assert server.value(stored) == fields["Sig"]
    assert narinfo_fields(server.get(url, main.read_token).text)["Sig"] == fields["Sig"]


def test_a_signature_of_a_former_key_is_made_anew(server: CacheServer, main: MadeCache) -> None:
    upload = source_upload("x", b"x")
    server.push(main.url, main.write_token, upload)
    url = f"{main.url}/{upload.hash_part}.narinfo"
    server.get(url, main.read_token)
    public, private = generate_key_pair("main-2")
    server.conn.execute(
        "update gradient.cache set key_name = 'main-2', public_key = %s,"
        " private_key_encrypted = %s",
        [public, server.secrets.encrypt(private, "cache:main")],
    )
    fields = narinfo_fields(server.get(url, main.read_token).text)
    assert fields["Sig"].startswith("main-2:")
    assert server.value("select signature from gradient.cached_path_signature") == fields["Sig"]


def test_a_key_that_cannot_be_decrypted_is_said_to_be(server: CacheServer, main: MadeCache) -> None:
    upload = source_upload("x", b"x")
    server.push(main.url, main.write_token, upload)
    server.conn.execute("update gradient.cache set private_key_encrypted = 'x'")
    answer = server.get(f"{main.url}/{upload.hash_part}.narinfo", main.read_token)
    assert answer.status_code == 500
    assert "another secret" in answer.text


def test_the_secret_file_is_private_and_made_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    sealed = Secrets.from_state_dir(state).encrypt(b"key", "cache:a")
    assert stat.S_IMODE((state / "secret").stat().st_mode) == 0o600
    assert Secrets.from_state_dir(state).decrypt(sealed, "cache:a") == b"key"
    assert [path.name for path in state.iterdir()] == ["secret"]


def test_servers_that_start_at_once_share_one_secret(tmp_path: Path) -> None:
    sealed: list[bytes] = []

    def start() -> None:
        sealed.append(Secrets.from_state_dir(tmp_path / "state").encrypt(b"key", "x"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    secrets = Secrets.from_state_dir(tmp_path / "state")
    assert [secrets.decrypt(text, "x") for text in sealed] == [b"key"] * 8


def test_a_stored_key_opens_with_its_own_secret_and_purpose_only(tmp_path: Path) -> None:
    one, two = (Secrets.from_state_dir(tmp_path / name) for name in "ab")
    sealed = one.encrypt(b"key", "cache:a")
    assert b"key" not in sealed
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for secrets, stored, purpose in (
        (two, sealed, "cache:a"),
        (one, sealed, "cache:b"),
        (one, changed, "cache:a"),
        (one, b"", "cache:a"),
    ):
        with pytest.raises(SecretError, match="another secret"):
            secrets.decrypt(stored, purpose)


@pytest.mark.parametrize("content", [b"", b"\xff", b"not base 64!", base64.b64encode(b"short")])
def test_a_damaged_secret_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(SecretError, match="secret"):
        Secrets.from_state_dir(tmp_path)
    assert (tmp_path / "secret").read_bytes() == content
