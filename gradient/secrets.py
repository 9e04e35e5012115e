"""Private keys at rest: encrypted with a secret that never enters the database."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

SECRET_FILE: Final = "secret"
_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"


class SecretError(Exception):
    """The secret file is unusable, or a stored key was encrypted with another secret."""


class Secrets:
    """Encrypts and decrypts private keys (ChaCha20-Poly1305) with one 32-byte secret.

    `purpose` ties a ciphertext to what it belongs to ("cache:main"): moved to another row it
    does not decrypt.
    """

    def __init__(self, secret: bytes) -> None:
        self._cipher = ChaCha20Poly1305(secret)

    @classmethod
    def from_state_dir(cls, state_dir: Path) -> Secrets:
        """Read `state_dir/secret`, and make it (mode 0600) when it is not there yet.

        Several servers of one database must share this file. Raises SecretError.
        """
        path = state_dir / SECRET_FILE
        try:
            if not path.exists():
                _create(path)
            text = path.read_text(encoding="ascii").strip()
            secret = base64.b64decode(text, validate=True)
        except OSError as error:
            raise SecretError(f"cannot use the secret file {path}: {error.strerror}") from error
        except (UnicodeDecodeError, ValueError, binascii.Error) as error:
            raise SecretError(f"{path} does not hold a secret in base 64: {error}") from error
        if len(secret) != 32:
            raise SecretError(f"{path} holds {len(secret)} bytes instead of a secret of 32")
        return cls(secret)

    def encrypt(self, plain: bytes, purpose: str) -> bytes:
        """Encrypt for storage in the database."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plain, purpose.encode())

    def decrypt(self, stored: bytes, purpose: str) -> bytes:
        """Undo `encrypt`. Raises SecretError when the secret or the purpose is another one."""
        nonce, sealed = stored[1 : 1 + _NONCE_BYTES], stored[1 + _NONCE_BYTES :]
        try:
            if stored[:1] != _VERSION:
                raise InvalidTag
            return self._cipher.decrypt(nonce, sealed, purpose.encode())
        except (InvalidTag, ValueError):
            raise SecretError(
                f"the key of {purpose} was encrypted with another secret: give this server the "
                f"file {SECRET_FILE!r} of the state folder that it was created with"
            ) from None


def _create(path: Path) -> None:
    """Write a fresh secret; of several servers starting at once, the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(32)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # A link fails where a name exists: nobody's secret is ever replaced.
        os.link(fresh, path)
    except FileExistsError:
        return
    finally:
        fresh.unlink()
