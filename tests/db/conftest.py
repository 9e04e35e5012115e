"""Fixtures of the migrator's and the deployer's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sql_folder import SqlFolder


@pytest.fixture
def folder(tmp_path: Path) -> SqlFolder:
    """A SQL folder with one table and nothing deployed on it."""
    made = SqlFolder(tmp_path / "sql")
    made.migration(
        "0001.thing",
        "create table gradient.thing (id bigint primary key, n int);",
        "drop table gradient.thing;",
    )
    return made
