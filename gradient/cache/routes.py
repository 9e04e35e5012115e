"""The HTTP routes: Nix's binary cache protocol for caches and for jobs.

`/cache/<name>/…` is for users, with a cache's token as basic password or bearer;
`/jobs/<assignment>/cache/…` is for the worker of an assignment, with its upload token. Both read
and write the same way; who may see and write what is decided in SQL.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import structlog
from psycopg.errors import TransactionRollback
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gradient.cache import narinfo
from gradient.cache.context import CacheContext
from gradient.cache.database import CacheAccess, DatabaseAwayError, JobAccess, StoredNar
from gradient.cache.ingest import Ingest, Measured, max_file_size
from gradient.cache.nar import TooLargeError
from gradient.cache.narinfo import NarInfo
from gradient.cache.objects import CHUNK_BYTES, ObjectMissingError, StoreUnavailableError
from gradient.cache.signing import keys_that_signed, sign
from gradient.cache.store_path import (
    STORE_DIR,
    MalformedError,
    base_name,
    is_content_addressed,
    is_hash_part,
    parse_sha256,
)
from gradient.errors import (
    BadSettingError,
    ConflictError,
    GradientError,
    MalformedContentError,
    NotAllowedError,
    NotFoundError,
    OverLimitError,
    StaleAssignmentError,
)
from gradient.graph.writer import GraphTimeoutError, WriterClosedError
from gradient.secrets import SecretError

MAX_NARINFO_BYTES: Final = 4 * 1024 * 1024
# A client that is gone must not keep the place of one that is there.
IDLE_SECONDS = 60.0
_JOB_PRIORITY: Final = 30
_STATUS: Final[dict[type[GradientError], int]] = {
    MalformedContentError: 400,
    NotAllowedError: 403,
    StaleAssignmentError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    OverLimitError: 413,
    BadSettingError: 500,
}

# Nobody's fault: the client keeps what it has and tries again.
_AWAY: Final = (
    DatabaseAwayError,
    StoreUnavailableError,
    GraphTimeoutError,
    WriterClosedError,
    # A conflict that outlived the writer's attempts.
    TransactionRollback,
)

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")
Handler = Callable[[CacheContext, Request], Awaitable[Response]]


class _RefusedError(Exception):
    """An answer other than success: its status and its text for people."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(f"{text}\n", status, headers)


def cache_routes(context: CacheContext) -> list[Route]:
    """The routes of every cache and of every job's cache, to be mounted at the root."""

    def route(path: str, handler: Handler, *methods: str) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(handler, context, request)

        # Starlette adds HEAD to GET by itself.
        return Route(path, endpoint, methods=list(methods))

    routes = []
    for prefix in ("/cache/{cache}", "/jobs/{assignment:int}/cache"):
        routes += [
            route(f"{prefix}/nix-cache-info", _cache_info, "GET"),
            route(f"{prefix}/{{hash}}.narinfo", _get_narinfo, "GET"),
            route(f"{prefix}/{{hash}}.narinfo", _put_narinfo, "PUT"),
            route(f"{prefix}/nar/{{file}}", _get_nar, "GET"),
            route(f"{prefix}/nar/{{file}}", _put_nar, "PUT"),
        ]
    return routes


async def _answer(handler: Handler, context: CacheContext, request: Request) -> Response:
    """Run a handler; the one place where failures become statuses."""
    try:
        return await handler(context, request)
    except _RefusedError as refusal:
        return refusal.response
    except MalformedError as error:
        return PlainTextResponse(f"{error}\n", 400)
    except TooLargeError as error:
        return PlainTextResponse(f"{error}\n", 413)
    except GradientError as error:
        return PlainTextResponse(f"{error}\n", _STATUS.get(type(error), 409))
    except ObjectMissingError as error:
        _log.error("object_missing", path=request.url.path, error=str(error))
        return PlainTextResponse(f"{error}\n", 404)
    except _AWAY as error:
        _log.warning("cache_unavailable", path=request.url.path, error=str(error))
        return PlainTextResponse(f"{error}; try again later\n", 503, {"Retry-After": "5"})
    except ClientDisconnect:
        return PlainTextResponse("the upload was cut off; nothing is kept\n", 400)


# Who asks ---------------------------------------------------------------------------------------


class _View(Protocol):
    """One side of the cache: what a request that passed the door may read and write."""

    max_nar_size: int
    priority: int

    async def narinfo(self, hash_part: str) -> str | None: ...
    async def nar(self, file_hash: str) -> StoredNar | None: ...
    async def commit(self, info: NarInfo, measured: Measured) -> None: ...


def _token(request: Request) -> str | None:
    """The token of a request: bearer, or the password of basic authentication."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            return None
        return decoded.partition(":")[2] or None
    return None


def _unauthorized(text: str, realm: str) -> _RefusedError:
    return _RefusedError(401, text, {"WWW-Authenticate": f'Basic realm="{realm}"'})


async def _open(context: CacheContext, request: Request, *, to_write: bool) -> _View:
    """Let a request in, or refuse it."""
    token = _token(request)
    if token is not None and "\0" in token:
        token = None
    if "assignment" in request.path_params:
        return await _open_job(context, request.path_params["assignment"], token)
    name = request.path_params["cache"]
    access = None
    if "\0" not in name:
        access = await context.database.cache_access(name, token)
    if access is None:
        raise _RefusedError(404, f"there is no cache {name!r}")
    if to_write and not access.writable:
        if token is None or not access.readable or access.public:
            raise _unauthorized(
                f"writing to cache {name!r} needs a token that may write, as a basic password "
                "(netrc) or bearer",
                name,
            )
        raise _RefusedError(403, f"this token may read cache {name!r}, but not write to it")
    if not access.readable:
        raise _unauthorized(
            f"cache {name!r} is private: it needs one of its tokens, as a basic password (netrc) "
            "or bearer",
            name,
        )
    return _CacheView(context, name, access)


async def _open_job(context: CacheContext, assignment: int, token: str | None) -> _View:
    if token is None:
        raise _RefusedError(
            401,
            f"assignment {assignment} needs its token",
            {"WWW-Authenticate": f'Bearer realm="job {assignment}"'},
        )
    access = None
    if 0 < assignment < 2**63:
        access = await context.database.job_access(assignment, token)
    if access is None:
        raise _RefusedError(
            403, f"assignment {assignment} is closed, or this is not its token (GR003)"
        )
    return _JobView(context, assignment, access)


class _CacheView:
    """A cache as its users see it."""

    def __init__(self, context: CacheContext, name: str, access: CacheAccess) -> None:
        self.context = context
        self.name = name
        self.access = access
        self.max_nar_size = access.max_nar_size
        self.priority = access.priority

    async def narinfo(self, hash_part: str) -> str | None:
        path = await self.context.database.narinfo(self.name, hash_part)
        if path is None:
            return None
        signature = path["signature"]
        if signature is None:
            signature = self._sign(path)
            await self.context.database.store_signature(
                self.name, hash_part, path["nar_hash"], signature
            )
        return narinfo.format_narinfo(path, [signature])

    def _sign(self, path: dict[str, Any]) -> str:
        try:
            key = self.context.secrets.decrypt(
                bytes(self.access.private_key_encrypted), f"cache:{self.name}"
            )
        except SecretError as error:
            _log.error("cannot_sign", cache=self.name, error=str(error))
            raise _RefusedError(500, f"cache {self.name!r} cannot sign: {error}") from None
        message = narinfo.fingerprint(
            path["path"], path["nar_hash"], path["nar_size"], path["references"]
        )
        return sign(self.access.key_name, key, message)

    async def nar(self, file_hash: str) -> StoredNar | None:
        return await self.context.database.stored_nar(self.name, file_hash)

    async def commit(self, info: NarInfo, measured: Measured) -> None:
        """A push stays in this cache, unless its content or a trusted key speaks for it."""
        nar = _nar(info, measured)
        if nar["ca_verified"] or await self._is_trusted(info):
            await self.context.commit_nar(
                {**nar, "assignment": None, "caches": [self.access.cache]}
            )
        else:
            await self.context.database.push_path(self.access.cache, nar)

    async def _is_trusted(self, info: NarInfo) -> bool:
        if not info.signatures:
            return False
        database = self.context.database
        message = narinfo.fingerprint(info.path, info.nar_hash, info.nar_size, info.references)
        signed = keys_that_signed(
            await database.trusted_keys(self.access.cache), info.signatures, message
        )
        if not signed:
            return False
        hash_part = base_name(info.path)[:32]
        return await database.push_is_trusted(self.access.cache, hash_part, signed)


class _JobView:
    """Every backed path, and what one assignment may add to them."""

    priority = _JOB_PRIORITY

    def __init__(self, context: CacheContext, assignment: int, access: JobAccess) -> None:
        self.context = context
        self.assignment = assignment
        self.max_nar_size = access.max_nar_size

    async def narinfo(self, hash_part: str) -> str | None:
        path = await self.context.database.job_narinfo(hash_part)
        return None if path is None else narinfo.format_narinfo(path)

    async def nar(self, file_hash: str) -> StoredNar | None:
        return await self.context.database.job_nar(file_hash)

    async def commit(self, info: NarInfo, measured: Measured) -> None:
        await self.context.commit_nar(
            {**_nar(info, measured), "assignment": self.assignment, "caches": None}
        )


def _nar(info: NarInfo, measured: Measured) -> dict[str, Any]:
    """A path as `graph.commit_nars` and `graph.push_path` take it: measured, not claimed."""
    content = measured.content_hash
    return {
        "path": info.path,
        "file_hash": measured.file_hash,
        "file_size": measured.file_size,
        "nar_hash": measured.nar_hash,
        "nar_size": measured.nar_size,
        "compression": measured.compression,
        "references": list(info.references),
        "deriver": info.deriver,
        "ca": info.ca,
        "ca_verified": is_content_addressed(
            info.path,
            info.ca,
            info.references,
            parse_sha256(measured.nar_hash),
            None if content is None else parse_sha256(content),
        ),
    }


# Reading ----------------------------------------------------------------------------------------


async def _cache_info(context: CacheContext, request: Request) -> Response:
    view = await _open(context, request, to_write=False)
    text = f"StoreDir: {STORE_DIR}\nWantMassQuery: 1\nPriority: {view.priority}\n"
    return Response(text, headers={"Content-Type": "text/x-nix-cache-info"})


async def _get_narinfo(context: CacheContext, request: Request) -> Response:
    view = await _open(context, request, to_write=False)
    hash_part = request.path_params["hash"]
    text = await view.narinfo(hash_part) if is_hash_part(hash_part) else None
    if text is None:
        raise _RefusedError(404, f"no path {hash_part} is served here")
    return Response(text, headers={"Content-Type": "text/x-nix-narinfo"})


async def _get_nar(context: CacheContext, request: Request) -> Response:
    view = await _open(context, request, to_write=False)
    file = request.path_params["file"]
    named = narinfo.parse_nar_file_name(file)
    stored = None if named is None else await view.nar(named[0])
    if named is None or stored is None or stored.compression != named[1]:
        raise _RefusedError(404, f"no NAR {file} is served here")
    media_type = "application/x-nix-nar"
    if request.method == "HEAD":
        if await context.store.size(f"nar/{file}") is None:
            raise ObjectMissingError(f"the object store has no nar/{file}")
        headers = {"Content-Length": str(stored.file_size)}
        return Response(headers=headers, media_type=media_type)
    size, pieces = await context.store.stream(f"nar/{file}")
    return StreamingResponse(pieces, headers={"Content-Length": str(size)}, media_type=media_type)


# Writing ----------------------------------------------------------------------------------------


async def _put_nar(context: CacheContext, request: Request) -> Response:
    view = await _open(context, request, to_write=True)
    file = request.path_params["file"]
    named = narinfo.parse_nar_file_name(file)
    if named is None:
        raise _RefusedError(
            400, f"{file[:200]!r} is not <file hash in base 32>.nar, with .xz, .zst, .bz2 or .gz"
        )
    file_hash, compression = named
    announced = request.headers.get("content-length", "")
    largest = max_file_size(view.max_nar_size)
    if announced.isdigit() and int(announced) > largest:
        raise TooLargeError(
            f"the file has {announced} bytes; a NAR may have {view.max_nar_size} here"
        )
    async with context.uploads:
        ingest = Ingest(compression, file_hash, view.max_nar_size)
        measured = await _receive(context, request, f"nar/{file}", ingest)
    await context.database.nar_uploaded(measured)
    if await context.store.size(f"nar/{file}") != measured.file_size:
        # The collector forgot an older copy of it just now, and deleted what we wrote.
        raise StoreUnavailableError(f"nar/{file} was collected while it was written")
    return PlainTextResponse("stored\n", 201)


async def _receive(context: CacheContext, request: Request, key: str, ingest: Ingest) -> Measured:
    """Take the body into the store while it is measured; after any failure nothing is left."""
    async with context.store.writing(key) as writer:
        block = bytearray()
        async for piece in _pieces(request):
            block += piece
            if len(block) >= CHUNK_BYTES:
                data = bytes(block)
                block.clear()
                await _in_thread(context, ingest.feed, data)
                await writer.write(data)
        rest = bytes(block)

        def end() -> Measured:
            if rest:
                ingest.feed(rest)
            return ingest.finish()

        measured = await _in_thread(context, end)
        if rest:
            await writer.write(rest)
    return measured


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes; a client that sends nothing for long is given up."""
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise _RefusedError(
                408, f"nothing was sent for {IDLE_SECONDS:g} seconds; nothing is kept"
            ) from None
        yield piece


async def _in_thread(context: CacheContext, work: Callable[..., _T], *arguments: Any) -> _T:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(context.threads, work, *arguments)


async def _put_narinfo(context: CacheContext, request: Request) -> Response:
    view = await _open(context, request, to_write=True)
    info = narinfo.parse(await _narinfo_text(request))
    hash_part = request.path_params["hash"]
    if base_name(info.path)[:32] != hash_part:
        raise _RefusedError(400, f"StorePath: {info.path} does not belong to {hash_part}.narinfo")
    measured = await context.database.nar_object(info.file_hash)
    name = narinfo.nar_file_name(info.file_hash, info.compression)
    if measured is None:
        raise _RefusedError(400, f"URL: nar/{name} was not uploaded; PUT it before its narinfo")
    for field, stated, actual in (
        ("Compression", info.compression, measured.compression),
        ("FileSize", info.file_size, measured.file_size),
        ("NarHash", info.nar_hash, measured.nar_hash),
        ("NarSize", info.nar_size, measured.nar_size),
    ):
        if stated is not None and stated != actual:
            raise _RefusedError(400, f"{field}: the narinfo says {stated}, nar/{name} has {actual}")
    if measured.nar_size > view.max_nar_size:
        raise TooLargeError(
            f"{info.path} has a NAR of {measured.nar_size} bytes; {view.max_nar_size} are allowed"
        )
    await view.commit(info, measured)
    return PlainTextResponse("committed\n", 201)


async def _narinfo_text(request: Request) -> str:
    body = bytearray()
    async for piece in _pieces(request):
        body += piece
        if len(body) > MAX_NARINFO_BYTES:
            raise TooLargeError(f"a narinfo has at most {MAX_NARINFO_BYTES} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise MalformedError("the narinfo is not UTF-8 text") from None
    if "\0" in text:
        raise MalformedError("the narinfo holds a NUL byte")
    return text
