"""The session: greeting, heartbeat, silence, resume, refusal, stopping."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from gradient import protocol as wire
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import wait_until
from tests.worker.conftest import AgentFactory
from tests.worker.drvs import Made, make_drv
from worker.session import http_url, websocket_url

pytestmark = pytest.mark.nix


async def until(is_so: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait in a thread, so that the worker of this process goes on."""
    await asyncio.to_thread(lambda: wait_until(is_so, timeout))


def waiting_drv(name: str, marker: Path, release: Path) -> Made:
    """A builder that says that it runs, and ends when it is told."""
    return make_drv(
        name,
        f"echo started; : > {marker}; while [ ! -e {release} ]; do sleep 0.05; done;"
        " echo released; echo done > $out",
    )


@pytest.mark.parametrize(
    "given, control, bulk",
    [
        ("http://ci:8420", "ws://ci:8420/proto", "http://ci:8420"),
        ("https://ci/gradient/", "wss://ci/gradient/proto", "https://ci/gradient"),
        ("ws://ci:1/proto", "ws://ci:1/proto", "http://ci:1"),
        ("ci:8420", "ws://ci:8420/proto", "http://ci:8420"),
    ],
)
def test_one_address_gives_control_and_bulk(given: str, control: str, bulk: str) -> None:
    assert websocket_url(given) == control
    assert http_url(given) == bulk


async def test_the_greeting_tells_capabilities_and_asks_for_each_free_slot(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    await start_worker(build_slots=3, eval_slots=2)
    connection = await server.connection()
    hello = await connection.expect(wire.InitConnection)
    assert (hello.worker_id, hello.can_build, hello.can_eval) == ("w1", True, True)
    await connection.send(
        wire.InitAck(
            projects=["main"],
            can_fetch=True,
            can_eval=False,
            can_build=True,
            worker_grace_secs=120,
        )
    )
    capabilities = await connection.expect(wire.WorkerCapabilities)
    assert "x86_64-linux" in capabilities.architectures
    assert (capabilities.build_slots, capabilities.eval_slots) == (3, 2)
    assert (await connection.expect(wire.RunningJobs)).jobs == []
    await connection.send(wire.ResumeAck(keep=[], stop=[]))
    await connection.expect(wire.RequestJobList)
    request = await connection.expect(wire.RequestJob)
    assert (request.kind, request.slots) == ("build", 3)
    await connection.expect(wire.Ping)
    # What the registration does not allow is not asked for.
    assert all(m.kind == "build" for m in connection.received if isinstance(m, wire.RequestJob))


async def test_a_silent_server_is_left_after_the_grace(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    await start_worker()
    connection = await server.connection()
    connection.pong = False
    await connection.welcome(grace=1)
    await asyncio.wait_for(connection.closed.wait(), 10)
    await server.accepted()


async def test_a_refusal_is_tried_again_with_growing_pauses_and_only_service_resets_them(
    server: ScriptedServer, start_worker: AgentFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.session.FIRST_DELAY_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    await start_worker()
    refused: list[float] = []
    for _ in range(4):
        connection = await server.connection()
        await connection.expect(wire.InitConnection)
        refused.append(loop.time())
        await connection.send(wire.Reject(code=401, reason="no valid token"))
        await connection.closed.wait()
    pauses = [later - earlier for earlier, later in itertools.pairwise(refused)]
    assert pauses[0] >= 0.1
    assert pauses[1] >= 0.2
    assert pauses[2] >= 0.4
    served = await server.accepted()
    await served.expect(wire.RequestJobList)
    await served.cut()
    gone = loop.time()
    await server.connection()
    assert loop.time() - gone < 0.8


async def test_a_build_goes_on_through_a_lost_connection_and_its_reports_come_in_order(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker, release = meeting / "marker", meeting / "release"
    made = waiting_drv("through", marker, release).put(server)
    await start_worker()
    first = await server.accepted()
    first.acknowledge = False
    number = await server.assign(first, made.job())
    await until(marker.exists)
    await first.expect_report(wire.Building, number)
    await first.cut()
    release.touch()
    second = await server.connection()
    running = await second.welcome()
    assert [job.assignment for job in running.jobs] == [number]
    await second.expect_report(wire.JobCompleted, number)
    numbers = [m.number for m in second.received if isinstance(m, wire.Report)]
    assert numbers == list(range(1, len(numbers) + 1))
    log = b"".join(m.data for m in second.received if isinstance(m, wire.LogFrame))
    assert log == b"started\nreleased\n"


async def test_acknowledged_reports_are_not_sent_again(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker, release = meeting / "marker", meeting / "release"
    made = waiting_drv("acknowledged", marker, release).put(server)
    await start_worker()
    first = await server.accepted()
    number = await server.assign(first, made.job())
    await first.expect(
        wire.Report, lambda r: isinstance(r.event, wire.Building) and r.event.builder_started
    )
    last = max(m.number for m in first.received if isinstance(m, wire.Report))
    # The acknowledgement is behind the report on the same socket; a Pong behind it shows it came.
    await first.expect(wire.LogFrame)
    await first.cut()
    second = await server.accepted()
    release.touch()
    await second.expect_report(wire.JobCompleted, number)
    again = min(m.number for m in second.received if isinstance(m, wire.Report))
    assert again >= last


async def test_an_assignment_that_the_server_closed_is_stopped_and_not_reported(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker, release = meeting / "marker", meeting / "never"
    made = waiting_drv("closed", marker, release).put(server)
    agent = await start_worker()
    first = await server.accepted()
    number = await server.assign(first, made.job())
    await until(marker.exists)
    await first.cut()
    second = await server.connection()
    running = await second.welcome(keep=[])
    assert [job.assignment for job in running.jobs] == [number]
    request = await second.expect(wire.RequestJob, lambda m: m.kind == "build" and m.slots == 1)
    assert request
    await until(lambda: not agent.channels)
    assert not second.has(wire.Report)


async def test_a_stale_assignment_is_stopped_and_not_reported(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker = meeting / "marker"
    made = waiting_drv("stale", marker, meeting / "never").put(server)
    agent = await start_worker()
    connection = await server.accepted()
    number = await server.assign(connection, made.job())
    await until(marker.exists)
    await connection.send(wire.StaleAssignment(assignment=number, reason="GR003"))
    await until(lambda: not agent.channels)
    ends = [
        m
        for m in connection.received
        if isinstance(m, wire.Report) and isinstance(m.event, wire.JobFailed | wire.JobCompleted)
    ]
    assert ends == []


async def test_an_aborted_job_is_stopped_and_reported_as_aborted(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker = meeting / "marker"
    made = waiting_drv("aborted", marker, meeting / "never").put(server)
    await start_worker()
    connection = await server.accepted()
    number = await server.assign(connection, made.job())
    await until(marker.exists)
    await connection.send(wire.AbortJob(assignment=number, reason="a user said so"))
    end = await connection.expect_report(wire.JobFailed, number)
    assert (end.outcome_class, end.error) == ("aborted", "a user said so")


async def test_a_stopping_worker_announces_it_hands_its_jobs_back_and_leaves(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker = meeting / "marker"
    made = waiting_drv("stopping", marker, meeting / "never").put(server)
    agent = await start_worker()
    connection = await server.accepted()
    number = await server.assign(connection, made.job())
    await until(marker.exists)
    agent.stop()
    await connection.expect(wire.Draining)
    end = await connection.expect_report(wire.JobFailed, number)
    assert end.outcome_class == "worker_stopping"
    await asyncio.wait_for(connection.closed.wait(), 10)
    requests = [m for m in connection.received if isinstance(m, wire.RequestJob)]
    assert {r.kind: r.slots for r in requests} == {"build": 0, "evaluation": 0}


async def test_a_worker_that_no_server_confirms_for_the_grace_stops_its_builders(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker = meeting / "marker"
    made = waiting_drv("unconfirmed", marker, meeting / "never").put(server)
    agent = await start_worker()
    connection = await server.accepted(grace=2)
    await server.assign(connection, made.job())
    await until(marker.exists)
    await connection.cut()
    # Connections that are accepted but never served confirm nothing.
    await until(lambda: not agent.channels)
    later = await server.connection()
    while later.closed.is_set():
        later = await server.connection()
    assert (await later.welcome()).jobs == []


async def test_a_full_worker_refuses_with_a_reason(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    never = meeting / "never"
    await start_worker(build_slots=1)
    connection = await server.accepted()
    for index in range(2):
        made = waiting_drv(f"full-{index}", meeting / f"m{index}", never).put(server)
        await server.assign(connection, made.job())
    third = waiting_drv("full-2", meeting / "m2", never).put(server)
    with pytest.raises(AssertionError, match="slots are taken"):
        await server.assign(connection, third.job())


async def test_a_frame_that_is_no_message_ends_the_connection_and_not_the_worker(
    server: ScriptedServer, start_worker: AgentFactory
) -> None:
    await start_worker()
    first = await server.accepted()
    await first.send_text('{"type": "pong", "number": "seven"}')
    await asyncio.wait_for(first.closed.wait(), 10)
    await server.accepted()


async def test_offers_are_scored_by_what_this_machine_lacks(
    server: ScriptedServer, start_worker: AgentFactory, store: object
) -> None:
    made = make_drv("scored", "echo x > $out").put(server)
    await start_worker()
    connection = await server.accepted()
    candidate = wire.JobCandidate(
        job="build:1",
        kind="build",
        architecture="x86_64-linux",
        drv=made.path.removeprefix("/nix/store/"),
        outputs=[made.out],
    )
    await connection.send(wire.JobOffer(candidates=[candidate]))
    before = (await connection.expect(wire.JobScores)).scores[0]
    assert (before.missing_count, before.outputs_present) == (1, False)
    number = await server.assign(connection, made.job())
    await connection.expect_report(wire.JobCompleted, number)
    await connection.send(wire.JobOffer(candidates=[candidate]))
    after = (await connection.expect(wire.JobScores)).scores[0]
    assert (after.missing_count, after.outputs_present) == (0, True)


async def test_a_dropped_job_is_not_named_while_its_processes_are_still_ending(
    server: ScriptedServer, start_worker: AgentFactory, meeting: Path
) -> None:
    marker = meeting / "marker"
    made = waiting_drv("dropped", marker, meeting / "never").put(server)
    agent = await start_worker()
    connection = await server.accepted()
    number = await server.assign(connection, made.job())
    await until(marker.exists)
    agent.stop_job(number, report=False, reason="no longer ours")
    assert not agent.channels
    await connection.cut()
    assert (await (await server.connection()).welcome()).jobs == []
