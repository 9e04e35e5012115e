"""The `.drv` reader, held to Nix's own `show-derivation` for many shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.nix.support import PRELUDE, Nix
from worker.nix.derivation import (
    Derivation,
    InvalidDerivationError,
    Output,
    UnsupportedDerivationError,
    parse_derivation,
    read_derivation,
    write_derivation,
)

HASH = "0123456789abcdfghijklmnpqrsvwxyz"
OUT = f"/nix/store/{HASH}-x"
SIMPLE = Derivation(
    outputs={"out": Output(OUT)},
    input_drvs={f"/nix/store/{HASH}-y.drv": frozenset({"out", "dev"})},
    input_srcs=frozenset({f"/nix/store/{HASH}-src"}),
    system="x86_64-linux",
    builder=b"/bin/sh",
    args=(b"-c", b'echo "\\n" > $out'),
    env={b"out": OUT.encode(), b"name": b"x"},
)

SHAPES = {
    "plain": 'sh "plain" "true" { }',
    "several outputs": 'sh "several" "true" { outputs = [ "out" "dev" "man" ]; }',
    "first output is not out": 'sh "lib-first" "true" { outputs = [ "lib" "bin" ]; }',
    "fixed, flat": 'sh "fixed-flat" "true" fixed',
    "fixed, recursive": """
        sh "fixed-r" "true" { outputHashMode = "recursive"; outputHashAlgo = "sha1";
          outputHash = "0000000000000000000000000000000000000000"; }""",
    "fixed, SRI": """
        sh "fixed-sri" "true" {
          outputHash = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="; }""",
    "inputs by one output each": """
        let two = sh "two" "true" { outputs = [ "out" "dev" ]; };
        in sh "user" "echo ${two.dev}" { both = "${two.out} ${two.dev}"; }""",
    "one output of an input": """
        let two = sh "two" "true" { outputs = [ "out" "dev" ]; }; in sh "user" "echo ${two.dev}" { }
    """,
    "a source": 'sh "with-source" "true" { src = builtins.toFile "source.txt" "text"; }',
    "a .drv as a source": """
        let inner = sh "inner" "true" { }; in sh "outer" "true" { drv = inner.drvPath; }""",
    "structured attributes": """
        sh "structured" "true" { __structuredAttrs = true; outputs = [ "out" "dev" ];
          list = [ 1 "two" null true ]; nested.value = "é\\"\\\\";
          requiredSystemFeatures = [ "kvm" ]; }""",
    "passAsFile": """sh "pass" "true" { passAsFile = [ "text" ]; text = "long text"; }""",
    "exportReferencesGraph": """
        let dep = sh "dep" "true" { };
        in sh "graph" "true" { exportReferencesGraph = [ "graph" dep ]; }""",
    "strings that need escapes": r"""
        sh "weird" "printf '%s\n' \"a\\b\"" { tabs = "a\tb"; lines = "a\nb\n"; returns = "a\rb";
          quotes = "\"'`"; slashes = "\\ \\n"; dollar = "\${x} $"; unicode = "äöü€𝄞"; empty = "";
          control = builtins.fromJSON "\"\\u0001\\u007f\""; }""",
    "odd variable names": r"""
        sh "names" "true" { "with space" = "1"; "with\"quote" = "2"; "with\\slash" = "3"; }""",
    "no arguments": """
        derivation { name = "no-args"; system = "x86_64-linux"; builder = "/bin/true"; }""",
    "another system": """
        derivation { name = "other"; system = "riscv64-linux"; builder = "builtin:fetchurl"; }""",
    "numbers, lists and booleans": """
        sh "types" "true" { n = 1; l = [ "a" "b" ]; t = true; f = false; }""",
}


@pytest.mark.nix
@pytest.mark.parametrize("expression", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_reads_as_nix_shows_it_and_writes_back_as_it_was(
    nix: Nix, expression: str
) -> None:
    drv = nix.run("nix-instantiate", "-E", PRELUDE + expression).stdout.strip().partition("!")[0]
    data = Path(drv).read_bytes()
    shown = json.loads(nix.run("nix", "show-derivation", drv).stdout)[drv]
    derivation = read_derivation(drv, data)
    assert as_shown(derivation) == shown
    assert write_derivation(derivation) == data


def as_shown(derivation: Derivation) -> dict[str, Any]:
    """The JSON that Nix 2.8 prints for a derivation."""
    return {
        "outputs": {
            name: {
                "path": output.path,
                **({"hashAlgo": output.hash_algo, "hash": output.hash} if output.hash else {}),
            }
            for name, output in derivation.outputs.items()
        },
        "inputDrvs": {path: sorted(names) for path, names in derivation.input_drvs.items()},
        "inputSrcs": sorted(derivation.input_srcs),
        "system": derivation.system,
        "builder": derivation.builder.decode(),
        "args": [argument.decode() for argument in derivation.args],
        "env": {name.decode(): value.decode() for name, value in derivation.env.items()},
    }


@pytest.mark.nix
def test_a_variable_that_is_not_utf_8_is_kept_byte_by_byte(nix: Nix, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x80")
    expression = f'sh "bytes" "true" {{ raw = builtins.readFile {tmp_path}/bytes; }}'
    drv = nix.run("nix-instantiate", "-E", PRELUDE + expression).stdout.strip().partition("!")[0]
    derivation = read_derivation(drv, Path(drv).read_bytes())
    assert derivation.env[b"raw"] == b"\xff\xfe\x80"


@pytest.mark.nix
def test_a_drv_with_other_content_than_its_path_names_is_refused(nix: Nix) -> None:
    built = nix.derivation('sh "original" "true" { }')
    forged = Path(built.path).read_bytes().replace(b'"true"', b'"evil"')
    with pytest.raises(InvalidDerivationError, match="not what its path names"):
        read_derivation(built.path, forged)


@pytest.mark.nix
def test_a_floating_output_is_refused_with_the_attribute_named(nix: Nix) -> None:
    expression = (
        PRELUDE
        + """
        sh "floating" "true" { __contentAddressed = true; outputHashMode = "recursive";
          outputHashAlgo = "sha256"; }"""
    )
    drv = nix.run(
        "nix-instantiate", "--extra-experimental-features", "ca-derivations", "-E", expression
    ).stdout.strip()
    derivation = parse_derivation(Path(drv).read_bytes())
    assert derivation.unknown_outputs == ["out"]
    assert not derivation.is_fixed_output
    with pytest.raises(UnsupportedDerivationError, match=r"packages\.floating.*output out"):
        derivation.require_known_outputs("packages.floating")


names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,8}", fullmatch=True)
paths = names.map(lambda name: f"/nix/store/{HASH}-{name}")


@given(
    st.builds(
        Derivation,
        outputs=st.dictionaries(names, st.builds(Output, paths), min_size=1, max_size=3),
        input_drvs=st.dictionaries(
            paths.map(lambda path: path + ".drv"), st.frozensets(names, max_size=3), max_size=3
        ),
        input_srcs=st.frozensets(paths, max_size=3),
        system=names,
        builder=st.binary(max_size=20),
        args=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
        env=st.dictionaries(st.binary(max_size=10), st.binary(max_size=40), max_size=4),
    )
)
def test_any_derivation_reads_back_what_was_written(derivation: Derivation) -> None:
    assert parse_derivation(write_derivation(derivation)) == derivation


@given(st.integers(min_value=0, max_value=len(write_derivation(SIMPLE)) - 1))
def test_a_derivation_cut_short_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(InvalidDerivationError, match="at byte"):
        parse_derivation(write_derivation(SIMPLE)[:cut])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"Derive(", b"Derivation(", r"at byte 0: expected 'Derive\('"),
        (b"[(", b"[ (", r"expected '\('"),
        (OUT.encode(), b"/tmp/x", "not a path directly below /nix/store"),
        (b"-y.drv", b"-y", "is not a .drv"),
        (b'["dev","out"]', b'["d/v","out"]', "not an output name"),
        (b'x86_64-linux"', b'x86_64-linux\xff"', "not ASCII"),
        (b'"name","x"', b'"out","x"', "stands twice"),
        (b'[("out","%s","","")]' % OUT.encode(), b"[]", "no outputs"),
    ],
)
def test_a_malformed_derivation_is_refused_with_the_offset(
    before: bytes, after: bytes, message: str
) -> None:
    text = write_derivation(SIMPLE)
    assert before in text
    with pytest.raises(InvalidDerivationError, match=message) as caught:
        parse_derivation(text.replace(before, after, 1))
    assert "at byte" in str(caught.value)


def test_text_behind_a_derivation_is_refused() -> None:
    with pytest.raises(InvalidDerivationError, match="more follows"):
        parse_derivation(write_derivation(SIMPLE) + b"\n")


def test_a_dynamic_derivation_is_refused_by_name() -> None:
    with pytest.raises(InvalidDerivationError, match="dynamic derivation"):
        parse_derivation(b'DrvWithVersion("xp-dyn-drv",[],[],[],"","",[],[])')


def with_env(**env: str) -> Derivation:
    """A derivation with these variables."""
    return Derivation(
        outputs={"out": Output(OUT)},
        input_drvs={},
        input_srcs=frozenset(),
        system="x86_64-linux",
        builder=b"/bin/sh",
        env={name.encode(): value.encode() for name, value in env.items()},
    )


def structured(**attrs: object) -> Derivation:
    """A structured derivation with these attributes."""
    return with_env(__json=json.dumps(attrs))


def test_the_build_settings_of_a_derivation_are_read_from_its_variables() -> None:
    derivation = with_env(
        name="x-1",
        pname="x",
        requiredSystemFeatures="kvm  big-parallel\n",
        preferLocalBuild="1",
        allowSubstitutes="",
        timeout="600",
        maxSilent="60",
    )
    assert derivation.name == "x-1"
    assert derivation.pname == "x"
    assert derivation.required_features == {"kvm", "big-parallel"}
    assert derivation.prefer_local_build
    assert not derivation.allow_substitutes
    assert (derivation.timeout, derivation.max_silent) == (600, 60)


def test_the_build_settings_of_a_structured_derivation_are_read_from_its_json() -> None:
    derivation = structured(
        name="x-1",
        pname="x",
        requiredSystemFeatures=["kvm"],
        preferLocalBuild=True,
        allowSubstitutes=False,
        timeout=600,
        maxSilent=60,
    )
    assert (derivation.name, derivation.pname) == ("x-1", "x")
    assert derivation.required_features == {"kvm"}
    assert derivation.prefer_local_build
    assert not derivation.allow_substitutes
    assert (derivation.timeout, derivation.max_silent) == (600, 60)


@pytest.mark.parametrize("derivation", [with_env(), structured()])
def test_a_derivation_that_says_nothing_has_the_defaults(derivation: Derivation) -> None:
    assert derivation.pname is None
    assert derivation.required_features == frozenset()
    assert not derivation.prefer_local_build
    assert derivation.allow_substitutes
    assert (derivation.timeout, derivation.max_silent) == (None, None)


@pytest.mark.parametrize("value", ["soon", "-1", "1.5", "1e3", " 1", ""])
def test_a_time_limit_that_is_no_number_of_seconds_is_none(value: str) -> None:
    assert with_env(timeout=value).timeout is None
