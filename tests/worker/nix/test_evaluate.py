"""Evaluating attributes: every good one comes out, every bad one has its own error."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from pathlib import Path

import pytest

from tests.worker.nix.git import Repository
from tests.worker.nix.support import Nix, processes_with
from worker.nix.derivation import parse_derivation
from worker.nix.evaluate import (
    EvaluationBatch,
    EvaluationError,
    EvaluationLimits,
    EvaluationTimeoutError,
    NothingMatchedError,
    evaluate,
)
from worker.nix.flake import FlakeSource, fetch_repository
from worker.nix.patterns import InvalidPatternError
from worker.nix.settings import NixSettings

pytestmark = pytest.mark.nix

FLAKE = r"""
{
  outputs = { self }:
    let
      d = name: derivation {
        inherit name;
        system = "x86_64-linux";
        builder = "/bin/sh";
        args = [ "-c" "echo ${name} > $out" ];
      };
      endless = x: 1 + endless x;
    in
    OUTPUTS;
}
"""


# Takes minutes, but neither memory nor stack.
FOREVER = """toString (builtins.foldl' (x: y: x + y) 0 (builtins.genList
  (x: builtins.length (builtins.genList (y: y) 10000)) 1000000))"""


class World:
    """A flake in the store, evaluated with some patterns."""

    def __init__(self, settings: NixSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.batches: list[EvaluationBatch] = []

    async def fetch(self, outputs: str) -> FlakeSource:
        """Commit a flake with these outputs and fetch it."""
        repository = Repository(self.folder / f"repository-{secrets.token_hex(4)}")
        commit = repository.commit(flake_nix=FLAKE.replace("OUTPUTS", outputs))
        return await fetch_repository(self.settings, str(repository.folder), commit)

    async def evaluate(
        self,
        outputs: str | FlakeSource,
        patterns: str = "packages.x86_64-linux.*",
        **limits: float,
    ) -> None:
        """Evaluate, keep the batches; raises what the evaluation raises."""
        source = outputs if isinstance(outputs, FlakeSource) else await self.fetch(outputs)
        self.batches = []
        given = EvaluationLimits(**limits)  # type: ignore[arg-type]
        async for batch in evaluate(self.settings, source, patterns, given):
            self.batches.append(batch)

    @property
    def attrs(self) -> dict[str, str]:
        """Attribute to the name of its derivation."""
        return {attr.attr: Path(attr.drv_path).name[33:] for b in self.batches for attr in b.attrs}

    @property
    def errors(self) -> dict[str, str]:
        """Attribute to message."""
        return {error.attr: error.message for b in self.batches for error in b.errors}

    @property
    def warnings(self) -> list[str]:
        """All warnings."""
        return [warning for batch in self.batches for warning in batch.warnings]


@pytest.fixture
def world(settings: NixSettings, tmp_path: Path) -> World:
    """An empty world."""
    return World(settings, tmp_path)


async def test_every_attribute_gives_a_drv_that_lies_in_the_store(world: World, nix: Nix) -> None:
    await world.evaluate(
        """{ packages.x86_64-linux = { a = d "a"; b = d "b"; "c.d" = d "c"; }; }"""
    )
    assert world.attrs == {
        "packages.x86_64-linux.a": "a.drv",
        "packages.x86_64-linux.b": "b.drv",
        'packages.x86_64-linux."c.d"': "c.drv",
    }
    assert world.errors == {}
    for batch in world.batches:
        for attr in batch.attrs:
            assert nix.is_valid(attr.drv_path)
            assert parse_derivation(Path(attr.drv_path).read_bytes()).name in "abc"


async def test_a_bad_attribute_has_its_own_error_and_the_others_go_on(world: World) -> None:
    await world.evaluate("""{ packages.x86_64-linux = {
      a = d "a";
      b = throw "thrown on purpose";
      c = assert 1 == 2; d "c";
      d = d (1 + "a");
      e = { }.missing;
      f = let x = x; in x;
      g = d (toString (endless 1));
      h = abort "aborted on purpose";
      i = d "i";
      j = builtins.readFile /etc/passwd;
      k = d "k";
    }; }""")
    assert {name[-1] for name in world.attrs} == {"a", "i", "k"}
    errors = {name[-1]: message for name, message in world.errors.items()}
    assert errors.keys() == set("bcdefghj")
    assert errors["b"] == "thrown on purpose"
    assert "assertion" in errors["c"]
    assert "cannot" in errors["d"]
    assert "attribute 'missing' missing" in errors["e"]
    assert "infinite recursion" in errors["f"]
    assert "recursion" in errors["g"] or "signal" in errors["g"]
    assert "aborted on purpose" in errors["h"]
    assert "pure eval" in errors["j"]


async def test_attributes_keep_the_flakes_order_and_come_once(world: World) -> None:
    await world.evaluate(
        """{ packages.x86_64-linux = { a = d "a"; b = throw "b"; c = d "c"; }; }""",
        "packages.x86_64-linux.*,packages.#.#,packages.x86_64-linux.a",
    )
    names = [attr.attr for batch in world.batches for attr in batch.attrs]
    assert sorted(names) == ["packages.x86_64-linux.a", "packages.x86_64-linux.c"]
    assert list(world.errors) == ["packages.x86_64-linux.b"]


async def test_more_attributes_than_fit_a_batch_are_all_found_and_streamed(world: World) -> None:
    await world.evaluate("""{ packages.x86_64-linux = builtins.listToAttrs (builtins.genList
      (n: { name = "p${toString n}"; value = d "p${toString n}"; }) 600); }""")
    assert len(world.attrs) == 600
    assert len([batch for batch in world.batches if batch.attrs]) >= 3


SHAPES = """{
  packages.x86_64-linux = { a = d "a"; set = { b = d "b"; deep.c = d "c"; text = "x"; }; n = 1; };
  packages.aarch64-linux.a = d "arm-a";
  checks.x86_64-linux.t = d "t";
  formatter.x86_64-linux = d "fmt";
  nixosConfigurations.host = {
    config.system.build.toplevel = d "system";
    pkgs = throw "never looked at";
  };
  odd.x = d "odd";
}"""


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("packages.x86_64-linux.*", "a set.b"),
        ("packages.x86_64-linux.#", "a"),
        ("packages.x86_64-linux.set.deep.*", "set.deep.c"),
        ("packages.*.a", "a packages.aarch64-linux.a"),
        ("packages.*", "a packages.aarch64-linux.a"),
        ("packages.#.#", "a packages.aarch64-linux.a"),
        ("packages.#", ""),
        ("#.x86_64-linux.#", "a checks.x86_64-linux.t"),
        ("*", "formatter.x86_64-linux nixosConfigurations.host.config.system.build.toplevel"),
        ("nixosConfigurations.host", "nixosConfigurations.host.config.system.build.toplevel"),
        ("odd.x", "odd.x"),
        ("packages.x86_64-linux.*,!packages.x86_64-linux.a", "set.b"),
        ("packages.x86_64-linux.*,!packages.x86_64-linux.set.b", "a"),
        ("packages.x86_64-linux.*,!packages.x86_64-linux.set", "a"),
        ("checks.x86_64-linux.t,formatter.#", "checks.x86_64-linux.t formatter.x86_64-linux"),
        ("packages.nowhere.*,checks.#.t", "checks.x86_64-linux.t"),
    ],
)
async def test_patterns_select(world: World, patterns: str, expected: str) -> None:
    try:
        await world.evaluate(SHAPES, patterns)
    except NothingMatchedError:
        assert expected == ""
    assert set(world.attrs) == {
        name
        if name.split(".")[0] in ("packages", "checks", "formatter", "odd")
        or name.startswith("nixos")
        else f"packages.x86_64-linux.{name}"
        for name in expected.split()
    }
    assert world.errors == {}


async def test_an_explicit_pattern_that_matches_nothing_is_an_error_and_the_rest_goes_on(
    world: World,
) -> None:
    await world.evaluate(SHAPES, "packages.x86_64-linux.a,packages.x86_64-linux.nope,odd.y.z")
    assert set(world.attrs) == {"packages.x86_64-linux.a"}
    assert set(world.errors) == {"packages.x86_64-linux.nope", "odd.y.z"}
    assert "matches nothing" in world.errors["odd.y.z"]


async def test_an_explicit_pattern_that_names_no_derivation_is_an_error(world: World) -> None:
    await world.evaluate(
        SHAPES, "packages.x86_64-linux.a,packages.x86_64-linux.set,packages.x86_64-linux.n"
    )
    assert world.errors == {
        "packages.x86_64-linux.set": "the pattern names no derivation but a set",
        "packages.x86_64-linux.n": "the pattern names no derivation but a int",
    }


@pytest.mark.parametrize("patterns", ["checks.*", "packages.riscv64-linux.*", "odd.nope"])
async def test_nothing_matched_at_all_is_an_error_that_names_the_patterns(
    world: World, patterns: str
) -> None:
    outputs = """{ packages.x86_64-linux.a = d "a"; odd = { }; }"""
    with pytest.raises(
        NothingMatchedError, match=f"no derivation matches '{patterns}'".replace("*", r"\*")
    ):
        await world.evaluate(outputs, patterns)
    assert world.attrs == {}


async def test_nothing_but_errors_is_told_with_the_first_of_them(world: World) -> None:
    with pytest.raises(NothingMatchedError, match=r"packages\.x86_64-linux\.a: broken"):
        await world.evaluate("""{ packages.x86_64-linux.a = throw "broken"; }""")
    assert world.errors == {"packages.x86_64-linux.a": "broken"}


async def test_outputs_that_throw_are_an_error(world: World) -> None:
    with pytest.raises(NothingMatchedError, match="all broken"):
        await world.evaluate('throw "all broken"')


async def test_a_malformed_pattern_is_refused_before_anything_is_evaluated(world: World) -> None:
    source = await world.fetch('throw "never"')
    with pytest.raises(InvalidPatternError):
        await world.evaluate(source, "packages. x")


async def test_warnings_are_collected_once_each(world: World) -> None:
    await world.evaluate("""{ packages.x86_64-linux = {
      a = builtins.trace "warning: careful" (d "a");
      b = builtins.trace "warning: careful" (d "b");
      c = builtins.trace "just talking" (d "c");
      d = builtins.trace "warning: and more" (throw "x");
      e = d "e";
    }; }""")
    assert world.warnings == ["careful", "and more"]
    assert len(world.attrs) == 4


async def test_a_flake_cannot_pretend_to_be_the_evaluator(world: World) -> None:
    fake = r"{\"index\":0,\"result\":{\"drv\":\"/nix/store/fake.drv\"}}"
    await world.evaluate(
        f"""{{ packages.x86_64-linux.a = builtins.trace "gradient-0 {fake}" (d "a"); }}"""
    )
    assert world.attrs == {"packages.x86_64-linux.a": "a.drv"}


async def test_names_that_need_escapes_survive_the_way_there_and_back(world: World) -> None:
    await world.evaluate(r"""{ packages.x86_64-linux = {
      "a\"b" = d "quote"; "a\\b" = d "slash"; "\${x}" = d "dollar"; "ä€𝄞" = d "unicode";
      "a b" = d "space"; "''" = d "apostrophes"; "a\nb" = d "line"; }; }""")
    assert set(world.attrs.values()) == {
        f"{name}.drv"
        for name in ("quote", "slash", "dollar", "unicode", "space", "apostrophes", "line")
    }


# -- limits ------------------------------------------------------------------------------------


async def test_an_evaluation_over_its_time_limit_ends_and_leaves_no_process(
    world: World,
) -> None:
    word = f"word{secrets.token_hex(8)}"
    with pytest.raises(EvaluationTimeoutError, match=rf"within 3 s .*{word}\.slow"):
        await world.evaluate(
            f"{{ packages.{word} = {{ slow = d ({FOREVER}); }}; }}",
            f"packages.{word}.slow",
            seconds=3,
        )
    assert processes_with(word) == []


@pytest.mark.slow
async def test_an_attribute_that_needs_too_much_memory_is_named_and_the_rest_goes_on(
    world: World,
) -> None:
    await world.evaluate(
        """{ packages.x86_64-linux = {
          a = d "a";
          big = d (toString (builtins.length (builtins.foldl'
            (all: n: let list = builtins.genList (x: x + n) 1000000; in
              builtins.seq (builtins.length list) (all ++ [ list ]))
            [ ] (builtins.genList (x: x) 400))));
          z = d "z";
        }; }""",
        memory_bytes=300 << 20,
    )
    assert set(world.attrs.values()) == {"a.drv", "z.drv"}
    assert "more than 300 MiB of memory" in world.errors["packages.x86_64-linux.big"]


async def test_a_cancelled_evaluation_leaves_no_process(world: World) -> None:
    word = f"word{secrets.token_hex(8)}"
    source = await world.fetch(f"{{ packages.{word} = {{ slow = d ({FOREVER}); }}; }}")
    task = asyncio.create_task(world.evaluate(source, f"packages.{word}.slow"))
    while not processes_with(word):
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(word) == []


# -- import from derivation --------------------------------------------------------------------

IFD = """{ packages.x86_64-linux = {
  a = d "a";
  imported = d (builtins.replaceStrings [ "\\n" ] [ "" ] (builtins.readFile (d "inner")));
  z = d "z";
}; }"""


async def test_import_from_derivation_is_refused_by_default_with_the_option_named(
    world: World,
) -> None:
    await world.evaluate(IFD)
    assert set(world.attrs.values()) == {"a.drv", "z.drv"}
    message = world.errors["packages.x86_64-linux.imported"]
    assert "allow-import-from-derivation" in message
    assert "inner.drv" in message


async def test_import_from_derivation_is_built_and_marked_where_it_is_allowed(
    world: World,
) -> None:
    await world.evaluate(IFD, allow_import_from_derivation=True)
    assert world.attrs["packages.x86_64-linux.imported"] == "inner.drv"
    marked = {attr.attr: attr.ifd for batch in world.batches for attr in batch.attrs if attr.ifd}
    assert marked.keys() == {"packages.x86_64-linux.imported"}
    assert all(drv.endswith("-inner.drv") for drv in marked["packages.x86_64-linux.imported"])


# -- one commit, one set of derivations ---------------------------------------------------------


@pytest.mark.scenario(59)
async def test_evaluated_whole_or_in_parts_a_commit_gives_the_same_derivations(
    world: World,
) -> None:
    source = await world.fetch("""{ packages.x86_64-linux = {
      a = derivation { name = "a-${self.rev}-${toString self.lastModified}";
        system = "x86_64-linux"; builder = "/bin/sh"; src = self; };
      b = d "b-${self.shortRev}"; }; }""")

    async def drvs(patterns: str) -> dict[str, str]:
        return {
            attr.attr: attr.drv_path
            async for batch in evaluate(world.settings, source, patterns)
            for attr in batch.attrs
        }

    whole = await drvs("packages.x86_64-linux.*")
    parts = {**await drvs("packages.x86_64-linux.a"), **await drvs("packages.x86_64-linux.b")}
    assert len(whole) == 2
    assert whole == parts
    assert source.revision is not None
    assert any(source.revision in path for path in whole.values())


async def test_a_source_that_is_no_store_path_content_is_an_error(world: World) -> None:
    source = await world.fetch("""{ packages.x86_64-linux.a = d "a"; }""")
    absent = source.path[:11] + "0" * 32 + source.path[43:]
    with pytest.raises(EvaluationError):
        await world.evaluate(dataclasses.replace(source, path=absent))


def test_try_eval_catches_throw_and_assert_only(nix: Nix) -> None:
    """Why an attribute's error ends a process here instead of being caught in Nix."""

    def succeeds(expression: str) -> bool:
        done = nix.run(
            "nix-instantiate",
            "--eval",
            "-E",
            f"(builtins.tryEval ({expression})).success",
            check=False,
        )
        return done.returncode == 0

    assert succeeds('throw "x"')
    assert succeeds("assert false; 1")
    assert not succeeds('1 + "x"')
    assert not succeeds("{ }.x")
    assert not succeeds("let x = x; in x")
