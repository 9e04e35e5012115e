"""The object store: NARs and logs, in a local folder or an S3-compatible bucket.

Everything is written under a temporary name or as a multipart upload, and appears complete or
not at all. A bucket should have a lifecycle rule that ends incomplete multipart uploads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

if TYPE_CHECKING:
    from obstore import AsyncWritableFile
    from obstore.store import S3Config

CHUNK_BYTES: Final = 512 * 1024
_LOCAL_PART_BYTES: Final = 1024 * 1024
# Buckets take parts of at least 5 MiB and at most 10,000 of them.
_BUCKET_PART_BYTES: Final = 8 * 1024 * 1024
_STAGED: Final = re.compile(r".+#\d+")


class StoreUnavailableError(Exception):
    """The object store does not answer or cannot write; the caller tries again later."""


class ObjectMissingError(Exception):
    """There is no such object."""


@contextmanager
def _mapped(action: str, key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ObjectMissingError(f"the object store has no {key}") from None
    except (BaseError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise StoreUnavailableError(f"the object store cannot {action} {key}: {reason}") from error


def _bucket(url: str, options: dict[str, str]) -> S3Store:
    unencrypted = options.get("endpoint", "").startswith("http://")
    try:
        return S3Store.from_url(
            url,
            config=cast("S3Config", options),
            client_options={"allow_http": True} if unencrypted else None,
        )
    except BaseException as error:
        # obstore panics, outside of the Exception hierarchy, over an option it does not know.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"object store {url} with options {', '.join(options) or 'none'}: {reason}"
            ) from None
        raise


class ObjectWriter:
    """One object being written; it appears when `ObjectStore.writing` ends without an error."""

    def __init__(self, file: AsyncWritableFile, key: str) -> None:
        self._file: AsyncWritableFile | None = file
        self._key = key

    async def write(self, data: bytes) -> None:
        """Append. Raises StoreUnavailableError."""
        assert self._file is not None
        with _mapped("write", self._key):
            await self._file.write(data)

    async def _complete(self) -> None:
        assert self._file is not None
        with _mapped("write", self._key):
            await self._file.close()
        self._file = None

    def _abandon(self) -> None:
        # A writer that goes away unclosed takes with it what it has written.
        self._file = None


class ObjectStore:
    """The store at a URL: `file:///folder`, or `s3://bucket/prefix` with options.

    Parameters:
        url: where; a local folder is made when it is missing.
        options: as obstore takes them for S3 (endpoint, region, access_key_id, …).

    Raises ValueError for a URL that it does not understand, StoreUnavailableError for a folder
    that cannot be made.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.folder: Path | None = None
        parts = urlsplit(url)
        self._store: LocalStore | S3Store
        if parts.scheme == "file":
            self.folder = Path(unquote(parts.path))
            with _mapped("make the folder", url):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._store = LocalStore(self.folder)
        elif parts.scheme == "s3":
            self._store = _bucket(url, dict(options or {}))
        else:
            raise ValueError(f"object store {url!r}: use file:///folder or s3://bucket/prefix")

    @asynccontextmanager
    async def writing(self, key: str) -> AsyncIterator[ObjectWriter]:
        """Write one object in pieces; after an error, or when cancelled, nothing of it is left."""
        local = self.folder is not None
        file = obstore.open_writer_async(
            self._store,
            key,
            buffer_size=_LOCAL_PART_BYTES if local else _BUCKET_PART_BYTES,
            max_concurrency=2,
        )
        writer = ObjectWriter(file, key)
        del file
        try:
            yield writer
        except BaseException:
            writer._abandon()
            raise
        await writer._complete()
        await self._sync(key)

    async def put(self, key: str, data: bytes) -> None:
        """Write a small object at once. Raises StoreUnavailableError."""
        with _mapped("write", key):
            await obstore.put_async(self._store, key, data)

    async def get(self, key: str) -> bytes:
        """A small object. Raises ObjectMissingError or StoreUnavailableError."""
        with _mapped("read", key):
            found = await obstore.get_async(self._store, key)
            return bytes(await found.bytes_async())

    async def stream(self, key: str) -> tuple[int, AsyncIterator[bytes]]:
        """The size in bytes and the content of an object, in pieces of about CHUNK_BYTES."""
        with _mapped("read", key):
            found = await obstore.get_async(self._store, key)

        async def pieces() -> AsyncIterator[bytes]:
            with _mapped("read", key):
                async for piece in found.stream(min_chunk_size=CHUNK_BYTES):
                    yield bytes(piece)

        return int(found.meta["size"]), pieces()

    async def size(self, key: str) -> int | None:
        """The size of an object in bytes; None when there is none. Raises StoreUnavailableError."""
        try:
            with _mapped("look at", key):
                return int((await obstore.head_async(self._store, key))["size"])
        except ObjectMissingError:
            return None

    async def delete(self, key: str) -> None:
        """Delete an object; no error when there is none. Raises StoreUnavailableError."""
        with contextlib.suppress(ObjectMissingError), _mapped("delete", key):
            await obstore.delete_async(self._store, key)

    async def older_than(self, prefix: str, seconds: float) -> AsyncIterator[list[str]]:
        """The keys below `prefix` whose objects are older than `seconds`, a page at a time."""
        before = time.time() - seconds
        with _mapped("list", prefix):
            async for page in obstore.list(self._store, prefix, chunk_size=1000):
                keys = [m["path"] for m in page if m["last_modified"].timestamp() < before]
                if keys:
                    yield keys

    async def delete_staged(self, prefix: str, seconds: float) -> int:
        """Delete what writers that were killed left in a local folder; returns how many files."""
        if self.folder is None:
            return 0
        return await asyncio.to_thread(self._delete_staged, self.folder / prefix, seconds)

    @staticmethod
    def _delete_staged(folder: Path, seconds: float) -> int:
        before = time.time() - seconds
        found = 0
        for root, _, files in os.walk(folder):
            for name in files:
                path = Path(root) / name
                with contextlib.suppress(FileNotFoundError):
                    if _STAGED.fullmatch(name) and path.stat().st_mtime < before:
                        path.unlink()
                        found += 1
        return found

    async def _sync(self, key: str) -> None:
        """Make a local file last through a power cut, before a row says that it is there."""
        if self.folder is not None:
            path = self.folder / key
            with _mapped("write", key):
                await asyncio.to_thread(_sync_file, path)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"


def _sync_file(path: Path) -> None:
    for target in (path, path.parent):
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def log_key(attempt: int, chunk_index: int) -> str:
    """Where a piece of a build's log lies: `log/<attempt>/<n>.zst`."""
    return f"log/{attempt}/{chunk_index}.zst"


async def put_log(store: ObjectStore, attempt: int, chunk_index: int, data: bytes) -> None:
    """Store a piece of log, compressed by the caller. Raises StoreUnavailableError."""
    await store.put(log_key(attempt, chunk_index), data)


async def get_log(store: ObjectStore, attempt: int, chunk_index: int) -> bytes:
    """A stored piece of log, as it was put. Raises ObjectMissingError, StoreUnavailableError."""
    return await store.get(log_key(attempt, chunk_index))
