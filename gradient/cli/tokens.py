"""Tokens: made here, shown once, stored as a hash."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """A fresh token: the text for its holder, and the hash for the database."""

    text: str
    sha256: bytes

    @classmethod
    def fresh(cls) -> Token:
        """256 random bits, as 64 hexadecimal digits."""
        return cls.of(secrets.token_hex(32))

    @classmethod
    def of(cls, text: str) -> Token:
        """The token of a given text."""
        return cls(text, hashlib.sha256(text.encode()).digest())
