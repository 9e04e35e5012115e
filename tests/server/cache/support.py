"""A cache server for tests: the real routes in uvicorn, a graph writer, a folder of objects."""

from __future__ import annotations

import asyncio
import hashlib
import lzma
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2 as httpx
import uvicorn
from backports import zstd
from starlette.applications import Starlette

from gradient.cache.context import CacheContext
from gradient.cache.narinfo import nar_file_name
from gradient.cache.objects import ObjectStore
from gradient.cache.routes import cache_routes
from gradient.cache.signing import generate_key_pair
from gradient.cache.store_path import STORE_DIR, encode_base32, format_sha256
from gradient.db.connect import open_pool
from gradient.graph.writer import GraphWriter
from gradient.secrets import Secrets
from tests.support.database import Connection, Database
from tests.support.graph_world import World
from tests.support.waiting import wait_until

Tree = bytes | Mapping[str, "Tree"]


def word(data: bytes) -> bytes:
    """A string of a NAR."""
    return struct.pack("<Q", len(data)) + data + bytes(-len(data) % 8)


def words(*texts: str) -> bytes:
    return b"".join(word(text.encode()) for text in texts)


def make_nar(tree: Tree) -> bytes:
    """The NAR of a file (bytes) or a directory (a mapping of names)."""
    return word(b"nix-archive-1") + _node(tree)


def _node(tree: Tree) -> bytes:
    if isinstance(tree, bytes):
        return words("(", "type", "regular", "contents") + word(tree) + words(")")
    entries = b"".join(
        words("entry", "(", "name", name, "node") + _node(tree[name]) + words(")")
        for name in sorted(tree)
    )
    return words("(", "type", "directory") + entries + words(")")


def compress(nar: bytes, compression: str) -> bytes:
    """A NAR as the file that is uploaded."""
    match compression:
        case "zstd":
            return zstd.compress(nar)
        case "xz":
            return lzma.compress(nar)
        case _:
            return nar


def sha256(data: bytes) -> str:
    return format_sha256(hashlib.sha256(data).digest())


def fixed_path(kind: str, digest: bytes, name: str) -> str:
    """The store path of a fingerprint, worked out apart from the code under test."""
    whole = hashlib.sha256(f"{kind}:sha256:{digest.hex()}:{STORE_DIR}:{name}".encode()).digest()
    folded = bytes(whole[i] ^ (whole[i + 20] if i < 12 else 0) for i in range(20))
    return f"{STORE_DIR}/{encode_base32(folded)}-{name}"


@dataclass
class Upload:
    """A path to push: its NAR and what its narinfo says; the fields may be made to lie."""

    path: str
    nar: bytes
    compression: str = "zstd"
    references: Sequence[str] = ()
    ca: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    signatures: Sequence[str] = ()

    @cached_property
    def file(self) -> bytes:
        return compress(self.nar, self.compression)

    @property
    def file_name(self) -> str:
        return nar_file_name(sha256(self.file), self.compression)

    @property
    def hash_part(self) -> str:
        return self.path.removeprefix(f"{STORE_DIR}/")[:32]

    @property
    def narinfo(self) -> str:
        stated = {
            "StorePath": self.path,
            "URL": f"nar/{self.file_name}",
            "Compression": self.compression,
            "FileHash": sha256(self.file),
            "FileSize": str(len(self.file)),
            "NarHash": sha256(self.nar),
            "NarSize": str(len(self.nar)),
            "References": " ".join(self.references),
        }
        if self.ca is not None:
            stated["CA"] = self.ca
        stated.update(self.fields)
        lines = [f"{key}: {value}" for key, value in stated.items()]
        return "\n".join([*lines, *(f"Sig: {signature}" for signature in self.signatures)]) + "\n"


def source_upload(name: str, tree: Tree, **options: Any) -> Upload:
    """A plain source: content-addressed by its NAR."""
    nar = make_nar(tree)
    digest = hashlib.sha256(nar).digest()
    return Upload(
        path=fixed_path("source", digest, name),
        nar=nar,
        ca=f"fixed:r:{format_sha256(digest)}",
        **options,
    )


def text_upload(name: str, text: bytes, references: Sequence[str] = ()) -> Upload:
    """A file as Nix adds a `.drv`: content-addressed by its text and its references."""
    digest = hashlib.sha256(text).digest()
    kind = ":".join(["text", *(f"{STORE_DIR}/{reference}" for reference in sorted(references))])
    return Upload(
        path=fixed_path(kind, digest, name),
        nar=make_nar(text),
        references=references,
        ca=f"text:{format_sha256(digest)}",
    )


def built_upload(path: str, tree: Tree, **options: Any) -> Upload:
    """A path whose name says nothing about its content, like an ordinary build output."""
    return Upload(path=path, nar=make_nar(tree), **options)


def some_path(name: str) -> str:
    """A store path that nothing produces."""
    digest = hashlib.sha256(name.encode()).digest()[:20]
    return f"{STORE_DIR}/{encode_base32(digest)}-{name}"


@dataclass
class MadeCache:
    """A cache and its tokens."""

    id: int
    name: str
    url: str
    public_key: str
    write_token: str
    read_token: str


class CacheServer:
    """A running server. `client` speaks HTTP to it; `conn` reads and writes the database."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.conn: Connection = database.connect()
        self.objects = folder / "objects"
        self.secrets = Secrets.from_state_dir(folder / "state")
        self.port = 0
        self.client = httpx.Client(timeout=60)
        self._folder = folder
        self.loop: asyncio.AbstractEventLoop | None = None
        self.context: CacheContext | None = None
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[CacheServer]:
        """Serve, in a thread, until the block ends."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)))
            thread.start()
            try:
                wait_until(lambda: self._server and self._server.started, what="the server")
                yield self
            finally:
                assert self._server is not None
                self._server.should_exit = True
                thread.join(timeout=30)
                self.client.close()

    async def _serve(self, listener: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        async with open_pool(self.database.dsn) as pool:
            writer = GraphWriter(self.database.dsn)
            await writer.start()
            store = ObjectStore(self.objects.as_uri())
            self.context = CacheContext(pool, store, writer.commit_nar, self.secrets)
            app = Starlette(routes=cache_routes(self.context))
            config = uvicorn.Config(app, log_level="warning", lifespan="off")
            self._server = uvicorn.Server(config)
            await self._server.serve(sockets=[listener])
            await writer.close()
            self.context.close()

    # The database ---------------------------------------------------------------------------------

    def make_cache(
        self, name: str = "main", *, public: bool = False, max_nar_size: int | None = None
    ) -> MadeCache:
        """A cache with a key of its own, a token that may write and one that may read."""
        public_key, private_key = generate_key_pair(f"{name}-1")
        sealed = self.secrets.encrypt(private_key, f"cache:{name}")
        number = self.value(
            "select gradient.create_cache(%s, %s, %s, %s, %s, null, 40, %s)",
            name,
            f"{name}-1",
            public_key,
            sealed,
            public,
            max_nar_size,
        )
        tokens = []
        for can_write in (True, False):
            token = secrets.token_hex(16)
            self.value(
                "select gradient.create_cache_token(%s, %s, %s, %s)",
                name,
                "writer" if can_write else "reader",
                hashlib.sha256(token.encode()).digest(),
                can_write,
            )
            tokens.append(token)
        url = f"{self.url}/cache/{name}"
        return MadeCache(number, name, url, public_key, tokens[0], tokens[1])

    def value(self, query: Any, *parameters: Any) -> Any:
        """The first column of the first row."""
        row = self.conn.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def everything(self) -> tuple[Any, ...]:
        """All rows that the cache writes, and all objects: to compare before and after."""
        tables = (
            "cached_path",
            "cached_path_signature",
            "pushed_path",
            "nar_object",
            "derivation_output",
            "derivation",
            "derivation_build",
        )
        rows = [
            self.conn.execute(f"select t::text from gradient.{table} t order by t::text").fetchall()
            for table in tables
        ]
        return (*rows, self.object_files())

    def object_files(self) -> list[tuple[str, int]]:
        """Every file below the object store, finished or not, with its size."""
        return sorted(
            (str(path.relative_to(self.objects)), path.stat().st_size)
            for path in self.objects.rglob("*")
            if path.is_file()
        )

    # HTTP -----------------------------------------------------------------------------------------

    def put_nar(self, base: str, token: str | None, upload: Upload) -> httpx.Response:
        return self.client.put(
            f"{base}/nar/{upload.file_name}", content=upload.file, headers=bearer(token)
        )

    def put_narinfo(self, base: str, token: str | None, upload: Upload) -> httpx.Response:
        return self.client.put(
            f"{base}/{upload.hash_part}.narinfo",
            content=upload.narinfo.encode(),
            headers=bearer(token),
        )

    def push(self, base: str, token: str | None, upload: Upload) -> httpx.Response:
        """PUT the NAR, which must succeed, then the narinfo; its answer."""
        stored = self.put_nar(base, token, upload)
        assert stored.status_code == 201, stored.text
        return self.put_narinfo(base, token, upload)

    def get(self, url: str, token: str | None = None) -> httpx.Response:
        return self.client.get(url, headers=bearer(token))

    def head(self, url: str, token: str | None = None) -> httpx.Response:
        return self.client.head(url, headers=bearer(token))


def assign(server: CacheServer, world: World, kind: str) -> dict[str, dict[str, Any]]:
    """Hand out what a worker may run, as the server does; each job's AssignJob by its name."""
    worker = world.worker()
    connection = server.value(
        "select connection from gradient.worker_connection where worker_id = %s", worker
    )
    jobs = [
        job
        for (job,) in server.conn.execute(
            "select scheduler.assign(%s, %s, %s, 1000)", [worker, connection, kind]
        )
    ]
    for job in jobs:
        world.assignments[job["job"]] = job["assignment"]
        world.walker[job["assignment"]] = worker
    return {job["job"]: job for job in jobs}


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def narinfo_fields(text: str) -> dict[str, str]:
    """A narinfo as a dictionary; of several lines of one name the last."""
    parts = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in parts}
