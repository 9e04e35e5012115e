"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("gradient-ci")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0"
