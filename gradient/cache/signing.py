"""Nix's signatures: Ed25519 over a path's fingerprint, written `<key name>:<base 64>`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KEY_BYTES: Final = 32


def generate_key_pair(key_name: str) -> tuple[str, bytes]:
    """A fresh key pair for a cache.

    Returns the public key as Nix's `trusted-public-keys` takes it (`<name>:<base 64>`), and the
    private key's 32 bytes, to be encrypted before they are stored (`gradient.secrets`).
    Raises ValueError for a malformed key name.
    """
    if _KEY_NAME.fullmatch(key_name) is None:
        raise ValueError(
            f"key name {key_name!r}: use letters, digits, dots, dashes and underscores, "
            "like cache.example.org-1"
        )
    private = Ed25519PrivateKey.generate()
    public = base64.b64encode(private.public_key().public_bytes_raw()).decode()
    return f"{key_name}:{public}", private.private_bytes_raw()


def sign(key_name: str, private_key: bytes, message: bytes) -> str:
    """The signature of `message` as a narinfo's Sig field carries it."""
    signature = Ed25519PrivateKey.from_private_bytes(private_key).sign(message)
    return f"{key_name}:{base64.b64encode(signature).decode()}"


def check_public_key(key: str) -> str:
    """Return `key` if it is a public key in Nix's notation. Raises ValueError."""
    _public_key(key)
    return key


def keys_that_signed(
    public_keys: Iterable[str], signatures: Iterable[str], message: bytes
) -> list[str]:
    """Those of `public_keys` for which one of `signatures` is a valid one of `message`."""
    by_name: dict[str, list[bytes]] = {}
    for signature in signatures:
        name, _, digits = signature.partition(":")
        try:
            by_name.setdefault(name, []).append(base64.b64decode(digits, validate=True))
        except (ValueError, binascii.Error):
            continue
    found = []
    for key in public_keys:
        name, public = _public_key(key)
        if any(_valid(public, candidate, message) for candidate in by_name.get(name, [])):
            found.append(key)
    return found


def _public_key(key: str) -> tuple[str, Ed25519PublicKey]:
    name, _, digits = key.partition(":")
    try:
        raw = base64.b64decode(digits, validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if _KEY_NAME.fullmatch(name) is None or len(raw) != _KEY_BYTES:
        raise ValueError(f"{key[:200]!r} is not a public key like name:<44 digits of base 64>")
    return name, Ed25519PublicKey.from_public_bytes(raw)


def _valid(public: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True
