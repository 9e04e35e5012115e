"""Evaluation: from attribute patterns to `.drv` paths in the local store.

    async for batch in evaluate(settings, source, "packages.x86_64-linux.*", limits):
        ...                       # batch.attrs, batch.errors, batch.warnings

Attributes are visited by a child process in batches. The child announces each attribute before it
looks at it and reports each result at once, so when it dies (a throw, a type error, endless
recursion, too much memory) its last words belong to the attribute announced last: that one gets
the error, and a new child goes on with the rest. Nothing that was evaluated is lost or repeated.

The child talks through `builtins.trace`, with a word in front that the flake cannot know. It
evaluates purely, `FlakeSource.flake_ref` only.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from worker.nix import processes
from worker.nix.errors import NixError
from worker.nix.flake import FlakeSource
from worker.nix.patterns import ROOTS, AttrPath, Pattern, Segment, attr_name, parse_patterns
from worker.nix.settings import TRACE_HINT, NixSettings

BATCH_ATTRS: Final = 256
_BATCH_BYTES: Final = 64 << 10
_LINE_BYTES: Final = 64 << 20
_ERROR_BYTES: Final = 16 << 10
_POLL_SECONDS: Final = 0.25
_OOM_SCORE: Final = 600
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BUILT = re.compile(r"building '(/nix/store/[^']+\.drv)'")
_PROGRESS = re.compile(
    r"(building|copying|downloading|unpacking|fetching|querying|these \d+|  /nix/)"
)

# Takes {flake_ref, word, items: [{path, expand, toplevel}]}. A step into something that is no set
# of attributes, or that lacks the name, is "missing"; everything else that fails ends the process.
_PROGRAM: Final = r"""
  let
    input = builtins.fromJSON INPUT;
    flake = builtins.getFlake input.flake_ref;
    say = value: builtins.trace (input.word + builtins.toJSON value);
    lookup = value: path:
      if path == [ ] then { found = true; inherit value; }
      else if builtins.isAttrs value && builtins.hasAttr (builtins.head path) value
      then lookup (builtins.getAttr (builtins.head path) value) (builtins.tail path)
      else { found = false; };
    isDerivation = value: builtins.isAttrs value && (value.type or null) == "derivation";
    describe = item:
      let
        at = lookup (flake.outputs or flake) item.path;
        system = lookup at.value [ "config" "system" "build" "toplevel" ];
      in
      if !at.found then { missing = true; }
      else if item.expand == "names"
      then {
        names =
          if builtins.isAttrs at.value && !isDerivation at.value
          then builtins.attrNames at.value
          else [ ];
      }
      else if isDerivation at.value
      then { drv = builtins.unsafeDiscardStringContext at.value.drvPath; }
      else if item.toplevel && system.found && isDerivation system.value
      then { toplevel = builtins.unsafeDiscardStringContext system.value.drvPath; }
      else if item.expand == "deeper" && builtins.isAttrs at.value
      then { names = builtins.attrNames at.value; }
      else { type = builtins.typeOf at.value; };
    visit = index: item:
      say { begin = index; }
        (let result = describe item; in
         builtins.deepSeq result (say { inherit index result; } null));
    step = index: item: builtins.seq (visit index item) (index + 1);
  in
  builtins.foldl' step 0 input.items
"""


class EvaluationError(NixError):
    """The evaluation as a whole failed."""


class NothingMatchedError(EvaluationError):
    """No derivation came out; the text says why, with the errors that were found."""


class EvaluationTimeoutError(EvaluationError):
    """The evaluation did not end within its time limit."""


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Limits of one evaluation.

    Attributes:
        seconds: for the whole; None for none.
        memory_bytes: resident memory of the evaluating process; None for no limit.
        allow_import_from_derivation: whether evaluating may build.
    """

    seconds: float | None = None
    memory_bytes: int | None = None
    allow_import_from_derivation: bool = False


@dataclass(frozen=True, slots=True)
class EvaluatedAttr:
    """An attribute and its derivation; `ifd` are the `.drv`s built while evaluating it."""

    attr: str
    drv_path: str
    ifd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttrError:
    """An attribute (or an explicit pattern) that gave no derivation, and Nix's message."""

    attr: str
    message: str


@dataclass
class EvaluationBatch:
    """What one child process found, in the order in which it found it."""

    attrs: list[EvaluatedAttr] = field(default_factory=list)
    errors: list[AttrError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.attrs or self.errors or self.warnings)


async def evaluate(
    settings: NixSettings,
    source: FlakeSource,
    patterns: str,
    limits: EvaluationLimits | None = None,
) -> AsyncIterator[EvaluationBatch]:
    """Evaluate the attributes that the patterns select; their `.drv`s are in the store then.

    An attribute that fails does not stop the others. Each derivation comes once a name, each
    warning once. The `.drv`s are not protected from garbage collection once their batch is out:
    lock them with `ServeProcess.valid_paths`.

    Parameters:
        patterns: see `worker.nix.patterns`.

    Raises:
        InvalidPatternError: before anything is evaluated.
        NothingMatchedError: at the end, when no derivation was found. The batches have told the
            errors already; the text repeats the first.
        EvaluationTimeoutError: the limit passed.
        EvaluationError: the flake cannot be evaluated at all.
    """
    parsed = parse_patterns(patterns)
    limits = limits or EvaluationLimits()
    deadline = None
    if limits.seconds is not None:
        deadline = asyncio.get_running_loop().time() + limits.seconds
    run = _Run(settings, source, limits, deadline, parsed.excluded)
    for pattern in parsed.selected:
        run.add_pattern(pattern)
    found = False
    first_error: AttrError | None = None
    told: set[str] = set()
    while run.queue:
        batch = await run.next_batch()
        batch.warnings = [w for w in dict.fromkeys(batch.warnings) if w not in told]
        told.update(batch.warnings)
        found = found or bool(batch.attrs)
        if batch.errors and first_error is None:
            first_error = batch.errors[0]
        if batch:
            yield batch
    if not found:
        raise NothingMatchedError(
            f"no derivation matches {patterns!r}"
            + (f"; {first_error.attr}: {first_error.message}" if first_error else "")
        )


@dataclass(frozen=True, slots=True)
class _Item:
    """An attribute to visit, and what to do with what stands there.

    Attributes:
        rest: the pattern's segments still to be taken, once `path` turned out to exist.
        deeper: whether a value that is no derivation is opened one level.
        pattern: the explicit pattern that a miss is reported for; None below a wildcard.
    """

    path: AttrPath
    rest: tuple[Segment, ...] = ()
    deeper: bool = False
    pattern: Pattern | None = None

    @property
    def lists_names(self) -> bool:
        return bool(self.rest)

    def as_input(self) -> dict[str, Any]:
        expand = "names" if self.lists_names else "deeper" if self.deeper else "no"
        toplevel = len(self.path) == 2 and self.path[0] == "nixosConfigurations"
        return {"path": self.path, "expand": expand, "toplevel": toplevel}


class _Run:
    """One evaluation: a queue of attributes, worked off by one child after another."""

    def __init__(
        self,
        settings: NixSettings,
        source: FlakeSource,
        limits: EvaluationLimits,
        deadline: float | None,
        excluded: frozenset[AttrPath],
    ) -> None:
        self.settings = settings
        self.source = source
        self.limits = limits
        self.deadline = deadline
        self.excluded = excluded
        self.queue: collections.deque[_Item] = collections.deque()
        self.seen: set[tuple[AttrPath, tuple[Segment, ...], bool]] = set()
        self.emitted: set[str] = set()

    def add_pattern(self, pattern: Pattern) -> None:
        first = pattern.segments[0]
        if first.name is None:
            for root in ROOTS:
                self.add((root,), pattern.segments[1:], first.deeper, None)
        else:
            explicit = pattern if pattern.explicit else None
            self.add((first.name,), pattern.segments[1:], False, explicit)

    def add(
        self,
        path: AttrPath,
        rest: tuple[Segment, ...],
        deeper: bool,
        pattern: Pattern | None,
    ) -> None:
        """Queue an attribute; names that the pattern gives are taken without asking."""
        while rest and rest[0].name is not None:
            path, rest = (*path, rest[0].name), rest[1:]
        key = (path, rest, deeper)
        if path not in self.excluded and key not in self.seen:
            self.seen.add(key)
            self.queue.append(_Item(path, rest, deeper, pattern))

    async def next_batch(self) -> EvaluationBatch:
        items = self._take()
        batch = EvaluationBatch()
        done = await _child(self, items, batch)
        # What the child did not come to goes first, to keep the order.
        self.queue.extendleft(reversed(items[done:]))
        return batch

    def _take(self) -> list[_Item]:
        items: list[_Item] = []
        size = 0
        while self.queue and len(items) < BATCH_ATTRS and size < _BATCH_BYTES:
            item = self.queue.popleft()
            text = json.dumps(item.as_input())
            size += len(text) + text.count('"') + text.count("\\")
            items.append(item)
        return items

    def take_result(
        self, item: _Item, result: dict[str, Any], ifd: Iterable[str], batch: EvaluationBatch
    ) -> None:
        path = item.path
        if drv := result.get("toplevel"):
            path = (*path, "config", "system", "build", "toplevel")
        else:
            drv = result.get("drv")
        if drv is not None:
            name = attr_name(path)
            if name not in self.emitted:
                self.emitted.add(name)
                batch.attrs.append(EvaluatedAttr(name, drv, tuple(ifd)))
        elif "names" in result:
            # A name list was asked for by a wildcard segment, or by the level below a last `*`.
            segment, rest = (item.rest[0], item.rest[1:]) if item.rest else (Segment(None), ())
            for name in result["names"]:
                self.add((*path, name), rest, segment.deeper, None)
        elif item.pattern is not None:
            message = (
                "the pattern matches nothing: the flake has no such attribute"
                if result.get("missing")
                else f"the pattern names no derivation but a {result['type']}"
            )
            batch.errors.append(AttrError(item.pattern.text, message))


async def _child(run: _Run, items: list[_Item], batch: EvaluationBatch) -> int:
    """Visit the items in a new process; returns how many need not be visited again."""
    word = f"gradient-{secrets.token_hex(16)} "
    payload = json.dumps(
        {
            "flake_ref": run.source.flake_ref,
            "word": word,
            "items": [item.as_input() for item in items],
        }
    )
    layer = {
        "allow-import-from-derivation": (
            "true" if run.limits.allow_import_from_derivation else "false"
        ),
        "max-jobs": "1",
    }
    process = await processes.start(
        [
            "nix",
            "eval",
            "--json",
            "--expr",
            _PROGRAM.replace("INPUT", _nix_string(payload)),
        ],
        env=run.settings.environment(layer),
        limit=_LINE_BYTES,
        stdout=asyncio.subprocess.DEVNULL,
    )
    with contextlib.suppress(OSError):
        # Rather this process than the worker when the machine runs out of memory.
        _set_oom_score(process.pid)
    listener = _Listener(run, items, word, batch)
    guard = asyncio.create_task(_guard_memory(process.pid, run.limits.memory_bytes))
    listening = asyncio.create_task(listener.listen(process))
    over_memory = False
    try:
        async with asyncio.timeout_at(run.deadline):
            await asyncio.wait((guard, listening), return_when=asyncio.FIRST_COMPLETED)
            over_memory = guard.done()
            if over_memory:
                await processes.stop(process)
            await listening
            returncode = await process.wait()
    except TimeoutError:
        raise EvaluationTimeoutError(
            f"the evaluation did not end within {run.limits.seconds:g} s"
            + (f" (at {listener.current_name})" if listener.current is not None else "")
        ) from None
    finally:
        guard.cancel()
        listening.cancel()
        await processes.stop(process)
    if listener.finished == len(items):
        return listener.finished
    if listener.current is None:
        if over_memory:
            raise EvaluationError(f"the flake needs more than {_mib(run)} MiB to be evaluated")
        raise EvaluationError(listener.last_words(returncode))
    if over_memory and listener.finished:
        # The memory may be what the earlier ones left behind; this one gets a fresh process.
        return listener.finished
    message = (
        f"evaluating it needs more than {_mib(run)} MiB of memory"
        if over_memory
        else listener.last_words(returncode)
    )
    batch.errors.append(AttrError(listener.current_name, message))
    return listener.finished + 1


class _Listener:
    """Reads what a child says: results, warnings, what it builds, and how it dies."""

    def __init__(self, run: _Run, items: list[_Item], word: str, batch: EvaluationBatch) -> None:
        self.run = run
        self.items = items
        self.prefix = f"trace: {word}"
        self.batch = batch
        self.finished = 0
        self.current: _Item | None = None
        self.ifd: list[str] = []
        self.tail: collections.deque[str] = collections.deque(maxlen=200)

    @property
    def current_name(self) -> str:
        return attr_name(self.current.path) if self.current else ""

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while raw := await process.stderr.readline():
            line = _COLOUR.sub("", raw.decode("utf-8", "replace")).rstrip("\n")
            if line.startswith(self.prefix):
                self.take(json.loads(line.removeprefix(self.prefix)))
            elif built := _BUILT.match(line):
                self.ifd.append(built[1])
            elif line.startswith(("warning: ", "trace: warning: ", "evaluation warning: ")):
                self.batch.warnings.append(line.removeprefix("trace: ").partition(": ")[2])
            elif not line.startswith("trace: ") and not _PROGRESS.match(line):
                self.tail.append(line)

    def take(self, said: dict[str, Any]) -> None:
        if "begin" in said:
            self.current = self.items[said["begin"]]
            self.ifd = []
            self.tail.clear()
        else:
            item = self.items[said["index"]]
            self.finished = said["index"] + 1
            self.current = None
            self.run.take_result(item, said["result"], self.ifd, self.batch)

    def last_words(self, returncode: int) -> str:
        text = "\n".join(self.tail).strip()[:_ERROR_BYTES]
        text = text.removesuffix(TRACE_HINT).removeprefix("error:").strip()
        if returncode > 128:
            text = f"the evaluator was ended by signal {returncode - 128}\n{text}".strip()
        return text or f"the evaluator ended with exit code {returncode}"


async def _guard_memory(pid: int, limit: int | None) -> None:
    """Return when a process and what it started hold more than the limit; else run on."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        if limit is not None and processes.resident_bytes(pid) > limit:
            return


def _set_oom_score(pid: int) -> None:
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(_OOM_SCORE))


def _mib(run: _Run) -> int:
    return (run.limits.memory_bytes or 0) >> 20


def _nix_string(text: str) -> str:
    """A Nix string literal; JSON in it needs a quote's and an interpolation's escape only."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${") + '"'
