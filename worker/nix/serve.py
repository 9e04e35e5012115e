"""The serve protocol: one long-lived `nix-store --serve --write`.

It is what Nix's own remote builders speak. Words are 64 bits, little endian; a string is its
length, its bytes and zeros up to a multiple of eight; a list is a count and its items. Commands
are answered in order, one at a time.

A `ServeProcess` belongs to one user at a time. After a `StoreFaultError` it is dead: the process
was stopped, and a new one must be started. The same holds after a cancelled call, since the answer
would be read by the next one.

The process remembers what is valid, both ways. `valid_paths(lock=True)` asks the store itself and
keeps the paths from being collected while the process lives; `path_infos` may answer from memory,
so nothing is inferred from a path that it does not name.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import json
import os
import re
import struct
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from worker.nix import processes
from worker.nix.derivation import Derivation, Output
from worker.nix.errors import StoreFaultError
from worker.nix.settings import NixSettings
from worker.nix.store_path import decode_hash, normalise_hash

_CLIENT_MAGIC: Final = 0x390C9DEB
_SERVER_MAGIC: Final = 0x5452EECB
_OUR_VERSION: Final = 0x207
_OLDEST_VERSION: Final = 0x206
_MAX_STRING: Final = 64 << 20
_MAX_COUNT: Final = 1 << 22
_CHUNK: Final = 1 << 18
_WORD: Final = struct.Struct("<Q")
_ANSWER_SECONDS: Final = 120.0

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

LogSink = Callable[[bytes], None]


class _Command(enum.IntEnum):
    QUERY_VALID_PATHS = 1
    QUERY_PATH_INFOS = 2
    DUMP_PATH = 3
    QUERY_CLOSURE = 7
    BUILD_DERIVATION = 8
    ADD_TO_STORE_NAR = 9


class BuildStatus(enum.IntEnum):
    """How Nix says that a build ended. What it means for us: `worker.nix.classify`."""

    BUILT = 0
    SUBSTITUTED = 1
    ALREADY_VALID = 2
    PERMANENT_FAILURE = 3
    INPUT_REJECTED = 4
    OUTPUT_REJECTED = 5
    TRANSIENT_FAILURE = 6
    CACHED_FAILURE = 7
    TIMED_OUT = 8
    MISC_FAILURE = 9
    DEPENDENCY_FAILED = 10
    LOG_LIMIT_EXCEEDED = 11
    NOT_DETERMINISTIC = 12
    RESOLVES_TO_ALREADY_VALID = 13
    NO_SUBSTITUTERS = 14


@dataclass(frozen=True, slots=True)
class PathInfo:
    """What a store knows about one of its paths.

    Attributes:
        nar_hash: `sha256:<base 32>`.
        nar_size: bytes.
        deriver: the `.drv` path or None.
        ca: content address, such as `fixed:r:sha256:…` or `text:sha256:…`; None without one.
    """

    path: str
    nar_hash: str
    nar_size: int
    references: frozenset[str] = frozenset()
    deriver: str | None = None
    ca: str | None = None
    signatures: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A derivation to build without its `.drv` in the store.

    Attributes:
        drv_path: the `.drv` path, as a name only.
        inputs: the sources, and of each input derivation the outputs that are used. Their closure
            must be in the store.
        timeout, max_silent: seconds, 0 for none. Through a daemon the first request's values hold
            for the whole process, so these are a second net; `worker.nix.building` keeps the clock.
        max_log_size: bytes, 0 for no limit.
    """

    drv_path: str
    outputs: Mapping[str, Output]
    inputs: frozenset[str]
    system: str
    builder: bytes
    args: tuple[bytes, ...]
    env: Mapping[bytes, bytes]
    timeout: int = 0
    max_silent: int = 0
    max_log_size: int = 0

    @classmethod
    def of(
        cls,
        drv_path: str,
        derivation: Derivation,
        inputs: Iterable[str],
        *,
        timeout: int = 0,
        max_silent: int = 0,
        max_log_size: int = 0,
    ) -> BuildRequest:
        """The request for a parsed derivation; `inputs` as for the attribute."""
        derivation.require_known_outputs(drv_path)
        return cls(
            drv_path=drv_path,
            outputs=derivation.outputs,
            inputs=frozenset(inputs),
            system=derivation.system,
            builder=derivation.builder,
            args=derivation.args,
            env=derivation.env,
            timeout=timeout,
            max_silent=max_silent,
            max_log_size=max_log_size,
        )


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Nix's answer to a build.

    Attributes:
        message: without colour codes; empty on success.
        times_built: how often a builder ran; 0 with a failure means that Nix refused.
        started, stopped: seconds since the epoch, 0 when no builder ran.
        built_outputs: output name to path, where Nix says (content-addressed outputs).
    """

    status: BuildStatus
    message: str = ""
    times_built: int = 0
    is_non_deterministic: bool = False
    started: int = 0
    stopped: int = 0
    built_outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether the outputs are in the store."""
        return self.status in (
            BuildStatus.BUILT,
            BuildStatus.SUBSTITUTED,
            BuildStatus.ALREADY_VALID,
            BuildStatus.RESOLVES_TO_ALREADY_VALID,
        )


class ServeProcess:
    """One `nix-store --serve --write`. Start it with `ServeProcess.start`, end it with `close`.

    Attributes:
        version: of the protocol as agreed, such as 0x207 for 2.7.
        command_pid: the process of `nix-store` itself; builders are its children.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, version: int, stderr: _StandardError
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._stderr = stderr
        self._lock = asyncio.Lock()
        self._broken = False
        self.command_pid = 0
        self.version = version

    @classmethod
    async def start(cls, settings: NixSettings) -> ServeProcess:
        """Start the process and shake hands.

        Raises:
            StoreFaultError: it does not start, or speaks another protocol; the text holds what
                it said.
        """
        read_end, write_end = os.pipe()
        try:
            process = await processes.start(
                ["nix-store", "--serve", "--write"],
                env=settings.build_environment(),
                stdin=asyncio.subprocess.PIPE,
                stderr=write_end,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        serve = cls(process, 0, _StandardError(read_end))
        try:
            async with serve._exchange("shake hands", _ANSWER_SECONDS):
                serve._send(_word(_CLIENT_MAGIC), _word(_OUR_VERSION))
                await serve._flush()
                magic = await serve._read_word()
                if magic != _SERVER_MAGIC:
                    raise StoreFaultError(f"nix-store answered {magic:#x} instead of its greeting")
                serve.version = min(_OUR_VERSION, await serve._read_word())
                if serve.version < _OLDEST_VERSION:
                    raise StoreFaultError("this Nix speaks a serve protocol older than 2.6")
                (serve.command_pid,) = processes.children(process.pid)
        except BaseException:
            await serve.close()
            raise
        return serve

    @property
    def alive(self) -> bool:
        """Whether a further command can be sent, as far as is known."""
        return not self._broken and self._process.returncode is None

    @property
    def supervisor_pid(self) -> int:
        """The process below which everything that this one starts can be found."""
        return self._process.pid

    def has_builder(self) -> bool:
        """Whether a builder was started: it is a child of the process, a zombie when it has ended
        but left something behind that Nix waits for. Through a daemon there never is one here.
        """
        return bool(processes.children(self.command_pid))

    def kill_leftovers(self) -> None:
        """Kill what a finished build left running: daemons in sessions of their own.

        What the killed ones leave in turn becomes the supervisor's child and is found again.
        """
        spared = {self.command_pid}
        while left := set(processes.children(self._process.pid)) - spared:
            spared |= left
            for pid in left:
                processes.kill(pid)

    async def close(self) -> None:
        """Stop the process, a running build included, and wait until nothing of it is left."""
        self._broken = True
        self._input.close()
        try:
            await processes.stop(self._process)
        finally:
            self._stderr.close()

    # -- commands ------------------------------------------------------------------------------

    async def valid_paths(
        self, paths: Iterable[str], *, lock: bool = True, substitute: bool = False
    ) -> set[str]:
        """Which of these paths the store has.

        Parameters:
            lock: also protect them from garbage collection while this process lives.
            substitute: let Nix fetch missing ones from its configured substituters first.
        """
        async with self._exchange("query valid paths", None if substitute else _ANSWER_SECONDS):
            self._send(
                _word(_Command.QUERY_VALID_PATHS),
                _word(lock),
                _word(substitute),
                _strings(paths),
            )
            await self._flush()
            return set(await self._read_strings())

    async def path_infos(self, paths: Iterable[str]) -> dict[str, PathInfo]:
        """What the store knows about the paths that it names; see the module on what it leaves out.

        Paths that were added by another process after this one answered for them may be missing:
        ask `valid_paths` first.
        """
        infos: dict[str, PathInfo] = {}
        async with self._exchange("query path infos", _ANSWER_SECONDS):
            self._send(_word(_Command.QUERY_PATH_INFOS), _strings(paths))
            await self._flush()
            while path := await self._read_text():
                deriver = await self._read_text()
                references = frozenset(await self._read_strings())
                await self._read_word()  # the download size, always 0
                nar_size = await self._read_word()
                nar_hash = await self._read_text()
                ca = await self._read_text()
                signatures = frozenset(await self._read_strings())
                infos[path] = PathInfo(
                    path=path,
                    nar_hash=normalise_hash(nar_hash),
                    nar_size=nar_size,
                    references=references,
                    deriver=deriver or None,
                    ca=ca or None,
                    signatures=signatures,
                )
        return infos

    async def closure(self, paths: Iterable[str], *, include_outputs: bool = False) -> set[str]:
        """The paths and everything they refer to, at any depth.

        Parameters:
            include_outputs: also the outputs of the `.drv` files among them.

        Raises:
            StoreFaultError: one of the paths is not in the store.
        """
        async with self._exchange("query a closure", _ANSWER_SECONDS):
            self._send(_word(_Command.QUERY_CLOSURE), _word(include_outputs), _strings(paths))
            await self._flush()
            return set(await self._read_strings())

    async def dump(self, info: PathInfo) -> AsyncIterator[bytes]:
        """The NAR of a path, in pieces; size and hash are checked against the store's own record.

        The consumer must take every piece or the process is of no further use.

        Raises:
            StoreFaultError: the files on disk are not what the store recorded, or the path is gone.
        """
        digest = hashlib.sha256()
        left = info.nar_size
        async with self._exchange(f"dump {info.path}", None):
            self._send(_word(_Command.DUMP_PATH), _text(info.path))
            await self._flush()
            while left:
                piece = await self._output.read(min(left, _CHUNK))
                if not piece:
                    raise StoreFaultError(f"nix-store ended within the NAR of {info.path}")
                left -= len(piece)
                digest.update(piece)
                yield piece
            if decode_hash(info.nar_hash)[1] != digest.digest():
                raise StoreFaultError(
                    f"{info.path} is damaged: its files are not what the store recorded; "
                    "repair it with `nix-store --verify --check-contents --repair`"
                )

    async def add(self, info: PathInfo, nar: AsyncIterable[bytes]) -> None:
        """Add a path from its NAR. Its references must be in the store.

        Parameters:
            info: what the path is; Nix checks hash and size. Through a daemon an unsigned path
                needs a trusted user.
            nar: the uncompressed NAR, exactly `info.nar_size` bytes.

        Raises:
            StoreFaultError: Nix refused, or the NAR was too short or too long; the text says which.
                An error of `nar` itself is passed on as it is. The process is dead after either.
        """
        async with self._exchange(f"add {info.path} to the store", None):
            self._send(
                _word(_Command.ADD_TO_STORE_NAR),
                _text(info.path),
                _text(info.deriver or ""),
                _text(decode_hash(info.nar_hash)[1].hex()),
                _strings(info.references),
                _word(0),  # registration time: now
                _word(info.nar_size),
                _word(False),  # ultimate: not built here
                _strings(info.signatures),
                _text(info.ca or ""),
            )
            sent = 0
            async for piece in _from_caller(nar):
                sent += len(piece)
                if sent > info.nar_size:
                    raise StoreFaultError(
                        f"the NAR of {info.path} is longer than {info.nar_size} bytes"
                    )
                self._send(piece)
                await self._flush()
            if sent != info.nar_size:
                raise StoreFaultError(
                    f"the NAR of {info.path} has {sent} bytes instead of {info.nar_size}"
                )
            await self._flush()
            if await self._read_word() != 1:
                raise StoreFaultError(f"nix-store did not confirm that it added {info.path}")

    async def build(self, request: BuildRequest, on_log: LogSink) -> BuildResult:
        """Build a derivation and wait for its end, however long it takes.

        Parameters:
            on_log: gets the builder's output as raw bytes, in pieces of any size; every byte has
                been passed on when this returns.

        Raises:
            StoreFaultError: the process died or was closed meanwhile.
        """
        async with self._exchange(f"build {request.drv_path}", None):
            with self._stderr.directed_to(on_log):
                self._send(
                    _word(_Command.BUILD_DERIVATION),
                    _text(request.drv_path),
                    _word(len(request.outputs)),
                    *(
                        _text(field)
                        for name, output in sorted(request.outputs.items())
                        for field in (name, output.path, output.hash_algo, output.hash)
                    ),
                    _strings(request.inputs),
                    _text(request.system),
                    _string(request.builder),
                    _word(len(request.args)),
                    *map(_string, request.args),
                    _word(len(request.env)),
                    *(_string(field) for pair in sorted(request.env.items()) for field in pair),
                    _word(request.max_silent),
                    _word(request.timeout),
                    _word(request.max_log_size),
                    _word(0),  # repeat the build: never
                    _word(0),  # enforce determinism: no
                )
                if self.version >= 0x207:
                    self._send(_word(0))  # keep a failed build's folder: no
                await self._flush()
                number = await self._read_word()
                message = _COLOUR.sub("", await self._read_text("replace")).strip()
                times_built = await self._read_word()
                is_non_deterministic = bool(await self._read_word())
                started = await self._read_word()
                stopped = await self._read_word()
                built_outputs: dict[str, str] = {}
                for _ in range(await self._read_count()):
                    identity = await self._read_text()
                    realisation = json.loads(await self._read_text())
                    built_outputs[identity.rpartition("!")[2]] = (
                        f"/nix/store/{realisation['outPath'].removeprefix('/nix/store/')}"
                    )
                # Everything the builder wrote is in the pipe before the answer.
                self._stderr.drain()
            try:
                status = BuildStatus(number)
            except ValueError:
                raise StoreFaultError(
                    f"nix-store answered with the unknown build status {number}: {message}"
                ) from None
        return BuildResult(
            status=status,
            message=message,
            times_built=times_built,
            is_non_deterministic=is_non_deterministic,
            started=started,
            stopped=stopped,
            built_outputs=built_outputs,
        )

    # -- the stream ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _exchange(self, what: str, seconds: float | None) -> AsyncIterator[None]:
        """Hold the process for one command; anything but its full answer ends the process."""
        async with self._lock:
            if not self.alive:
                raise StoreFaultError(f"cannot {what}: this store process has ended")
            self._stderr.forget()
            try:
                async with asyncio.timeout(seconds):
                    yield
            except _CallerError as error:
                await self._die()
                raise error.original from None
            except (OSError, EOFError, ValueError, TimeoutError, StoreFaultError) as error:
                await self._die()
                said = self._stderr.text()
                reason = (
                    str(error)
                    if isinstance(error, StoreFaultError)
                    else f"no answer within {seconds:g} s"
                    if isinstance(error, TimeoutError) and seconds is not None
                    else "nix-store ended"
                    if isinstance(error, (OSError, EOFError))
                    else f"nix-store broke the protocol: {error}"
                )
                raise StoreFaultError(
                    f"cannot {what}: {reason}{f': {said}' if said else ''}"
                ) from error
            except BaseException:
                await self._die()
                raise

    async def _die(self) -> None:
        self._broken = True
        self._input.close()
        await processes.stop(self._process)
        self._stderr.drain()

    def _send(self, *pieces: bytes) -> None:
        self._input.write(b"".join(pieces))

    async def _flush(self) -> None:
        await self._input.drain()

    async def _read_word(self) -> int:
        value: int = _WORD.unpack(await self._output.readexactly(8))[0]
        return value

    async def _read_count(self) -> int:
        count = await self._read_word()
        if count > _MAX_COUNT:
            raise ValueError(f"a list of {count} items")
        return count

    async def _read_string(self) -> bytes:
        length = await self._read_word()
        if length > _MAX_STRING:
            raise ValueError(f"a string of {length} bytes")
        padded = await self._output.readexactly((length + 7) // 8 * 8)
        return padded[:length]

    async def _read_text(self, errors: str = "strict") -> str:
        return (await self._read_string()).decode("utf-8", errors)

    async def _read_strings(self) -> list[str]:
        return [await self._read_text() for _ in range(await self._read_count())]


class _CallerError(Exception):
    """Carries an error of the caller's NAR source past those of the store."""

    def __init__(self, original: Exception) -> None:
        super().__init__(original)
        self.original = original


async def _from_caller(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    try:
        async for piece in pieces:
            yield piece
    except Exception as error:
        raise _CallerError(error) from error


class _StandardError:
    """The process's standard error: read at all times, else the process would block on it."""

    _KEEP: Final = 16 << 10

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._sink: LogSink | None = None
        self._kept = bytearray()
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read_some)

    @contextlib.contextmanager
    def directed_to(self, sink: LogSink) -> Iterator[None]:
        self._sink = sink
        try:
            yield
        finally:
            self._sink = None

    def forget(self) -> None:
        self._kept.clear()

    def text(self) -> str:
        """The end of what was said since `forget`, for an error message."""
        return _COLOUR.sub("", self._kept.decode("utf-8", "replace")).strip()

    def drain(self) -> None:
        """Pass on everything that is in the pipe now."""
        while self._read_some():
            pass

    def close(self) -> None:
        if self._descriptor is not None:
            self.drain()
        if self._descriptor is not None:
            self._end(self._descriptor)

    def _read_some(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            piece = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            self._end(self._descriptor)
            return False
        self._kept += piece
        del self._kept[: -self._KEEP]
        if self._sink is not None:
            self._sink(piece)
        return True

    def _end(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._descriptor = None


def _word(value: int) -> bytes:
    return _WORD.pack(value)


def _string(value: bytes) -> bytes:
    return _WORD.pack(len(value)) + value + b"\0" * (-len(value) % 8)


def _text(value: str) -> bytes:
    return _string(value.encode())


def _strings(values: Iterable[str]) -> bytes:
    items = sorted(values)
    return _word(len(items)) + b"".join(map(_text, items))
