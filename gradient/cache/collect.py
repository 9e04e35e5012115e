"""Collecting NAR objects that no path has."""

from __future__ import annotations

from gradient.cache.database import Database
from gradient.cache.narinfo import nar_file_name, parse_nar_file_name
from gradient.cache.objects import ObjectStore

_BATCH = 1000


async def collect_objects(database: Database, store: ObjectStore) -> int:
    """Delete what is older than the setting object_grace and belongs to no path.

    Rows first, then their objects; then whatever lies in the store without a row, because a
    server died at the wrong moment. Returns how many objects were deleted. Raises
    DatabaseAwayError or StoreUnavailableError; what is left is found by the next run.
    """
    deleted = 0
    while forgotten := await database.collect_objects(_BATCH):
        for file_hash, compression in forgotten:
            deleted += await _delete(
                database, store, file_hash, f"nar/{nar_file_name(file_hash, compression)}"
            )
    grace = await database.object_grace()
    async for keys in store.older_than("nar", grace):
        named = {}
        for key in keys:
            parsed = parse_nar_file_name(key.removeprefix("nar/"))
            if parsed is not None:
                named[parsed[0]] = key
        for file_hash in await database.unrecorded_objects(list(named)):
            deleted += await _delete(database, store, file_hash, named[file_hash])
    return deleted + await store.delete_staged("nar", grace)


async def _delete(database: Database, store: ObjectStore, file_hash: str, key: str) -> int:
    async with database.orphan_object(file_hash) as orphan:
        if orphan:
            await store.delete(key)
    return int(orphan)
