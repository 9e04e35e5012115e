"""Store paths, base 32 and hashes, held to what Nix itself accepts and prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.nix.support import Nix
from worker.nix.store_path import (
    InvalidHashError,
    InvalidStorePathError,
    decode_hash,
    hash_part,
    is_store_path,
    nix32_decode,
    nix32_encode,
    normalise_hash,
    parse_store_path,
    text_path,
)

HASH = "0123456789abcdfghijklmnpqrsvwxyz"
EMPTY_HEX = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
EMPTY_NIX32 = "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73"
EMPTY_BASE64 = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="


def test_a_store_path_is_split_into_hash_and_name() -> None:
    path = parse_store_path(f"/nix/store/{HASH}-hello-2.12.drv")
    assert (path.hash_part, path.name) == (HASH, "hello-2.12.drv")
    assert path.is_derivation
    assert str(path) == f"/nix/store/{HASH}-hello-2.12.drv"
    assert hash_part(str(path)) == HASH


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/nix/store/",
        f"/nix/store/{HASH}",
        f"/nix/store/{HASH}-",
        f"/nix/store/{HASH}_hello",
        f"/nix/store/{HASH[:-1]}-hello",
        f"/nix/store/{HASH[:-1]}e-hello",
        f"/nix/store/{HASH.upper()}-hello",
        f"/nix/store/{HASH}-.hidden",
        f"/nix/store/{HASH}-a/b",
        f"/nix/store/../{HASH}-hello",
        f"/nix/store/{HASH}-hello\n",
        f"/nix/store/{HASH}-hellö",
        f"/nix/store/{HASH}-a b",
        f"/tmp/{HASH}-hello",
        f"{HASH}-hello",
        f"/nix/store/{HASH}-{'x' * 212}",
    ],
)
def test_what_is_no_store_path_is_refused_and_named(path: str) -> None:
    with pytest.raises(InvalidStorePathError):
        parse_store_path(path)
    assert not is_store_path(path)


def test_a_name_of_211_characters_and_every_allowed_sign_is_taken() -> None:
    assert is_store_path(f"/nix/store/{HASH}-{'x' * 211}")
    assert is_store_path(f"/nix/store/{HASH}-aZ09+-._?=")


@given(st.binary(max_size=70))
def test_base_32_reads_back_what_it_wrote(data: bytes) -> None:
    assert nix32_decode(nix32_encode(data)) == data


def test_base_32_refuses_foreign_characters_and_leftover_bits() -> None:
    for text in ("e", "zz", "A0"):
        with pytest.raises(InvalidHashError):
            nix32_decode(text)


@pytest.mark.parametrize(
    "text",
    [
        EMPTY_HEX,
        EMPTY_NIX32,
        EMPTY_BASE64,
        f"sha256:{EMPTY_HEX}",
        f"sha256:{EMPTY_NIX32}",
        f"sha256:{EMPTY_BASE64}",
        f"sha256-{EMPTY_BASE64}",
    ],
)
def test_every_notation_of_a_hash_becomes_the_narinfo_notation(text: str) -> None:
    assert normalise_hash(text) == f"sha256:{EMPTY_NIX32}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        f"md5:{EMPTY_HEX}",
        f"sha1:{EMPTY_HEX}",
        f"sha256-{EMPTY_HEX}",
        EMPTY_HEX[:-1],
        EMPTY_HEX[:-1] + "g",
        EMPTY_NIX32[:-1] + "e",
        EMPTY_BASE64[:-2] + "*=",
        f"sha3:{EMPTY_HEX}",
    ],
)
def test_what_is_no_sha256_is_refused(text: str) -> None:
    with pytest.raises(InvalidHashError):
        normalise_hash(text)


@pytest.mark.nix
@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
def test_hashes_agree_with_nix_in_every_notation(nix: Nix, tmp_path: Path, algorithm: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"some content")
    digests = {
        base: nix.run("nix", "hash", "file", f"--{base}", "--type", algorithm, str(file))
        for base in ("base16", "base32", "base64", "sri")
    }
    read = {decode_hash(done.stdout.strip(), algorithm)[1] for done in digests.values()}
    assert len(read) == 1
    assert nix32_encode(read.pop()) == digests["base32"].stdout.strip()


@pytest.mark.nix
def test_the_path_of_a_text_is_the_one_nix_gives_it(nix: Nix) -> None:
    plain = nix.run(
        "nix-instantiate",
        "--eval",
        "--json",
        "--read-write-mode",
        "-E",
        'builtins.toFile "plain" "text"',
    ).stdout.strip('"\n')
    assert text_path("plain", b"text", []) == plain
    referring = nix.run(
        "nix-instantiate",
        "--eval",
        "--json",
        "--read-write-mode",
        "-E",
        'builtins.toFile "b" "see ${builtins.toFile "plain" "text"}"',
    ).stdout.strip('"\n')
    assert text_path("b", f"see {plain}".encode(), [plain]) == referring
