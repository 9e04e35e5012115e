"""The text that a binary cache keeps about a store path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worker.nix.serve import PathInfo
from worker.nix.store_path import (
    STORE_DIR,
    InvalidHashError,
    InvalidStorePathError,
    normalise_hash,
    parse_store_path,
)

_OBJECT = re.compile(r"nar/[0-9a-z]+\.nar(\.[a-z0-9]+)?")


class InvalidNarInfoError(ValueError):
    """A narinfo that cannot be read; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class NarInfo:
    """A path in the cache.

    Attributes:
        info: what the path is.
        url: its compressed NAR, relative to the cache.
        compression: `none`, `xz` or `zstd`.
        file_hash: of the compressed NAR, `sha256:<base 32>`; None where the cache does not say.
        file_size: bytes of the compressed NAR.
    """

    info: PathInfo
    url: str
    compression: str
    file_hash: str | None
    file_size: int | None

    def text(self) -> str:
        """The file that is put into a cache."""
        info = self.info
        lines = [
            f"StorePath: {info.path}",
            f"URL: {self.url}",
            f"Compression: {self.compression}",
            f"FileHash: {self.file_hash}",
            f"FileSize: {self.file_size}",
            f"NarHash: {info.nar_hash}",
            f"NarSize: {info.nar_size}",
            f"References: {' '.join(sorted(map(_base, info.references)))}",
        ]
        if info.deriver:
            lines.append(f"Deriver: {_base(info.deriver)}")
        if info.ca:
            lines.append(f"CA: {info.ca}")
        return "\n".join(lines) + "\n"


def parse_narinfo(text: str, path: str) -> NarInfo:
    """Read what a cache says about a path.

    Raises:
        InvalidNarInfoError: a field is missing or wrong, or the text is about another path.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name] = value.strip()
    try:
        if fields["StorePath"] != path:
            raise InvalidNarInfoError(f"the narinfo of {path} is about {fields['StorePath']}")
        references = frozenset(
            f"{STORE_DIR}/{reference}" for reference in fields.get("References", "").split()
        )
        for reference in references:
            parse_store_path(reference)
        if not _OBJECT.fullmatch(fields["URL"]):
            raise InvalidNarInfoError(f"the narinfo of {path} has the URL {fields['URL']!r}")
        deriver = fields.get("Deriver")
        file_size = fields.get("FileSize")
        return NarInfo(
            info=PathInfo(
                path=path,
                nar_hash=normalise_hash(fields["NarHash"]),
                nar_size=int(fields["NarSize"]),
                references=references,
                deriver=f"{STORE_DIR}/{deriver}"
                if deriver not in (None, "unknown-deriver")
                else None,
                ca=fields.get("CA") or None,
            ),
            url=fields["URL"],
            compression=fields.get("Compression") or "bzip2",
            file_hash=normalise_hash(fields["FileHash"]) if "FileHash" in fields else None,
            file_size=int(file_size) if file_size is not None else None,
        )
    except KeyError as error:
        raise InvalidNarInfoError(f"the narinfo of {path} has no field {error.args[0]}") from None
    except (InvalidHashError, InvalidStorePathError, ValueError) as error:
        raise InvalidNarInfoError(f"the narinfo of {path} cannot be read: {error}") from None


def _base(path: str) -> str:
    return path.removeprefix(f"{STORE_DIR}/")
