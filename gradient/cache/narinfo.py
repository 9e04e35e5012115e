"""Reading and writing `.narinfo` files, and what their signatures cover."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gradient.cache.store_path import (
    STORE_DIR,
    MalformedError,
    base_name,
    check_base_name,
    encode_base32,
    format_sha256,
    parse_sha256,
)

# Extension of a NAR's file name, by the compression's name in a narinfo.
EXTENSIONS: Final = {"none": "", "xz": ".xz", "zstd": ".zst", "bzip2": ".bz2", "gzip": ".gz"}
_COMPRESSIONS: Final = {extension: name for name, extension in EXTENSIONS.items()}
_NAR_FILE: Final = re.compile(r"([0-9a-df-np-sv-z]{52})\.nar(\.xz|\.zst|\.bz2|\.gz|)")
_ONCE: Final = frozenset(
    {
        "StorePath",
        "URL",
        "Compression",
        "FileHash",
        "FileSize",
        "NarHash",
        "NarSize",
        "References",
        "Deriver",
        "CA",
    }
)


class NarInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a narinfo says, checked: full store path, hashes as `sha256:<base 32>`, sizes in bytes.

    `references` and `deriver` are base names, in the order given; `file_size` is None where the
    client left it out.
    """

    path: str
    compression: str
    file_hash: str
    file_size: int | None
    nar_hash: str
    nar_size: int
    references: tuple[str, ...] = ()
    deriver: str | None = None
    ca: str | None = None
    signatures: tuple[str, ...] = ()


def nar_file_name(file_hash: str, compression: str) -> str:
    """`<hash>.nar[.ext]` of a stored file; `file_hash` is `sha256:<base 32>`."""
    return f"{file_hash.removeprefix('sha256:')}.nar{EXTENSIONS[compression]}"


def parse_nar_file_name(name: str) -> tuple[str, str] | None:
    """The file hash (`sha256:<base 32>`) and compression that a NAR's file name states.

    None when it is no such name.
    """
    match = _NAR_FILE.fullmatch(name)
    if match is None:
        return None
    try:
        digest = parse_sha256(f"sha256:{match[1]}")
    except MalformedError:
        return None
    if encode_base32(digest) != match[1]:
        return None
    return f"sha256:{match[1]}", _COMPRESSIONS[match[2]]


def parse(text: str) -> NarInfo:
    """Read a narinfo as a client sends it. Raises MalformedError naming the field."""
    fields: dict[str, str] = {}
    signatures: list[str] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon:
            raise MalformedError(f"the narinfo line {line[:100]!r} has no colon")
        value = value.strip()
        if key == "Sig":
            signatures.append(value)
        elif key in fields and key in _ONCE:
            raise MalformedError(f"the narinfo names {key} twice")
        else:
            fields[key] = value
    return NarInfo(signatures=tuple(signatures), **_checked(fields))


def _checked(fields: dict[str, str]) -> dict[str, Any]:
    for needed in ("StorePath", "URL", "NarHash", "NarSize"):
        if not fields.get(needed):
            raise MalformedError(f"the narinfo has no {needed}")
    with _named("StorePath"):
        base_name(fields["StorePath"])
    named = parse_nar_file_name(fields["URL"].removeprefix("nar/"))
    if named is None or not fields["URL"].startswith("nar/"):
        raise MalformedError(
            f"URL: {fields['URL'][:200]!r} is not nar/<file hash>.nar with .xz, .zst, .bz2, .gz "
            "or nothing behind it"
        )
    file_hash, compression = named
    if fields.get("Compression", "bzip2") != compression:
        raise MalformedError(
            f"Compression: {fields.get('Compression', 'bzip2(by default)')} does not fit the URL "
            f"{fields['URL']}"
        )
    with _named("FileHash"):
        stated = fields.get("FileHash")
        if stated and format_sha256(parse_sha256(stated)) != file_hash:
            raise MalformedError(f"{stated} is not the hash in the URL {fields['URL']}")
    with _named("NarHash"):
        nar_hash = format_sha256(parse_sha256(fields["NarHash"]))
    with _named("References"):
        references = tuple(check_base_name(name) for name in fields.get("References", "").split())
    deriver = fields.get("Deriver") or None
    if deriver == "unknown-deriver":
        deriver = None
    if deriver is not None:
        with _named("Deriver"):
            check_base_name(deriver)
    return {
        "path": fields["StorePath"],
        "compression": compression,
        "file_hash": file_hash,
        "file_size": _size(fields, "FileSize") if fields.get("FileSize") else None,
        "nar_hash": nar_hash,
        "nar_size": _size(fields, "NarSize"),
        "references": tuple(dict.fromkeys(references)),
        "deriver": deriver,
        "ca": _content_address(fields.get("CA") or None),
    }


class _named:  # noqa: N801 - used like the functions of contextlib
    """Put the field's name in front of what is wrong with it."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, MalformedError):
            raise MalformedError(f"{self.field}: {error}") from None


def _size(fields: dict[str, str], field: str) -> int:
    text = fields[field]
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise MalformedError(f"{field}: {text[:100]!r} is not a size in bytes")
    return int(text)


def _content_address(ca: str | None) -> str | None:
    if ca is not None and re.fullmatch(r"(text|fixed)(:r)?:[a-z0-9]+:[0-9A-Za-z+/=]+", ca) is None:
        raise MalformedError(f"CA: {ca[:200]!r} is not a content address")
    return ca


def format_narinfo(path: dict[str, Any], signatures: Sequence[str] = ()) -> str:
    """The narinfo text of a path as `graph.narinfo` and `graph.job_narinfo` describe it."""
    name = nar_file_name(path["file_hash"], path["compression"])
    lines = [
        f"StorePath: {path['path']}",
        f"URL: nar/{name}",
        f"Compression: {path['compression']}",
        f"FileHash: {path['file_hash']}",
        f"FileSize: {path['file_size']}",
        f"NarHash: {path['nar_hash']}",
        f"NarSize: {path['nar_size']}",
        f"References: {' '.join(path['references'])}",
    ]
    if path["deriver"]:
        lines.append(f"Deriver: {path['deriver']}")
    if path["ca"]:
        lines.append(f"CA: {path['ca']}")
    lines.extend(f"Sig: {signature}" for signature in signatures)
    return "\n".join(lines) + "\n"


def fingerprint(path: str, nar_hash: str, nar_size: int, references: Sequence[str]) -> bytes:
    """What a signature covers. `references` are base names, `nar_hash` is `sha256:<base 32>`."""
    full = ",".join(f"{STORE_DIR}/{name}" for name in sorted(set(references)))
    return f"1;{path};{nar_hash};{nar_size};{full}".encode()
