"""Store paths, their names, Nix's base 32 and hash formats.

A store path is `/nix/store/<32 characters of base 32>-<name>`. Everything that comes from a file,
a process or the network is checked here before it is used; a string that passed
`parse_store_path` is safe in a file name and in a command line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

STORE_DIR: Final = "/nix/store"
NIX32_ALPHABET: Final = "0123456789abcdfghijklmnpqrsvwxyz"
MAX_NAME_LENGTH: Final = 211

_NAME = re.compile(r"[0-9A-Za-z+\-_?=][0-9A-Za-z+\-._?=]*")
_HASH_PART = re.compile(rf"[{NIX32_ALPHABET}]{{32}}")
_NIX32_VALUE: Final = {character: value for value, character in enumerate(NIX32_ALPHABET)}
_DIGEST_SIZE: Final = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}


class InvalidStorePathError(ValueError):
    """A string that is no store path; the text names it and what is wrong."""


class InvalidHashError(ValueError):
    """A string that is no hash in any of Nix's notations."""


@dataclass(frozen=True, slots=True)
class StorePath:
    """A checked store path, split into its two parts."""

    hash_part: str
    name: str

    def __str__(self) -> str:
        return f"{STORE_DIR}/{self.hash_part}-{self.name}"

    @property
    def is_derivation(self) -> bool:
        """Whether it is a `.drv`."""
        return self.name.endswith(".drv")


def check_store_name(name: str) -> str:
    """Return `name` when a store path may carry it.

    Raises:
        InvalidStorePathError: it is empty, longer than 211 characters, starts with a dot, or
            holds a character that Nix refuses.
    """
    if not name:
        raise InvalidStorePathError("a store path has an empty name")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidStorePathError(
            f"the store path name {name[:40]!r}… has {len(name)} characters, "
            f"more than {MAX_NAME_LENGTH}"
        )
    if not _NAME.fullmatch(name):
        raise InvalidStorePathError(
            f"the store path name {name!r} has a character that is not allowed"
        )
    return name


def parse_store_path(path: str) -> StorePath:
    """Check a store path and split it.

    Parameters:
        path: the full path, of a store object itself and not of something inside it.

    Raises:
        InvalidStorePathError: anything else.
    """
    directory, slash, base = path.rpartition("/")
    if directory != STORE_DIR or not slash:
        raise InvalidStorePathError(f"{path!r} is not a path directly below {STORE_DIR}")
    hash_part, dash, name = base[:32], base[32:33], base[33:]
    if not _HASH_PART.fullmatch(hash_part) or dash != "-":
        raise InvalidStorePathError(
            f"{path!r} does not start with 32 characters of base 32 and a dash"
        )
    check_store_name(name)
    return StorePath(hash_part, name)


def is_store_path(path: str) -> bool:
    """Whether `parse_store_path` accepts the string."""
    try:
        parse_store_path(path)
    except InvalidStorePathError:
        return False
    return True


def hash_part(path: str) -> str:
    """The 32 characters that name a store path in a binary cache."""
    return parse_store_path(path).hash_part


def text_path(name: str, content: bytes, references: Iterable[str]) -> str:
    """The store path of a text file that Nix made itself, such as a `.drv`.

    Parameters:
        references: the store paths that it refers to.
    """
    kind = ":".join(["text", *sorted(references)])
    inner = hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256(f"{kind}:sha256:{inner}:{STORE_DIR}:{name}".encode()).digest()
    folded = bytearray(20)
    for index, byte in enumerate(digest):
        folded[index % 20] ^= byte
    return f"{STORE_DIR}/{nix32_encode(bytes(folded))}-{check_store_name(name)}"


def nix32_encode(data: bytes) -> str:
    """Write bytes in Nix's base 32: least significant bits last, without padding."""
    length = (len(data) * 8 + 4) // 5
    number = int.from_bytes(data, "little")
    return "".join(NIX32_ALPHABET[(number >> (5 * i)) & 31] for i in range(length - 1, -1, -1))


def nix32_decode(text: str) -> bytes:
    """Read Nix's base 32.

    Raises:
        InvalidHashError: a character outside the alphabet, or bits left over.
    """
    number = 0
    for character in text:
        value = _NIX32_VALUE.get(character)
        if value is None:
            raise InvalidHashError(f"{character!r} in {text!r} is not a character of Nix's base 32")
        number = number << 5 | value
    size = len(text) * 5 // 8
    if number >> (size * 8):
        raise InvalidHashError(f"{text!r} has bits left over")
    return number.to_bytes(size, "little")


def decode_hash(text: str, algorithm: str | None = None) -> tuple[str, bytes]:
    """Read a hash in any notation Nix writes.

    Parameters:
        text: `<algorithm>:<base 16, base 32 or base 64>`, SRI (`<algorithm>-<base 64>`), or the
            bare digits when `algorithm` is given.
        algorithm: md5, sha1, sha256 or sha512; must agree with the text where both name one.

    Returns:
        The algorithm and the digest.

    Raises:
        InvalidHashError: anything else.
    """
    match = re.match(r"(md5|sha1|sha256|sha512)([:-])", text)
    digits = text
    sri = False
    if match:
        if algorithm is not None and algorithm != match[1]:
            raise InvalidHashError(f"{text!r} is not a {algorithm} hash")
        algorithm, sri, digits = match[1], match[2] == "-", text[match.end() :]
    if algorithm is None or algorithm not in _DIGEST_SIZE:
        raise InvalidHashError(f"{text!r} does not name a hash algorithm that Nix knows")
    size = _DIGEST_SIZE[algorithm]
    try:
        if not sri and len(digits) == size * 2:
            digest = bytes.fromhex(digits)
        elif not sri and len(digits) == (size * 8 + 4) // 5:
            digest = nix32_decode(digits)
        elif len(digits) == (size + 2) // 3 * 4:
            digest = base64.b64decode(digits, validate=True)
        else:
            raise InvalidHashError(f"{text!r} has the wrong length for a {algorithm} hash")
    except (binascii.Error, ValueError) as error:
        raise InvalidHashError(f"{text!r} is not a {algorithm} hash") from error
    if len(digest) != size:
        raise InvalidHashError(f"{text!r} has the wrong length for a {algorithm} hash")
    return algorithm, digest


def normalise_hash(text: str, algorithm: str = "sha256") -> str:
    """Rewrite a hash as `<algorithm>:<base 32>`, the notation of narinfo files.

    Raises:
        InvalidHashError: see `decode_hash`.
    """
    name, digest = decode_hash(text, algorithm)
    return f"{name}:{nix32_encode(digest)}"
