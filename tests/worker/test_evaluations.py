"""An evaluation job against a scripted peer: fetch, batches, pruning, uploads before reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradient import protocol as wire
from tests.support.e2e_flake import Drv, Repository, layered
from tests.support.scripted_server import Connection, ScriptedServer
from tests.worker.conftest import AgentFactory
from worker.executor.walk import by_bytes
from worker.nix.store_path import hash_part

pytestmark = pytest.mark.nix


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def flake_job(repository: Repository, **options: Any) -> wire.FlakeJob:
    return wire.FlakeJob(
        **{
            "evaluation": 1,
            "steps": ["fetch_flake", "evaluate_flake", "evaluate_derivations"],
            "source": wire.RepositorySource(url=repository.url),
            "wildcard": "packages.x86_64-linux.*",
            **options,
        }
    )


def batches(connection: Connection) -> list[wire.EvalResult]:
    return [
        message.event
        for message in connection.received
        if isinstance(message, wire.Report) and isinstance(message.event, wire.EvalResult)
    ]


async def evaluate(
    server: ScriptedServer,
    connection: Connection,
    job: wire.FlakeJob,
    known: frozenset[str] = frozenset(),
) -> wire.JobCompleted | wire.JobFailed:
    """Run an evaluation to its end; the names in `known` are answered as known."""
    number = await server.assign(connection, job)
    while True:
        message: Any = await connection.expect(
            object,
            lambda one: isinstance(one, wire.QueryKnownDerivations | wire.Report),
            timeout=60,
        )
        if isinstance(message, wire.QueryKnownDerivations):
            answer = [drv for drv in message.drvs if drv in known]
            await connection.send(wire.KnownDerivations(query=message.query, known=answer))
        elif message.assignment == number and isinstance(
            message.event, wire.JobCompleted | wire.JobFailed
        ):
            return message.event


async def test_the_walk_reports_every_derivation_once_in_batches_of_fifty(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    drvs = layered(120, 10)
    commit = repository.commit_drvs(drvs)
    await start_worker()
    connection = await server.accepted()
    end = await evaluate(server, connection, flake_job(repository))
    assert isinstance(end, wire.JobCompleted)
    (fetched,) = [
        message.event
        for message in connection.received
        if isinstance(message, wire.Report) and isinstance(message.event, wire.FetchResult)
    ]
    assert (fetched.commit, fetched.commit_message) == (commit, "Change")
    assert fetched.commit_author == "Ada <ada@example.org>"
    assert hash_part(fetched.flake_source) in server.narinfos
    found = batches(connection)
    assert [len(batch.derivations) for batch in found] == [50, 50, 20]
    names = [one.drv for batch in found for one in batch.derivations]
    assert len(set(names)) == 120
    entries = [entry.attribute for batch in found for entry in batch.entry_points]
    assert sorted(entries) == sorted(
        f"packages.x86_64-linux.{drv.name}" for drv in drvs if drv.entry
    )
    # Parents come before their children, so the first batch holds the entry points.
    assert {entry.drv for entry in found[0].entry_points} <= {
        one.drv for one in found[0].derivations
    }


async def test_a_batch_is_reported_only_when_its_drvs_and_sources_are_in_the_cache(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    repository.commit(
        {
            "data/file": "a plain source\n",
            "flake.nix": (
                "{ outputs = { self }: { packages.x86_64-linux.one = derivation {"
                ' name = "one"; system = "x86_64-linux"; builder = "/bin/sh";'
                ' src = ./data; text = builtins.toFile "text" "by text";'
                ' args = [ "-c" "cp -r $src $out" ]; }; }; }'
            ),
        }
    )
    await start_worker()
    connection = await server.accepted()
    seen: list[bool] = []

    def look(method: str, name: str) -> int | None:
        # While something is still to be uploaded, no batch may have been reported.
        if method == "PUT":
            seen.append(bool(batches(connection)))
        return None

    server.refuse = look
    assert isinstance(await evaluate(server, connection, flake_job(repository)), wire.JobCompleted)
    assert seen
    assert not any(seen)
    (batch,) = batches(connection)
    (one,) = batch.derivations
    assert len(one.input_sources) == 2
    for path in (f"/nix/store/{one.drv}", *one.input_sources):
        assert hash_part(path) in server.narinfos, path


async def test_what_the_server_knows_is_named_and_neither_walked_nor_uploaded(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    repository.commit_drvs(
        [
            Drv("bottom", entry=False),
            Drv("middle", "cat ${bottom} > $out", entry=False),
            Drv("top", "cat ${middle} > $out"),
        ]
    )
    await start_worker()
    connection = await server.accepted()
    await evaluate(server, connection, flake_job(repository))
    (batch,) = batches(connection)
    by_name = {one.drv[33:]: one for one in batch.derivations}
    middle = by_name["middle.drv"].drv
    server.narinfos.clear()
    connection.received.clear()
    await evaluate(server, connection, flake_job(repository), frozenset({middle}))
    (again,) = batches(connection)
    assert [one.drv for one in again.derivations] == [by_name["top.drv"].drv]
    assert again.derivations[0].dependencies == [middle]
    assert hash_part(f"/nix/store/{middle}") not in server.narinfos
    # The whole flake known: only its entry points are named.
    connection.received.clear()
    everything = frozenset(one.drv for one in batch.derivations)
    await evaluate(server, connection, flake_job(repository), everything)
    (named,) = batches(connection)
    assert named.derivations == []
    assert [entry.drv for entry in named.entry_points] == [by_name["top.drv"].drv]


async def test_a_full_walk_asks_nothing(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    repository.commit_drvs(layered(6, 2))
    await start_worker()
    connection = await server.accepted()
    end = await evaluate(server, connection, flake_job(repository, walk_mode="full"))
    assert isinstance(end, wire.JobCompleted)
    assert not connection.has(wire.QueryKnownDerivations)
    assert sum(len(batch.derivations) for batch in batches(connection)) == 6


async def test_a_bad_attribute_is_a_message_and_the_others_are_walked(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    repository.commit_drvs([Drv("fine")], extra='bad = throw "not this one";')
    await start_worker()
    connection = await server.accepted()
    end = await evaluate(server, connection, flake_job(repository))
    assert isinstance(end, wire.JobCompleted)
    (batch,) = batches(connection)
    (message,) = batch.messages
    assert (message.level, message.attribute) == ("error", "packages.x86_64-linux.bad")
    assert "not this one" in message.message
    assert [entry.attribute for entry in batch.entry_points] == ["packages.x86_64-linux.fine"]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"wildcard": "packages.x86_64-linux.absent"}, "matches nothing"),
        ({"wildcard": "packages..one"}, "empty segment"),
        ({"source": wire.RepositorySource(url="file:///nowhere/at/all")}, "cannot be read"),
        ({"input_overrides": {"nixpkgs": "github:x/y"}}, "cannot override"),
    ],
)
async def test_what_cannot_be_evaluated_fails_with_its_reason(
    server: ScriptedServer,
    start_worker: AgentFactory,
    repository: Repository,
    options: dict[str, Any],
    text: str,
) -> None:
    repository.commit_drvs([Drv("one")])
    await start_worker()
    connection = await server.accepted()
    end = await evaluate(server, connection, flake_job(repository, **options))
    assert isinstance(end, wire.JobFailed)
    assert end.outcome_class == "evaluation_failed"
    assert text in end.error
    assert not any(batch.derivations for batch in batches(connection))


async def test_a_question_that_was_on_its_way_is_asked_again_on_the_next_connection(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    repository.commit_drvs([Drv("one")])
    await start_worker()
    first = await server.accepted()
    number = await server.assign(first, flake_job(repository))
    question = await first.expect(wire.QueryKnownDerivations, timeout=60)
    await first.cut()
    second = await server.accepted()
    again = await second.expect(wire.QueryKnownDerivations)
    assert again == question
    await second.send(wire.KnownDerivations(query=again.query, known=[]))
    await second.expect_report(wire.JobCompleted, number)


def test_what_is_too_much_for_one_frame_is_split_and_nothing_is_lost() -> None:
    messages = [
        wire.EvaluationMessage(level="error", message=f"{index} " + "x" * 1000)
        for index in range(50)
    ]
    parts = by_bytes(messages, 5000)
    assert [message for part in parts for message in part] == messages
    assert all(len(msgspec.json.encode(part)) <= 5000 + 2 for part in parts)
    assert len(parts) == 13
    assert by_bytes([], 5000) == []


async def test_what_the_evaluator_had_to_build_is_marked(
    server: ScriptedServer, start_worker: AgentFactory, repository: Repository
) -> None:
    repository.commit_drvs(
        [
            Drv("imported", "echo '\"from a build\"' > $out", entry=False),
            Drv("importing", "echo ${builtins.replaceStrings [] [] (import imported)} > $out"),
            Drv("plain", "cat ${imported} > $out"),
        ]
    )
    await start_worker()
    connection = await server.accepted()
    job = flake_job(repository, allow_import_from_derivation=True)
    end = await evaluate(server, connection, job)
    assert isinstance(end, wire.JobCompleted), end
    marked = {one.drv[33:]: one.ifd for batch in batches(connection) for one in batch.derivations}
    assert marked == {"imported.drv": True, "importing.drv": False, "plain.drv": False}
    connection.received.clear()
    end = await evaluate(server, connection, flake_job(repository))
    assert isinstance(end, wire.JobCompleted), end
    (message,) = [message for batch in batches(connection) for message in batch.messages]
    assert message.attribute == "packages.x86_64-linux.importing"
