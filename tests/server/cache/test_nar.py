"""The NAR checker accepts what Nix writes, in any pieces, and measures it right."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from gradient.cache.ingest import Ingest
from gradient.cache.nar import NarChecker, TooLargeError
from gradient.cache.store_path import MalformedError
from tests.server.cache.support import Tree, make_nar, sha256
from tests.support import nix_store

NAMES = st.text(st.sampled_from("ab.-_ é"), min_size=1, max_size=5).filter(
    lambda name: name not in (".", "..")
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.binary(max_size=40),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4).filter(
        lambda tree: sorted(tree) == sorted(tree, key=str.encode)
    ),
    max_leaves=12,
)


def check(nar: bytes, step: int, limit: int = 1 << 30) -> NarChecker:
    checker = NarChecker(limit)
    for start in range(0, len(nar), step):
        checker.feed(nar[start : start + step])
    checker.finish()
    return checker


@given(TREES, st.integers(1, 50))
def test_every_archive_is_accepted_in_any_pieces(tree: Tree, step: int) -> None:
    checker = check(make_nar(tree), step)
    if isinstance(tree, bytes):
        assert checker.content_hash == hashlib.sha256(tree).digest()
    else:
        assert checker.content_hash is None


@given(TREES, st.integers(1, 50), st.data())
def test_every_archive_cut_short_or_continued_is_refused(
    tree: Tree, step: int, data: st.DataObject
) -> None:
    nar = make_nar(tree)
    cut = data.draw(st.integers(0, len(nar) - 1))
    for wrong in (nar[:cut], nar + b"\0"):
        with pytest.raises(MalformedError):
            check(wrong, step)


@given(TREES, st.data())
def test_an_archive_over_the_limit_is_refused(tree: Tree, data: st.DataObject) -> None:
    nar = make_nar(tree)
    limit = data.draw(st.integers(0, len(nar) - 1))
    with pytest.raises(TooLargeError):
        check(nar, 16, limit)
    check(nar, 16, len(nar))


@pytest.mark.nix
@pytest.mark.skipif(
    nix_store.unavailable_reason() is not None, reason=str(nix_store.unavailable_reason())
)
def test_what_nix_dumps_is_accepted(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep" / "deeper" / "empty").mkdir(parents=True)
    (tree / "executable").write_bytes(b"#!/bin/sh\n")
    (tree / "executable").chmod(0o755)
    (tree / "link").symlink_to("../elsewhere")
    (tree / "empty").touch()
    (tree / "umlaut-ä").write_bytes(bytes(range(256)) * 40)
    for number in range(300):
        (tree / "deep" / f"file{number}").write_bytes(b"x" * number)
    for path, single in ((tree, False), (tree / "empty", True), (tree / "executable", False)):
        nar = subprocess.run(
            ["nix-store", "--dump", str(path)], capture_output=True, check=True
        ).stdout
        for step in (7, 1000, len(nar)):
            assert (check(nar, step).content_hash is not None) is single


@pytest.mark.parametrize(
    "compression, compress",
    [
        ("none", bytes),
        ("xz", lzma.compress),
        ("zstd", zstd.compress),
        ("bzip2", bz2.compress),
        ("gzip", gzip.compress),
    ],
)
@pytest.mark.parametrize("members", [1, 3])
def test_a_file_is_measured_in_every_compression_and_in_several_members(
    compression: str, compress: Callable[[bytes], bytes], members: int
) -> None:
    nar = make_nar({"file": b"content" * 9000})
    part = len(nar) // members + 1
    file = b"".join(compress(nar[start : start + part]) for start in range(0, len(nar), part))
    for step in (1000, len(file)):
        ingest = Ingest(compression, sha256(file), len(nar))
        for start in range(0, len(file), step):
            ingest.feed(file[start : start + step])
        measured = ingest.finish()
        assert (measured.nar_hash, measured.nar_size) == (sha256(nar), len(nar))
        assert (measured.file_hash, measured.file_size) == (sha256(file), len(file))


def test_a_window_larger_than_any_client_uses_is_refused() -> None:
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: 30,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    compressor = zstd.ZstdCompressor(options=options)
    file = compressor.compress(make_nar(b"x" * 1000)) + compressor.flush()
    ingest = Ingest("zstd", sha256(file), 1 << 30)
    with pytest.raises(MalformedError, match="zstd"):
        ingest.feed(file)
