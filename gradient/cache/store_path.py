"""Store paths, Nix's hashes, and the paths that content itself determines.

Everything that a client says about a path passes through here before it is used. The notations
are those of Nix's manual (store path specification, base 32).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

STORE_DIR: Final = "/nix/store"
ALPHABET: Final = "0123456789abcdfghijklmnpqrsvwxyz"

_HASH_PART: Final = re.compile(rf"[{ALPHABET}]{{32}}")
_BASE_NAME: Final = re.compile(rf"[{ALPHABET}]{{32}}-[0-9A-Za-z+\-_?=][0-9A-Za-z+\-._?=]{{0,210}}")
_SHA256_BYTES: Final = 32


class MalformedError(ValueError):
    """A path, hash or name of a client is not what it claims to be; the text says which."""


def encode_base32(data: bytes) -> str:
    """Bytes in Nix's base 32: read as one little-endian number, most significant digit first."""
    number = int.from_bytes(data, "little")
    digits = (len(data) * 8 + 4) // 5
    return "".join(ALPHABET[number >> (5 * place) & 31] for place in reversed(range(digits)))


def _decode_base32(text: str, size: int) -> bytes:
    number = 0
    for digit in text:
        value = ALPHABET.find(digit)
        if value < 0:
            raise MalformedError(f"{digit!r} is not a digit of Nix's base 32")
        number = number << 5 | value
    if number >> (8 * size):
        raise MalformedError(f"{text!r} has more than {size * 8} bits")
    return number.to_bytes(size, "little")


def is_hash_part(text: str) -> bool:
    """Whether the text is the hash part of a store path: 32 digits of base 32."""
    return _HASH_PART.fullmatch(text) is not None


def check_base_name(name: str) -> str:
    """Return `name` if it is the base name of a store path, `<hash>-<name>`.

    Raises MalformedError.
    """
    if _BASE_NAME.fullmatch(name) is None:
        raise MalformedError(f"{name[:300]!r} is not the base name of a store path")
    return name


def base_name(path: str) -> str:
    """The base name of a full store path. Raises MalformedError."""
    directory, _, name = path.rpartition("/")
    if directory != STORE_DIR or _BASE_NAME.fullmatch(name) is None:
        raise MalformedError(f"{path[:300]!r} is not a store path below {STORE_DIR}")
    return name


def parse_sha256(text: str) -> bytes:
    """The digest of a SHA-256 hash in any of Nix's notations.

    `sha256:` with base 16, base 32 or base 64 behind it, or `sha256-` with base 64.
    Raises MalformedError.
    """
    algorithm, separator, digits = text[:6], text[6:7], text[7:]
    if algorithm != "sha256" or separator not in (":", "-"):
        raise MalformedError(f"{text[:100]!r} is not a SHA-256 hash like sha256:<base 32>")
    try:
        if separator == ":" and len(digits) == 52:
            return _decode_base32(digits, _SHA256_BYTES)
        if separator == ":" and len(digits) == 64:
            return bytes.fromhex(digits)
        digest = base64.b64decode(digits, validate=True)
    except (MalformedError, ValueError, binascii.Error) as error:
        raise MalformedError(f"{text[:100]!r} is not a SHA-256 hash: {error}") from None
    if len(digest) != _SHA256_BYTES:
        raise MalformedError(f"{text[:100]!r} is not a SHA-256 hash: it has the wrong length")
    return digest


def format_sha256(digest: bytes) -> str:
    """A digest as it is stored and shown: `sha256:<base 32>`."""
    return f"sha256:{encode_base32(digest)}"


def _make_path(kind: str, digest: bytes, name: str) -> str:
    """The store path that a fingerprint gives: SHA-256, folded by XOR to 160 bits."""
    fingerprint = f"{kind}:sha256:{digest.hex()}:{STORE_DIR}:{name}"
    whole = hashlib.sha256(fingerprint.encode()).digest()
    folded = bytearray(20)
    for place, byte in enumerate(whole):
        folded[place % 20] ^= byte
    return f"{STORE_DIR}/{encode_base32(bytes(folded))}-{name}"


def _with_references(kind: str, references: Iterable[str]) -> str:
    return ":".join([kind, *(f"{STORE_DIR}/{name}" for name in sorted(set(references)))])


def is_content_addressed(
    path: str,
    ca: str | None,
    references: Sequence[str],
    nar_hash: bytes,
    content_hash: bytes | None,
) -> bool:
    """Whether the content alone proves that `path` is its right name.

    Parameters:
        path: a full store path, checked.
        ca: the narinfo's CA field: `text:`, `fixed:r:` or `fixed:` with a SHA-256 hash.
        references: base names.
        nar_hash: SHA-256 of the NAR as it was received.
        content_hash: SHA-256 of the file, if the NAR is that of one file that is not executable.

    Returns False for what cannot be proved: another kind of hash, a path that refers to itself.
    """
    name = base_name(path)
    label = name[33:]
    method, _, stated = (ca or "").rpartition("sha256")
    if method not in ("text:", "fixed:r:", "fixed:") or name in references:
        return False
    actual = nar_hash if method == "fixed:r:" else content_hash
    if actual is None or actual != parse_sha256(f"sha256{stated}"):
        return False
    if method == "text:":
        return path == _make_path(_with_references("text", references), actual, label)
    if method == "fixed:r:":
        return path == _make_path(_with_references("source", references), actual, label)
    if references:
        return False
    inner = hashlib.sha256(f"fixed:out:sha256:{actual.hex()}:".encode()).digest()
    return path == _make_path("output:out", inner, label)
