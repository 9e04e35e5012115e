"""Hashes, store paths and content addresses, held to Nix itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradient.cache.store_path import (
    STORE_DIR,
    MalformedError,
    base_name,
    check_base_name,
    encode_base32,
    format_sha256,
    is_content_addressed,
    parse_sha256,
)
from tests.server.cache.support import make_nar, some_path, source_upload, text_upload
from tests.support import nix_store
from tests.support.nix_store import NixStore

needs_nix = pytest.mark.skipif(
    nix_store.unavailable_reason() is not None, reason=str(nix_store.unavailable_reason())
)


@given(st.binary(min_size=32, max_size=32))
def test_a_hash_is_read_in_every_notation_that_nix_writes(digest: bytes) -> None:

    base32 = f"sha256:{encode_base32(digest)}"
    base64_text = base64.b64encode(digest).decode()
    for text in (
        base32,
        f"sha256:{digest.hex()}",
        f"sha256:{base64_text}",
        f"sha256-{base64_text}",
    ):
        assert parse_sha256(text) == digest
    assert format_sha256(digest) == base32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256",
        "sha256:",
        "sha1:" + "0" * 32,
        "sha256:" + "0" * 51,
        "sha256:" + "e" * 52,
        "sha256:" + "z" * 52,
        "sha256-" + "A" * 44,
        "sha256-" + "A" * 40 + "====",
        "sha512:" + "0" * 103,
    ],
)
def test_what_is_no_sha256_hash_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_sha256(text)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "short-x",
        "0" * 32,
        "0" * 32 + "-",
        "0" * 32 + "-.hidden",
        "0" * 32 + "-a/b",
        "0" * 32 + "-a b",
        "0" * 32 + "-a\n",
        "0" * 32 + "-" + "n" * 212,
        "e" * 32 + "-x",
        "A" * 32 + "-x",
    ],
)
def test_what_is_no_base_name_is_refused(name: str) -> None:
    with pytest.raises(MalformedError):
        check_base_name(name)
    with pytest.raises(MalformedError):
        base_name(f"{STORE_DIR}/{name}")


@pytest.mark.parametrize("path", ["x", "/nix/store", "/nix/store/", "/tmp/" + "0" * 32 + "-x"])
def test_what_is_no_store_path_is_refused(path: str) -> None:
    with pytest.raises(MalformedError):
        base_name(path)


@needs_nix
@pytest.mark.nix
def test_the_paths_that_nix_gives_to_content_are_recognised(tmp_path: Path) -> None:
    store = NixStore(tmp_path / "machine")
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "file").write_text("content")
    (tree / "link").symlink_to("a")
    (tmp_path / "expression.nix").write_text(
        """
        let plain = builtins.toFile "plain" "text"; in
        derivation {
          name = "d"; system = "x"; builder = builtins.toFile "with-refs" "see ${plain}";
        }
        """
    )
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "NIX_CONFIG": "experimental-features = nix-command\nbuild-users-group =",
    }

    def nix(*argv: str) -> str:
        done = subprocess.run(
            store.command(argv), env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    paths = [
        nix("nix-store", "--add", str(tree)),
        nix("nix-store", "--add-fixed", "sha256", str(tree / "a" / "file")),
        nix("nix-store", "--add-fixed", "--recursive", "sha256", str(tree)),
    ]
    drv = nix("nix-instantiate", str(tmp_path / "expression.nix"))
    paths += nix("nix-store", "--query", "--requisites", drv).split()
    assert len(set(paths)) == 5
    kinds = set()
    for path in set(paths):
        dump = store.command(["nix-store", "--dump", path])
        nar = subprocess.run(dump, capture_output=True, check=True).stdout
        real = store.real_path(path)
        content = hashlib.sha256(real.read_bytes()).digest() if real.is_file() else None
        itself = ["--derivation"] if path.endswith(".drv") else []
        info = json.loads(nix("nix", "path-info", "--json", *itself, path))
        ca = (info[0] if isinstance(info, list) else info[path])["ca"]
        references = [
            reference.removeprefix(f"{STORE_DIR}/")
            for reference in nix("nix-store", "--query", "--references", path).split()
        ]
        digest = hashlib.sha256(nar).digest()
        assert is_content_addressed(path, ca, references, digest, content), (path, ca)
        kinds.add(ca.partition("sha256")[0])
        # Whatever is changed, nothing is proved any more.
        wrong = hashlib.sha256(b"other").digest()
        assert not is_content_addressed(path, ca, references, wrong, wrong)
        assert not is_content_addressed(path, None, references, digest, content)
        assert not is_content_addressed(some_path("x"), ca, references, digest, content)
        assert not is_content_addressed(f"{path}-x", ca, references, digest, content)
        more = [*references, some_path("r").removeprefix(f"{STORE_DIR}/")]
        assert not is_content_addressed(path, ca, more, digest, content)
    assert kinds == {"text:", "fixed:r:", "fixed:"}


def test_a_path_that_refers_to_itself_is_not_proved() -> None:
    upload = source_upload("src", {"a": b"1"})
    own = [base_name(upload.path)]
    digest = hashlib.sha256(upload.nar).digest()
    assert is_content_addressed(upload.path, upload.ca, [], digest, None)
    assert not is_content_addressed(upload.path, upload.ca, own, digest, None)


@pytest.mark.parametrize("ca", ["text:sha1:abc", "fixed:r:md5:abc", "git:sha256:abc", ":", "x"])
def test_another_kind_of_content_address_is_not_proved(ca: str) -> None:
    upload = text_upload("x", b"x")
    digest = hashlib.sha256(make_nar(b"x")).digest()
    content = hashlib.sha256(b"x").digest()
    assert is_content_addressed(upload.path, upload.ca, [], digest, content)
    assert not is_content_addressed(upload.path, ca, [], digest, content)
