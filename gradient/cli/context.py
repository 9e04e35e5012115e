"""What every command shares: the configuration in force and the operator's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, LiteralString, TypeVar

import click
from psycopg.rows import dict_row

from gradient.cli.failures import CANNOT_RUN, Failure
from gradient.config import Config, load
from gradient.db.connect import Connection, connect
from gradient.db.embedded import EmbeddedDatabase

Result = TypeVar("Result")
Record = dict[str, Any]
Params = Sequence[Any] | Mapping[str, Any]


class Context:
    """One run of the command line: flags, configuration, one connection opened when needed.

    The connection acts as gradient_operator where that role exists, so that a command can do
    what an operator may do, and no more.
    """

    def __init__(self, flags: dict[str, Any]) -> None:
        self.flags = flags
        self._runner: asyncio.Runner | None = None
        self._connection: Connection | None = None

    @cached_property
    def config(self) -> Config:
        """The configuration in force; raises ConfigError."""
        return load(self.flags)

    @cached_property
    def dsn(self) -> str:
        """The connection string of the database that runs; raises Failure when none does."""
        if self.config.database.url:
            return self.config.database.url
        status = EmbeddedDatabase(self.config.state_dir).status()
        if status.dsn is None:
            raise Failure(
                "no database is configured, and the embedded one does not run",
                detail=f"Its data would lie in {status.data_dir}.",
                hint="gradient up (it starts it), or set database.url, or name another --state-dir",
                exit_code=CANNOT_RUN,
            )
        return status.dsn

    @contextmanager
    def database(self) -> Iterator[str]:
        """The connection string of a database that runs during the block.

        The embedded one is started where it does not run, and then stopped again at the end.
        """
        if self.config.database.url:
            yield self.config.database.url
            return
        embedded = EmbeddedDatabase(self.config.state_dir)
        ran_before = embedded.status().pid is not None
        dsn = embedded.start()
        try:
            yield dsn
        finally:
            if not ran_before:
                embedded.stop()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end, on the event loop of this command."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def rows(self, query: LiteralString, params: Params = ()) -> list[Record]:
        """Every row of a query, by column name."""
        return self.run(self._rows(query, params))

    def row(self, query: LiteralString, params: Params = ()) -> Record | None:
        """The first row of a query, or None."""
        found = self.rows(query, params)
        return found[0] if found else None

    def value(self, query: LiteralString, params: Params = ()) -> Any:
        """The first column of the first row; None where there is no row."""
        found = self.row(query, params)
        return next(iter(found.values())) if found else None

    async def _rows(self, query: LiteralString, params: Params) -> list[Record]:
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self.dsn, audience="operator", name="gradient cli")
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall() if cursor.description else []

    def forget_connection(self) -> None:
        """Drop a connection that has failed, so that the next query opens a new one."""
        if self._connection is not None:
            self.run(self._connection.close())
            self._connection = None

    def close(self) -> None:
        """Give everything back."""
        if self._runner is not None:
            try:
                self.forget_connection()
            finally:
                self._runner.close()
                self._runner = None


pass_context = click.make_pass_decorator(Context)
