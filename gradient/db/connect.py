"""Connections and pools of the server, each in the role that it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

Connection = psycopg.AsyncConnection[TupleRow]
Pool = AsyncConnectionPool[Connection]

# Notice a dead peer within half a minute: an instance's lock lives on such a connection.
KEEPALIVES: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
REPORT_TIMEOUT_SECONDS = 10.0

# The role of this audience, if it exists and this login may act in it.
_ASSUMABLE = """
select role.rolname
  from gradient.deployment deployment
  join pg_roles role on role.rolname = deployment.role_prefix || '_' || %s
 where pg_has_role(role.oid, %s)
"""


async def connect(
    dsn: str, *, audience: str | None = "server", name: str = "gradient"
) -> Connection:
    """One autocommit connection, acting as `audience` (server, operator, reader; None: the login).

    Where that role does not exist the login's own rights stay in force. `name` is the
    application_name seen in pg_stat_activity.
    """
    conn: Connection = await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, application_name=name, **KEEPALIVES
    )
    try:
        if audience is not None:
            await assume(conn, audience)
    except BaseException:
        await conn.close()
        raise
    return conn


async def assume(conn: Connection, audience: str) -> str | None:
    """Act in the role of `audience` from now on; returns its name, None where there is none."""
    right = "SET" if conn.info.server_version >= 160000 else "MEMBER"
    row = await (await conn.execute(_ASSUMABLE, [audience, right])).fetchone()
    if row is None:
        return None
    await conn.execute(sql.SQL("set role {}").format(sql.Identifier(row[0])))
    return str(row[0])


@asynccontextmanager
async def open_pool(
    dsn: str,
    *,
    audience: str = "server",
    name: str = "gradient",
    min_size: int = 1,
    max_size: int = 8,
    statement_timeout: float | None = None,
) -> AsyncIterator[Pool]:
    """A pool of autocommit connections acting as `audience`, open for the block.

    `statement_timeout` in seconds for every statement (reports: REPORT_TIMEOUT_SECONDS);
    None leaves the database's setting. Never LISTEN on one of these connections.
    """

    async def configure(conn: Connection) -> None:
        await assume(conn, audience)
        if statement_timeout is not None:
            await conn.execute(
                "select set_config('statement_timeout', %s, false)",
                [str(round(statement_timeout * 1000))],
            )

    pool: Pool = AsyncConnectionPool(
        dsn,
        min_size=min_size,
        max_size=max_size,
        open=False,
        check=AsyncConnectionPool.check_connection,
        configure=configure,
        kwargs={"autocommit": True, "application_name": name, **KEEPALIVES},
        name=name,
    )
    await pool.open(wait=True, timeout=30)
    try:
        yield pool
    finally:
        await pool.close()
