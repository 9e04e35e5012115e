"""How fast the graph writer records a large graph, against COPY of the same final rows.

The whole graph goes through the graph writer in batches of 50, as a worker sends them, into an
empty and into a filled database. The floor of each is COPY of the rows that came of it into the
same indexed tables, with the same foreign keys, of an equal database, in the same run.

    python -m tests.bench.record [--graph FILE] [--size N] [--fill COPIES] [--rounds N]

Without FILE the real graph of nixpkgs is used where it lies beside the checkout, else one of the
same shape is made up.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psycopg
from psycopg import sql

from gradient.db.deploy import upgrade
from gradient.db.source import sql_root
from gradient.graph.writer import GraphWriter, RecordBatch
from tests.support.database import Database, check
from tests.support.graph_builder import Drv, batch
from tests.support.graph_real import (
    generate_graph,
    in_batches,
    load_graph,
    real_graph_path,
    renamed,
    walk_order,
)
from tests.support.graph_world import World
from tests.support.server import TEST_SETTINGS, test_cluster

REAL_SIZE = 41_565
PRODUCTION_SETTINGS = {
    **TEST_SETTINGS,
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "autovacuum_naptime": "60s",
}
# What record writes, in the order of the foreign keys: a table, and the column by which its new
# rows are those above the greatest id of another table before.
PARENTS = tuple((t, "id", t) for t in ("project", "task", "commit", "evaluation", "build_class"))
TABLES = (
    ("derivation", "id", "derivation"),
    ("derivation_dependency", "derivation", "derivation"),
    ("derivation_output", "derivation", "derivation"),
    ("derivation_input_source", "derivation", "derivation"),
    ("derivation_build", "derivation", "derivation"),
    ("build_job", "derivation_build", "derivation"),
    ("entry_point", "derivation", "derivation"),
    ("ready_build", "derivation_build", "derivation"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="record", description=__doc__.split("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph file (JSON lines, may be .zst)")
    parser.add_argument("--size", type=int, help="only so many derivations of the graph")
    parser.add_argument("--fill", type=int, default=1, help="copies in the filled database")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; the medians are printed")
    parser.add_argument("--postgres", help="Debian's major version instead of the wheel's server")
    given = parser.parse_args(arguments)

    path = given.graph or real_graph_path()
    graph = load_graph(path) if path else generate_graph(given.size or REAL_SIZE)
    graph = graph[: given.size]
    edges = sum(len(drv.dependencies) for drv in graph)
    print(f"{path or 'made-up graph'}: {len(graph)} derivations, {edges} edges")
    with test_cluster(given.postgres, PRODUCTION_SETTINGS) as cluster:
        server = cluster.dsn()
        with Database.empty(server) as empty, Database.empty(server) as filled:
            upgrade(empty.dsn, sql_root())
            upgrade(filled.dsn, sql_root())
            for copy in range(given.fill):
                record(filled, renamed(graph, copy))
            for name, template in (("empty", empty), ("filled", filled)):
                measure(name, server, template, graph, given.rounds)
    return 0


def measure(name: str, server: str, template: Database, graph: Sequence[Drv], rounds: int) -> None:
    """Record into clones of `template`, and COPY what came of it into others; print both."""
    recording, copying = [], []
    for _ in range(rounds):
        with Database.clone(server, template.name) as database:
            recording.append(record(database, graph))
            with psycopg.connect(database.dsn) as conn:
                check(conn)
            with Database.clone(server, template.name) as floor:
                copying.append(copy_rows(database, floor))
    recorded, copied = statistics.median(recording), statistics.median(copying)
    print(
        f"{name:>6} database: record {recorded:6.2f} s, {len(graph) / recorded:7.0f}"
        f" derivations/s; COPY {copied:6.2f} s; ratio {recorded / copied:.2f}"
    )


def record(database: Database, graph: Sequence[Drv]) -> float:
    """Seconds to record the graph through a graph writer, from first batch to last reply."""
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        world = World(conn, checked=False)
        evaluation = world.start_walk()
        assignment = world.assignments[f"eval:{evaluation}"]
    batches = [
        msgspec.convert(
            batch(evaluation, drvs, [d for d in drvs if d.top], assignment=assignment), RecordBatch
        )
        for drvs in in_batches(walk_order(graph))
    ]

    async def run() -> float:
        writer = GraphWriter(database.dsn)
        await writer.start()
        started = time.perf_counter()
        replies = [await writer.submit_record(one) for one in batches]
        reports = await asyncio.gather(*replies)
        seconds = time.perf_counter() - started
        await writer.close()
        assert sum(report["walked"] for report in reports) == len(graph)
        return seconds

    return asyncio.run(run())


def copy_rows(source: Database, target: Database) -> float:
    """Seconds to COPY the rows that `source` has and `target` has not, evaluations aside."""
    with (
        psycopg.connect(source.dsn) as reading,
        psycopg.connect(target.dsn) as writing,
    ):
        copies: list[tuple[str, bytes]] = []
        for table, column, counted in (*PARENTS, *TABLES):
            newest = writing.execute(
                sql.SQL("select coalesce(max({}), 0) from {}").format(
                    sql.Identifier("id"), sql.Identifier("gradient", counted)
                )
            ).fetchone()
            assert newest is not None
            newer = sql.SQL("copy (select * from {} where {} > {}) to stdout (format binary)")
            with reading.cursor().copy(
                newer.format(sql.Identifier("gradient", table), sql.Identifier(column), newest[0])
            ) as copy:
                copies.append((table, b"".join(bytes(block) for block in copy)))
        seconds = 0.0
        for table, data in copies:
            query = sql.SQL("copy {} from stdin (format binary)").format(
                sql.Identifier("gradient", table)
            )
            started = time.perf_counter()
            with writing.cursor().copy(query) as copy:
                copy.write(data)
            if table not in {parent for parent, _, _ in PARENTS}:
                seconds += time.perf_counter() - started
        started = time.perf_counter()
        writing.commit()
        return seconds + time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
