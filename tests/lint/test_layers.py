"""What each ring needs installed: a worker no database packages, a server none of the worker's."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
# Distribution names whose modules are called otherwise.
MODULES = {
    "psycopg": "psycopg",
    "psycopg-pool": "psycopg_pool",
    "yoyo-migrations": "yoyo",
    "prometheus-client": "prometheus_client",
}


def modules_only_of(extra: str, other: str) -> list[str]:
    """The modules that the extra `extra` installs and neither `other` nor the base does."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {requirement.split(">")[0].split("[")[0] for requirement in requirements}

    extras = project["optional-dependencies"]
    only = names(extras[extra]) - names(extras[other]) - names(project["dependencies"])
    return sorted(MODULES.get(name, name) for name in only)


def all_modules(package: str) -> list[str]:
    root = importlib.import_module(package)
    return [
        module.name
        for module in pkgutil.walk_packages(root.__path__, package + ".")
        if not module.name.endswith("__main__")
    ]


@pytest.mark.parametrize(
    "package, without, but",
    [("worker", "server", "worker"), ("gradient", "worker", "server")],
)
def test_a_ring_imports_without_the_packages_of_the_other(
    package: str, without: str, but: str
) -> None:
    forbidden = modules_only_of(without, but)
    assert forbidden
    script = (
        "import importlib, sys\n"
        f"sys.modules.update({{name: None for name in {forbidden!r}}})\n"
        f"for name in {all_modules(package)!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
