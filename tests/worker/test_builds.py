"""A build job against a scripted peer: inputs, reports, logs, failures, uploads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradient import protocol as wire
from tests.support.nix_store import NixStore
from tests.support.scripted_server import Connection, ScriptedServer
from tests.worker.conftest import AgentFactory
from tests.worker.drvs import Made, make_drv
from worker.narinfo import parse_narinfo
from worker.nix.store_path import hash_part

pytestmark = pytest.mark.nix


def events(connection: Connection, assignment: int) -> list[Any]:
    return [
        message.event
        for message in connection.received
        if isinstance(message, wire.Report) and message.assignment == assignment
    ]


async def built(server: ScriptedServer, connection: Connection, made: Made, **limits: int) -> int:
    number = await server.assign(connection, made.job(**limits))
    await connection.expect_report(wire.JobCompleted, number)
    return number


async def failed(
    server: ScriptedServer, connection: Connection, made: Made, **limits: int
) -> wire.JobFailed:
    number = await server.assign(connection, made.job(**limits))
    return await connection.expect_report(wire.JobFailed, number)


async def test_a_build_reports_its_steps_and_uploads_every_output(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv(
        "two-outputs", "echo one > $out; echo $out > $dev; echo said", outputs=("out", "dev")
    ).put(server)
    await start_worker()
    connection = await server.accepted()
    number = await built(server, connection, made)
    reports = events(connection, number)
    assert [type(event) for event in reports] == [
        wire.Building,
        wire.Building,
        wire.BuildOutput,
        wire.JobCompleted,
    ]
    assert [event.builder_started for event in reports[:2]] == [False, True]
    assert not reports[2].substituted
    assert reports[2].metrics is not None
    assert reports[2].metrics.output_bytes > 0
    paths = {name: output.path for name, output in made.derivation.outputs.items()}
    infos = {
        name: parse_narinfo(server.narinfos[hash_part(path)], path) for name, path in paths.items()
    }
    assert infos["dev"].info.references == {paths["out"]}
    assert infos["dev"].info.deriver == made.path
    assert all(info.url in server.objects for info in infos.values())


async def test_inputs_come_from_the_cache_with_all_they_refer_to_and_drvs_are_not_imported(
    server: ScriptedServer, start_worker: AgentFactory, store: NixStore, tmp_path: Path
) -> None:
    low = make_drv("low", "echo low > $out").put(server)
    middle = make_drv(
        "middle",
        f"cat {low.out} > /dev/null; echo {low.out} > $out",
        {low.path: frozenset(["out"])},
    ).put(server)
    top = make_drv("top", f"cat $(cat {middle.out}) > $out", {middle.path: frozenset(["out"])}).put(
        server
    )
    agent = await start_worker()
    first = await server.accepted()
    await built(server, first, low)
    await built(server, first, middle)
    agent.stop()
    await first.closed.wait()
    # Another machine: an empty store.
    with NixStore(tmp_path / "second").entered():
        agent = await start_worker(name="w2")
        second = await server.accepted()
        await built(server, second, top)
        assert Path(top.out).read_text() == "low\n"
        assert Path(low.out).exists()
        assert not Path(top.path).exists()
        assert not Path(middle.path).exists()
        agent.stop()
        await second.closed.wait()


async def test_outputs_that_are_there_already_are_not_built_again(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    made = make_drv("once", f"mktemp {meeting}/run-XXXXXX; echo x > $out").put(server)
    await start_worker()
    connection = await server.accepted()
    await built(server, connection, made)
    server.narinfos.pop(hash_part(made.out))
    number = await built(server, connection, made)
    assert len(list(meeting.glob("run-*"))) == 1
    outputs = [e for e in events(connection, number) if isinstance(e, wire.BuildOutput)]
    assert [event.substituted for event in outputs] == [True]
    assert hash_part(made.out) in server.narinfos


async def test_a_builder_that_fails_is_a_verdict_and_its_log_is_complete(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("fails", "echo why; echo last words >&2; exit 3").put(server)
    await start_worker()
    connection = await server.accepted()
    end = await failed(server, connection, made)
    assert end.outcome_class == "builder_failed"
    assert "exit code 3" in end.error
    log = b"".join(m.data for m in connection.received if isinstance(m, wire.LogFrame))
    assert log == b"why\nlast words\n"
    # All of the log came before the word that ends the assignment.
    kinds = [type(m) for m in connection.received]
    last_report = max(i for i, m in enumerate(connection.received) if isinstance(m, wire.Report))
    assert wire.LogFrame not in kinds[last_report:]


async def test_an_input_that_the_cache_lacks_is_named(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    low = make_drv("absent-low", "echo low > $out").put(server)
    top = make_drv("absent-top", "true", {low.path: frozenset(["out"])}).put(server)
    await start_worker()
    connection = await server.accepted()
    end = await failed(server, connection, top)
    assert (end.outcome_class, end.missing_paths) == ("missing_input", [low.out])


async def test_a_drv_that_the_cache_lacks_is_named(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("absent", "true")
    await start_worker()
    connection = await server.accepted()
    end = await failed(server, connection, made)
    assert (end.outcome_class, end.missing_paths) == ("missing_input", [made.path])


async def test_a_drv_with_another_text_than_its_name_says_is_not_built(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("honest", "true")
    other = make_drv("other", "echo evil > $out")
    Made(made.path, other.text, other.derivation).put(server)
    await start_worker()
    connection = await server.accepted()
    end = await failed(server, connection, made)
    assert (end.outcome_class, end.missing_paths) == ("missing_input", [made.path])
    assert "damaged" in end.error


async def test_a_damaged_input_is_missing(
    server: ScriptedServer, start_worker: AgentFactory, tmp_path: Path
) -> None:
    low = make_drv("damaged-low", "echo low > $out").put(server)
    top = make_drv("damaged-top", "true", {low.path: frozenset(["out"])}).put(server)
    agent = await start_worker()
    first = await server.accepted()
    await built(server, first, low)
    agent.stop()
    await first.closed.wait()
    narinfo = parse_narinfo(server.narinfos[hash_part(low.out)], low.out)
    server.objects[narinfo.url] = b"\0" * len(server.objects[narinfo.url])
    with NixStore(tmp_path / "second").entered():
        agent = await start_worker(name="w2")
        second = await server.accepted()
        end = await failed(server, second, top)
        agent.stop()
        await second.closed.wait()
    assert (end.outcome_class, end.missing_paths) == ("missing_input", [low.out])


@pytest.mark.parametrize(
    "script, limits, outcome",
    [
        ("while :; do echo on; sleep 0.1; done", {"timeout_secs": 1}, "timeout_total"),
        ("sleep 60", {"max_silent_secs": 1}, "timeout_silent"),
    ],
)
async def test_limits_of_the_job_end_a_build(
    server: ScriptedServer,
    start_worker: AgentFactory,
    script: str,
    limits: dict[str, int],
    outcome: str,
) -> None:
    made = make_drv(outcome.replace("_", "-"), script).put(server)
    await start_worker()
    connection = await server.accepted()
    assert (await failed(server, connection, made, **limits)).outcome_class == outcome


async def test_an_upload_is_tried_again_while_the_cache_is_away(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("patient", "echo x > $out").put(server)
    left = 3

    def refuse(method: str, name: str) -> int | None:
        nonlocal left
        if method == "PUT" and left:
            left -= 1
            return 503
        return None

    server.refuse = refuse
    await start_worker()
    connection = await server.accepted()
    await built(server, connection, made)
    assert left == 0


async def test_outputs_that_cannot_be_uploaded_are_no_failure_of_the_build(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("stuck", "echo x > $out").put(server)
    server.refuse = lambda method, name: 503 if method == "PUT" else None
    await start_worker()
    connection = await server.accepted(grace=1)
    end = await failed(server, connection, made)
    assert end.outcome_class == "upload_failed"
    assert made.out in end.error


async def test_an_output_that_the_cache_has_with_another_content_stays_as_it_is(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("taken", "echo mine > $out").put(server)
    await start_worker()
    connection = await server.accepted()
    await built(server, connection, made)
    theirs = server.narinfos[hash_part(made.out)]
    server.refuse = lambda method, name: 409 if method == "PUT" else None
    await built(server, connection, made)
    assert server.narinfos[hash_part(made.out)] == theirs


async def test_a_log_over_its_limit_keeps_both_ends(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv(
        "verbose", "yes 0123456 2> /dev/null | head -n 20000; echo the end; echo > $out"
    ).put(server)
    await start_worker()
    connection = await server.accepted()
    await built(server, connection, made, log_limit=16_000)
    log = b"".join(m.data for m in connection.received if isinstance(m, wire.LogFrame))
    assert log.startswith(b"0123456\n" * 1750)
    assert b"144008 bytes of log were dropped here" in log
    assert log.endswith(b"0123456\nthe end\n")


async def test_a_substitution_is_a_miss_where_there_is_no_upstream(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("upstream", "echo x > $out").put(server)
    await start_worker()
    connection = await server.accepted()
    job = msgspec.structs.replace(made.job(), build_kind="substitute")
    number = await server.assign(connection, job)
    end = await connection.expect_report(wire.JobFailed, number)
    assert end.outcome_class == "substitute_miss"


@pytest.mark.scenario(46)
async def test_a_transfer_that_does_not_end_delays_no_heartbeat_and_no_control_message(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    made = make_drv("large", "head -c 8000000 /dev/urandom > $out").put(server)
    server.uploads.clear()
    await start_worker()
    connection = await server.accepted(grace=2)
    number = await server.assign(connection, made.job())
    await connection.expect_report(wire.BuildOutput, number)
    before = await connection.expect(wire.Ping)
    await connection.expect(wire.Ping, lambda ping: ping.number > before.number + 2)
    assert not connection.closed.is_set()
    await connection.send(wire.AbortJob(assignment=number, reason="no longer needed"))
    end = await connection.expect_report(wire.JobFailed, number)
    assert end.outcome_class == "aborted"
    server.uploads.set()


async def test_the_next_build_runs_while_the_outputs_of_the_last_are_still_sent(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    one = make_drv("sent-slowly", "echo one > $out").put(server)
    two = make_drv("next", "echo two > $out").put(server)
    server.uploads.clear()
    await start_worker(build_slots=1)
    connection = await server.accepted()
    await connection.expect(wire.RequestJob, lambda m: m.kind == "build" and m.slots == 1)
    first = await server.assign(connection, one.job())
    await connection.expect_report(wire.BuildOutput, first)
    await connection.expect(wire.RequestJob, lambda m: m.kind == "build" and m.slots == 1)
    second = await server.assign(connection, two.job())
    await connection.expect_report(wire.BuildOutput, second)
    ended = [e for e in events(connection, first) if isinstance(e, wire.JobCompleted)]
    assert ended == []
    server.uploads.set()
    await connection.expect_report(wire.JobCompleted, first)
    await connection.expect_report(wire.JobCompleted, second)
    assert {hash_part(one.out), hash_part(two.out)} <= set(server.narinfos)
