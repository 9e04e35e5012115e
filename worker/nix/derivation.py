"""Derivations: reading and writing the ATerm text of a `.drv` file.

The format is one term,

    Derive([outputs],[input derivations],[input sources],system,builder,[arguments],[environment])

with strings in double quotes and the escapes `\\" \\\\ \\n \\r \\t`. It has no whitespace.
Arguments and environment are bytes: Nix puts no encoding on them. Store paths, output names and
hashes are text.

The parser is strict, since a `.drv` may come from a cache: every path is checked, nothing may
follow the term, no name stands twice. Nix's own reader is the reference that the tests compare to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from worker.nix.store_path import (
    InvalidStorePathError,
    check_store_name,
    parse_store_path,
    text_path,
)


class InvalidDerivationError(ValueError):
    """A `.drv` that cannot be read; the text names the offset and what stood there."""


class UnsupportedDerivationError(ValueError):
    """A derivation that is well formed but whose output paths are not known before it is built."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a derivation.

    Attributes:
        path: its store path; empty when Nix knows it only after the build.
        hash_algo: for a fixed output `sha256`, or `r:sha256` when the hash is over the NAR; else
            empty.
        hash: for a fixed output the hash in base 16; else empty.
    """

    path: str
    hash_algo: str = ""
    hash: str = ""


@dataclass(frozen=True)
class Derivation:
    """A derivation as its `.drv` file states it."""

    outputs: Mapping[str, Output]
    input_drvs: Mapping[str, frozenset[str]]
    input_srcs: frozenset[str]
    system: str
    builder: bytes
    args: tuple[bytes, ...] = ()
    env: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_fixed_output(self) -> bool:
        """Whether the content of its output is known beforehand, so that it may use the network."""
        return any(output.hash for output in self.outputs.values())

    @property
    def unknown_outputs(self) -> list[str]:
        """Outputs whose path is known only after a build (floating content-addressed, dynamic)."""
        return sorted(name for name, output in self.outputs.items() if not output.path)

    def require_known_outputs(self, attr: str) -> None:
        """Refuse a derivation that cannot be scheduled before its output paths are known.

        Parameters:
            attr: what to call the derivation in the message: its attribute or its `.drv` path.

        Raises:
            UnsupportedDerivationError: an output has no path.
        """
        if self.unknown_outputs:
            raise UnsupportedDerivationError(
                f"{attr}: the path of output {', '.join(self.unknown_outputs)} is known only after "
                "the build (a floating content-addressed or dynamic derivation); "
                "such derivations are not supported"
            )

    @cached_property
    def structured_attrs(self) -> dict[str, Any] | None:
        """The attributes of a derivation with `__structuredAttrs`, else None."""
        text = self.env.get(b"__json")
        if text is None:
            return None
        try:
            attrs = json.loads(text)
        except ValueError:
            return None
        return attrs if isinstance(attrs, dict) else None

    @property
    def name(self) -> str:
        """The name it was given, empty where it has none."""
        return self._text("name") or ""

    @property
    def pname(self) -> str | None:
        """The package name without version, where it says."""
        return self._text("pname")

    @property
    def required_features(self) -> frozenset[str]:
        """System features a machine must have to build it (`requiredSystemFeatures`)."""
        if self.structured_attrs is not None:
            listed = self.structured_attrs.get("requiredSystemFeatures")
            if isinstance(listed, str):
                listed = listed.split()
            if not isinstance(listed, list):
                return frozenset()
            return frozenset(feature for feature in listed if isinstance(feature, str))
        return frozenset((self._text("requiredSystemFeatures") or "").split())

    @property
    def prefer_local_build(self) -> bool:
        """Whether building is cheaper than moving the inputs (`preferLocalBuild`)."""
        return self._flag("preferLocalBuild", default=False)

    @property
    def allow_substitutes(self) -> bool:
        """Whether a cache may be asked for its outputs (`allowSubstitutes`)."""
        return self._flag("allowSubstitutes", default=True)

    @property
    def timeout(self) -> int | None:
        """Seconds the build may take in total (`timeout`), None where it does not say."""
        return self._seconds("timeout")

    @property
    def max_silent(self) -> int | None:
        """Seconds the build may be without output (`maxSilent`), None where it does not say."""
        return self._seconds("maxSilent")

    def _text(self, name: str) -> str | None:
        if self.structured_attrs is not None:
            value = self.structured_attrs.get(name)
            return value if isinstance(value, str) else None
        raw = self.env.get(name.encode())
        return None if raw is None else raw.decode("utf-8", "replace")

    def _flag(self, name: str, *, default: bool) -> bool:
        if self.structured_attrs is not None:
            value = self.structured_attrs.get(name, default)
            return value if isinstance(value, bool) else default
        raw = self.env.get(name.encode())
        return default if raw is None else raw == b"1"

    def _seconds(self, name: str) -> int | None:
        if self.structured_attrs is not None:
            value = self.structured_attrs.get(name)
            number = value if isinstance(value, int) and not isinstance(value, bool) else None
        else:
            raw = self.env.get(name.encode(), b"")
            number = int(raw) if raw.isdigit() and len(raw) <= 10 else None
        return number if number is not None and number >= 0 else None


def parse_derivation(data: bytes) -> Derivation:
    """Read the text of a `.drv` file.

    Parameters:
        data: the whole file.

    Raises:
        InvalidDerivationError: it is not exactly one well-formed derivation.
    """
    return _Parser(data).derivation()


def read_derivation(path: str, data: bytes) -> Derivation:
    """Read a `.drv` that came from elsewhere and prove that it is the one that `path` names.

    A `.drv`'s store path is a hash of its text, so a damaged or exchanged one is found.

    Parameters:
        path: the full store path.

    Raises:
        InvalidDerivationError: it is malformed, or another derivation.
    """
    derivation = parse_derivation(data)
    name = parse_store_path(path).name
    if text_path(name, data, {*derivation.input_drvs, *derivation.input_srcs}) != path:
        raise InvalidDerivationError(f"{path}: the content is not what its path names")
    return derivation


def write_derivation(derivation: Derivation) -> bytes:
    """Write a derivation as Nix would: names sorted, without whitespace."""
    outputs = (
        b"(%s)" % b",".join(map(_quote_text, (name, output.path, output.hash_algo, output.hash)))
        for name, output in sorted(derivation.outputs.items())
    )
    input_drvs = (
        b"(%s,%s)" % (_quote_text(path), _list(map(_quote_text, sorted(names))))
        for path, names in sorted(derivation.input_drvs.items())
    )
    env = (
        b"(%s,%s)" % (_quote(name), _quote(value)) for name, value in sorted(derivation.env.items())
    )
    return b"Derive(%s)" % b",".join(
        (
            _list(outputs),
            _list(input_drvs),
            _list(map(_quote_text, sorted(derivation.input_srcs))),
            _quote_text(derivation.system),
            _quote(derivation.builder),
            _list(map(_quote, derivation.args)),
            _list(env),
        )
    )


_ESCAPES = {ord("n"): b"\n", ord("r"): b"\r", ord("t"): b"\t"}
_QUOTED = {b"\\": b"\\\\", b'"': b'\\"', b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}


def _quote(value: bytes) -> bytes:
    for plain, escaped in _QUOTED.items():
        value = value.replace(plain, escaped)
    return b'"%s"' % value


def _quote_text(value: str) -> bytes:
    return _quote(value.encode())


def _list(items: Iterable[bytes]) -> bytes:
    return b"[%s]" % b",".join(items)


class _Parser:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def derivation(self) -> Derivation:
        if self.data.startswith(b"DrvWithVersion("):
            raise InvalidDerivationError(
                "this is a dynamic derivation (DrvWithVersion), which is not supported"
            )
        self.expect(b"Derive(")
        outputs = self.outputs()
        self.expect(b",")
        input_drvs = self.input_drvs()
        self.expect(b",")
        input_srcs = self.input_srcs()
        self.expect(b",")
        system = self.text()
        self.expect(b",")
        builder = self.string()
        self.expect(b",")
        args = tuple(self.string() for _ in self.items())
        self.expect(b",")
        env = self.env()
        self.expect(b")")
        if self.offset != len(self.data):
            raise self.error("the derivation ends here, but more follows")
        return Derivation(outputs, input_drvs, input_srcs, system, builder, args, env)

    def outputs(self) -> dict[str, Output]:
        outputs: dict[str, Output] = {}
        for _ in self.items():
            start = self.offset
            self.expect(b"(")
            name = self.text()
            self.expect(b",")
            path = self.text()
            self.expect(b",")
            algorithm = self.text()
            self.expect(b",")
            digest = self.text()
            self.expect(b")")
            if name in outputs:
                raise self.error(f"output {name!r} stands twice", start)
            self.check_name(name, start)
            if path:
                self.check_path(path, start)
            outputs[name] = Output(path, algorithm, digest)
        if not outputs:
            raise self.error("the derivation has no outputs")
        return outputs

    def input_drvs(self) -> dict[str, frozenset[str]]:
        inputs: dict[str, frozenset[str]] = {}
        for _ in self.items():
            start = self.offset
            self.expect(b"(")
            path = self.text()
            self.expect(b",")
            names = frozenset(self.text() for _ in self.items())
            self.expect(b")")
            self.check_path(path, start)
            if not path.endswith(".drv"):
                raise self.error(f"the input {path!r} is not a .drv", start)
            if path in inputs:
                raise self.error(f"the input {path!r} stands twice", start)
            for name in names:
                self.check_name(name, start)
            inputs[path] = names
        return inputs

    def input_srcs(self) -> frozenset[str]:
        sources: set[str] = set()
        for _ in self.items():
            start = self.offset
            path = self.text()
            self.check_path(path, start)
            sources.add(path)
        return frozenset(sources)

    def env(self) -> dict[bytes, bytes]:
        env: dict[bytes, bytes] = {}
        for _ in self.items():
            start = self.offset
            self.expect(b"(")
            name = self.string()
            self.expect(b",")
            value = self.string()
            self.expect(b")")
            if name in env:
                raise self.error(f"the variable {name!r} stands twice", start)
            env[name] = value
        return env

    def items(self) -> Iterable[None]:
        """Step through a bracketed list; the caller reads one item at each step."""
        self.expect(b"[")
        if self.accept(b"]"):
            return
        while True:
            yield None
            if self.accept(b"]"):
                return
            self.expect(b",")

    def text(self) -> str:
        start = self.offset
        try:
            return self.string().decode("ascii")
        except UnicodeDecodeError:
            raise self.error("a path, a name or a system is not ASCII", start) from None

    def string(self) -> bytes:
        self.expect(b'"')
        data = self.data
        start = self.offset
        pieces: list[bytes] = []
        while True:
            quote = data.find(b'"', start)
            if quote < 0:
                raise self.error("a string that does not end")
            escape = data.find(b"\\", start, quote)
            if escape < 0:
                pieces.append(data[start:quote])
                self.offset = quote + 1
                return b"".join(pieces)
            if escape + 1 >= len(data):
                raise self.error("a string that does not end")
            escaped = data[escape + 1]
            pieces.append(data[start:escape])
            pieces.append(_ESCAPES.get(escaped) or data[escape + 1 : escape + 2])
            start = escape + 2

    def accept(self, token: bytes) -> bool:
        if self.data.startswith(token, self.offset):
            self.offset += len(token)
            return True
        return False

    def expect(self, token: bytes) -> None:
        if not self.accept(token):
            found = self.data[self.offset : self.offset + 20]
            raise self.error(
                f"expected {token.decode()!r}, found "
                + (repr(found.decode("utf-8", "replace")) if found else "the end")
            )

    def check_path(self, path: str, start: int) -> None:
        try:
            parse_store_path(path)
        except InvalidStorePathError as error:
            raise self.error(str(error), start) from None

    def check_name(self, name: str, start: int) -> None:
        try:
            check_store_name(name)
        except InvalidStorePathError:
            raise self.error(f"{name!r} is not an output name", start) from None

    def error(self, text: str, offset: int | None = None) -> InvalidDerivationError:
        return InvalidDerivationError(
            f"at byte {self.offset if offset is None else offset}: {text}"
        )
