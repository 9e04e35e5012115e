"""The object store as the commands see it: reading logs, and proving that it can be written."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Iterator

from gradient.cache.objects import ObjectMissingError, ObjectStore, StoreUnavailableError, get_log
from gradient.cli.failures import CANNOT_RUN, Failure
from gradient.cli.findings import Finding, fail, ok
from gradient.config import Config

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def open_store(config: Config) -> ObjectStore:
    """The object store of the configuration; raises Failure when it cannot be used."""
    try:
        return ObjectStore(config.object_store_url, config.object_store.options)
    except (ValueError, StoreUnavailableError) as error:
        raise Failure(
            str(error),
            hint="check object_store.url; 'gradient doctor' tries to write there",
            exit_code=CANNOT_RUN,
        ) from error


async def log_chunk(store: ObjectStore, attempt: int, chunk_index: int) -> bytes:
    """One piece of an attempt's log, as the builder wrote it; raises Failure."""
    try:
        return zstd.decompress(await get_log(store, attempt, chunk_index))
    except ObjectMissingError as error:
        raise Failure(
            f"a piece of the log of attempt {attempt} is missing: {error}",
            hint="this command must use the object store of the servers (object_store.url)",
        ) from error
    except StoreUnavailableError as error:
        raise Failure(str(error), exit_code=CANNOT_RUN) from error
    except zstd.ZstdError as error:
        raise Failure(f"piece {chunk_index} of the log of attempt {attempt}: {error}") from error


def probe_object_store(config: Config) -> Iterator[Finding]:
    """Whether an object can be written, read back and deleted."""
    store = open_store(config)
    problem = asyncio.run(_write_and_read(store))
    if problem is None:
        yield ok("object store", f"{config.object_store_url} can be written and read")
    else:
        yield fail("object store", problem, "check object_store.url and its access rights")


async def _write_and_read(store: ObjectStore) -> str | None:
    key, data = f"doctor/{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        await store.put(key, data)
        try:
            read = await store.get(key)
        finally:
            await store.delete(key)
    except (StoreUnavailableError, ObjectMissingError) as error:
        return str(error)
    return None if read == data else f"{store.url} gave back other bytes than were written"
