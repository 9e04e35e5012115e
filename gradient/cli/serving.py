"""The database below a server: started if it is the embedded one, and brought to this version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
import structlog

from gradient.cli.upgrading import upgrade_failures
from gradient.config import Config, Database
from gradient.db.deploy import upgrade
from gradient.db.embedded import EmbeddedDatabase
from gradient.db.source import sql_root

# A connection that we have closed is listed until its backend has ended.
OWN_CONNECTIONS_SECONDS = 5.0

log = structlog.get_logger(__name__)


@contextmanager
def served_database(config: Config) -> Iterator[Config]:
    """The configuration with the URL of a database that runs and is up to date.

    The embedded database is stopped at the end, unless another server still uses it.
    """
    if config.database.url:
        _upgrade(config)
        yield config
        return
    embedded = EmbeddedDatabase(config.state_dir)
    dsn = embedded.start()
    try:
        log.info("embedded database runs", folder=str(embedded.data_dir))
        database = Database(url=dsn, role_prefix=config.database.role_prefix)
        served = msgspec.structs.replace(config, database=database)
        _upgrade(served)
        yield served
    finally:
        if not _used_by_others(dsn):
            embedded.stop()
            log.info("embedded database stopped")


def _upgrade(config: Config) -> None:
    database = config.database
    with upgrade_failures():
        report = upgrade(database.url, sql_root(), role_prefix=database.role_prefix)
    if report.migrations or report.deployed:
        log.info(
            "database is up to date",
            migrations=len(report.migrations),
            objects=len(report.created),
        )
    for text in report.notes:
        log.warning("database", note=text)


def _used_by_others(dsn: str) -> bool:
    """Whether another server is connected; our own connections get a moment to go away."""
    deadline = time.monotonic() + OWN_CONNECTIONS_SECONDS
    while _connections(dsn):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def _connections(dsn: str) -> int:
    """How many connections servers hold."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as conn:
            row = conn.execute(
                "select count(*) from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid()"
                "   and application_name like 'gradient%' and application_name <> 'gradient cli'"
            ).fetchone()
    except psycopg.Error:
        return 0
    return int(row[0]) if row else 0
