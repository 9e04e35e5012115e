"""`.drv` files as objects: their names are worked out from their text, as Nix does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.nix_store import NixStore
from tests.worker.drvs import make_drv
from worker.derivations import Derivations, drv_archive, read_derivation, references_of
from worker.nix.derivation import InvalidDerivationError
from worker.nix.serve import ServeProcess
from worker.nix.settings import NixSettings

EXPRESSION = """
  let
    source = builtins.toFile "a-source" "text";
    low = derivation { name = "low"; system = "x86_64-linux"; builder = "/bin/sh"; };
    fixed = derivation {
      name = "fixed"; system = "x86_64-linux"; builder = "/bin/sh"; outputHashMode = "flat";
      outputHashAlgo = "sha256"; outputHash = builtins.hashString "sha256" "x";
    };
  in derivation {
    name = "top"; system = "x86_64-linux"; builder = "/bin/sh"; inherit low fixed source;
    outputs = [ "out" "dev" ]; text = "with \\"quotes\\" and a\\nline";
  }
"""


@pytest.mark.nix
async def test_the_name_of_a_drv_follows_from_its_text_as_nix_has_it(
    store: NixStore, tmp_path: Path
) -> None:
    settings = NixSettings(tmp_path)
    done = subprocess.run(
        ["nix-instantiate", "-E", EXPRESSION],
        env=settings.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    top = done.stdout.strip()
    read = read_derivation(top, Path(top).read_bytes())
    assert len(read.input_drvs) == 2
    paths = [top, *read.input_drvs]
    serve = await ServeProcess.start(settings)
    try:
        infos = await serve.path_infos(paths)
    finally:
        await serve.close()
    for path in paths:
        text = Path(path).read_bytes()
        references = references_of(read_derivation(path, text))
        ours, archive = drv_archive(path, text, references)
        theirs = infos[path]
        assert (ours.nar_hash, ours.nar_size) == (theirs.nar_hash, theirs.nar_size)
        assert (ours.references, ours.ca) == (theirs.references, theirs.ca)
        assert len(archive) == theirs.nar_size


def test_a_text_under_another_name_is_refused() -> None:
    one, other = make_drv("one", "true"), make_drv("other", "true")
    assert read_derivation(one.path, one.text) == one.derivation
    with pytest.raises(InvalidDerivationError, match="it was changed"):
        read_derivation(one.path, other.text)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.derivations.KEPT_DERIVATIONS", 2)
    derivations = Derivations()
    made = [make_drv(f"kept-{index}", "true") for index in range(3)]
    for one in made:
        derivations.keep(one.path, one.derivation)
    assert derivations.local(made[0].path) is None
    assert derivations.local(made[2].path) == made[2].derivation
