"""NARs of single files, held to `nix-store --dump`."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.nix.nar import InvalidNarError, read_file_nar, write_file_nar


@given(st.binary(max_size=100), st.booleans())
def test_a_nar_gives_back_its_content(content: bytes, executable: bool) -> None:
    assert read_file_nar(write_file_nar(content, executable=executable)) == content


@given(st.binary(max_size=40), st.integers(min_value=0))
def test_a_nar_cut_short_anywhere_is_refused(content: bytes, cut: int) -> None:
    nar = write_file_nar(content)
    with pytest.raises(InvalidNarError):
        read_file_nar(nar[: cut % len(nar)])


def test_a_nar_with_something_behind_it_is_refused() -> None:
    with pytest.raises(InvalidNarError):
        read_file_nar(write_file_nar(b"text") + b"\0" * 8)


def test_padding_that_is_not_zero_is_refused() -> None:
    nar = write_file_nar(b"text")
    with pytest.raises(InvalidNarError):
        read_file_nar(nar.replace(b"text\0\0\0\0", b"text\0\0\0x"))


def test_a_length_beyond_the_end_is_refused() -> None:
    nar = write_file_nar(b"text")
    huge = nar.replace(struct.pack("<Q", 4) + b"text", struct.pack("<Q", 1 << 60) + b"text")
    with pytest.raises(InvalidNarError):
        read_file_nar(huge)


@pytest.mark.nix
@pytest.mark.usefixtures("own_store")
def test_nix_writes_the_same_nar(tmp_path: Path) -> None:
    for name, content, executable in [("a", b"", False), ("b", b"12345678", True), ("c", b"x", 0)]:
        file = tmp_path / name
        file.write_bytes(content)
        file.chmod(0o755 if executable else 0o644)
        dumped = subprocess.run(["nix-store", "--dump", file], capture_output=True, check=True)
        assert write_file_nar(content, executable=bool(executable)) == dumped.stdout


@pytest.mark.nix
@pytest.mark.usefixtures("own_store")
def test_the_nar_of_a_folder_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("target")
    for name in ("folder", "link"):
        dumped = subprocess.run(
            ["nix-store", "--dump", tmp_path / name], capture_output=True, check=True
        )
        with pytest.raises(InvalidNarError):
            read_file_nar(dumped.stdout)
