"""`.drv` files as objects: read, checked and kept in memory, never imported into the store.

A `.drv` names itself: its store path is worked out from its text. So it does not matter where the
text came from, this machine's store or the cache; what does not match its name is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Final

from worker.cache_client import CacheClient, CorruptNarError
from worker.nix import nar
from worker.nix.derivation import Derivation, InvalidDerivationError, parse_derivation
from worker.nix.serve import PathInfo
from worker.nix.store_path import STORE_DIR, nix32_encode, parse_store_path

# Parsed derivations kept; the largest of nixpkgs are some hundred kilobytes.
KEPT_DERIVATIONS: Final = 4096
DOWNLOADS: Final = 16
_MAX_DRV_BYTES: Final = 64 << 20


class MissingDerivationError(Exception):
    """A `.drv` is neither in this machine's store nor in the cache, or is damaged there.

    Attributes:
        path: its store path.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class Derivations:
    """The derivations that this worker has read."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Derivation] = OrderedDict()
        self._room = asyncio.Semaphore(DOWNLOADS)

    def local(self, path: str) -> Derivation | None:
        """A derivation that needs no network: kept, or in this machine's store; else None."""
        kept = self._kept.get(path)
        if kept is not None:
            self._kept.move_to_end(path)
            return kept
        try:
            text = Path(path).read_bytes()
        except OSError:
            return None
        try:
            return self.keep(path, read_derivation(path, text))
        except InvalidDerivationError:
            return None

    def keep(self, path: str, derivation: Derivation) -> Derivation:
        """Remember a derivation that was read and checked."""
        self._kept[path] = derivation
        if len(self._kept) > KEPT_DERIVATIONS:
            self._kept.popitem(last=False)
        return derivation

    async def get(self, path: str, cache: CacheClient) -> Derivation:
        """A derivation from memory, this machine's store or the cache.

        Raises:
            MissingDerivationError: it is nowhere, or damaged in the cache.
            CacheError: the cache is away or refuses.
        """
        async with self._room:
            found = self.local(path)
            return found if found is not None else await self._download(path, cache)

    async def _download(self, path: str, cache: CacheClient) -> Derivation:
        try:
            narinfo = await cache.narinfo(path)
            if narinfo is None:
                raise MissingDerivationError(path, f"{path} is not in the cache")
            if narinfo.info.nar_size > _MAX_DRV_BYTES:
                raise CorruptNarError(path, f"{path} has {narinfo.info.nar_size} bytes")
            packed = await cache.download(narinfo)
            if packed is None:
                raise MissingDerivationError(path, f"the cache has lost the NAR of {path}")
            try:
                archive = b"".join([piece async for piece in packed.unpacked(narinfo)])
            finally:
                packed.close()
            return self.keep(path, read_derivation(path, nar.read_file_nar(archive)))
        except (CorruptNarError, ValueError) as error:
            raise MissingDerivationError(path, f"{path} in the cache is damaged: {error}") from None


def read_derivation(path: str, text: bytes) -> Derivation:
    """Parse the text of a `.drv` and check that it is the one of that path.

    Raises:
        InvalidDerivationError: it is no derivation, or another one.
    """
    derivation = parse_derivation(text)
    actual = text_path(parse_store_path(path).name, text, references_of(derivation))
    if actual != path:
        raise InvalidDerivationError(
            f"the text that should be {path} has the path {actual}: it was changed"
        )
    return derivation


def references_of(derivation: Derivation) -> frozenset[str]:
    """What the `.drv` file itself refers to: its input derivations and sources."""
    return derivation.input_srcs | frozenset(derivation.input_drvs)


def input_paths(derivation: Derivation, inputs: dict[str, Derivation]) -> frozenset[str]:
    """The paths that a build of it needs: sources, and the outputs it uses of its inputs.

    Parameters:
        inputs: the derivations that `derivation.input_drvs` names.

    Raises:
        InvalidDerivationError: it uses an output that its input does not have.
    """
    paths = set(derivation.input_srcs)
    for path, names in derivation.input_drvs.items():
        outputs = inputs[path].outputs
        for name in names:
            if name not in outputs or not outputs[name].path:
                raise InvalidDerivationError(f"{path} has no output {name} with a known path")
            paths.add(outputs[name].path)
    return frozenset(paths)


def drv_archive(path: str, text: bytes, references: frozenset[str]) -> tuple[PathInfo, bytes]:
    """A `.drv` file as it goes into a cache: what the path is, and its NAR."""
    archive = nar.write_file_nar(text)
    info = PathInfo(
        path=path,
        nar_hash=f"sha256:{nix32_encode(hashlib.sha256(archive).digest())}",
        nar_size=len(archive),
        references=references,
        ca=f"text:sha256:{nix32_encode(hashlib.sha256(text).digest())}",
    )
    return info, archive


def text_path(name: str, text: bytes, references: frozenset[str]) -> str:
    """The store path of a text file that refers to these paths, as Nix works it out."""
    kind = ":".join(["text", *sorted(references)])
    inner = hashlib.sha256(text).hexdigest()
    whole = hashlib.sha256(f"{kind}:sha256:{inner}:{STORE_DIR}:{name}".encode()).digest()
    folded = bytearray(20)
    for index, byte in enumerate(whole):
        folded[index % 20] ^= byte
    return f"{STORE_DIR}/{nix32_encode(bytes(folded))}-{name}"
