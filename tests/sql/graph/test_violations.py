"""gradient.violations() finds each invariant that is broken by hand."""

from __future__ import annotations

from typing import LiteralString

import pytest

from tests.support.graph_builder import derivation
from tests.support.graph_world import World

LIBRARY = derivation("library", sources=["library.c"], outputs=("out", "dev"))
BROKEN = derivation("broken", LIBRARY)
PROGRAM = derivation("program", LIBRARY, sources=["main.c"])
ABOVE_BROKEN = derivation("above-broken", BROKEN)
RUNNING = derivation("running", LIBRARY)
WAITING = derivation("waiting", RUNNING, PROGRAM)
FLAKY = derivation("flaky", LIBRARY)
DONE = derivation("done", LIBRARY)
QUEUED = derivation("queued", LIBRARY, sources=["queued.c"])


@pytest.fixture
def busy(world: World) -> World:
    """One completed evaluation, and one in the middle of everything."""
    world.start_walk(first := world.evaluation())
    world.upload(first, LIBRARY, DONE)
    world.record(first, [LIBRARY, DONE], [DONE])
    world.complete_walk(first)
    world.run(LIBRARY)
    world.run(DONE, *LIBRARY.outputs.values())
    assert world.evaluation_status(first) == "Completed"

    world.evaluate(BROKEN, ABOVE_BROKEN, PROGRAM, RUNNING, WAITING, FLAKY)
    world.fail(BROKEN)
    world.fail(FLAKY, "network")
    world.start(RUNNING)
    # The last one stays ready: nothing is handed out after it.
    walking = world.start_walk()
    world.upload(walking, QUEUED)
    world.record(walking, [QUEUED], [QUEUED])
    return world


# What breaks which rule; %(name)s is the id of the derivation called so.
BREAKS: list[tuple[str, LiteralString]] = [
    ("drv_present", "update gradient.derivation set drv_present = false where id = %(done)s"),
    (
        "drv_present",
        (
            "delete from gradient.cached_path where hash ="
            " (select hash from gradient.derivation where id = %(done)s)"
        ),
    ),
    ("unwalked_inputs", "update gradient.derivation set unwalked_inputs = 1 where id = %(done)s"),
    ("unwalked_inputs", "update gradient.derivation set walked = false where id = %(library)s"),
    (
        "output_backing",
        "update gradient.derivation_output set cached_path = null where derivation = %(done)s",
    ),
    (
        "output_backing",
        (
            "update gradient.derivation_output set cached_path ="
            " (select min(id) from gradient.cached_path) where derivation = %(program)s"
        ),
    ),
    (
        "runtime_edge",
        (
            "update gradient.derivation_dependency set kind = 'Build'"
            " where derivation = %(done)s and dependency = %(library)s"
        ),
    ),
    (
        "missing_sources",
        "update gradient.derivation_build set missing_sources = 1 where derivation = %(program)s",
    ),
    (
        "missing_sources",
        (
            "insert into gradient.derivation_input_source (derivation, hash, package)"
            " values (%(program)s, '00000000000000000000000000000000', 'gone')"
        ),
    ),
    (
        "missing_runtime_deps",
        (
            "update gradient.derivation_build set missing_runtime_deps = 1"
            " where derivation = %(done)s"
        ),
    ),
    (
        "missing_runtime_deps",
        (
            "insert into gradient.derivation_dependency (derivation, dependency, kind)"
            " values (%(done)s, %(waiting)s, 'Runtime')"
        ),
    ),
    (
        "fetchable",
        "update gradient.derivation_build set fetchable = false where derivation = %(done)s",
    ),
    (
        "fetchable",
        "update gradient.derivation_build set fetchable = true where derivation = %(flaky)s",
    ),
    (
        "fetchable",
        (
            "update gradient.derivation_output set name = 'gone',"
            " hash = '00000000000000000000000000000000', cached_path = null"
            " where derivation = %(library)s and name = 'dev'"
        ),
    ),
    (
        "blocking_deps",
        "update gradient.derivation_build set blocking_deps = 0 where derivation = %(waiting)s",
    ),
    ("blocking_deps", "delete from gradient.derivation_build where derivation = %(library)s"),
    (
        "wanted",
        "update gradient.derivation_build set wanted = false where derivation = %(waiting)s",
    ),
    ("wanted", "update gradient.derivation_build set wanted = true where derivation = %(done)s"),
    (
        "wanted",
        (
            "update gradient.evaluation set status = 'Aborted', finished_at = now()"
            " where status = 'Building'"
        ),
    ),
    ("wanted", "update gradient.build_job set aborted = true where derivation_build = %(waiting)s"),
    ("wanted_unnamed", "delete from gradient.build_job where derivation_build = %(waiting)s"),
    ("entry_point_unnamed", "delete from gradient.build_job where derivation_build = %(done)s"),
    (
        "skipped",
        "update gradient.derivation_build set status = 'Skipped' where derivation = %(done)s",
    ),
    (
        "unwanted_not_skipped",
        (
            "with gone as (delete from gradient.entry_point where derivation = %(waiting)s)"
            " update gradient.derivation_build set wanted = false where derivation = %(waiting)s"
        ),
    ),
    (
        "queued_gates",
        "update gradient.derivation_build set status = 'Queued' where derivation = %(waiting)s",
    ),
    (
        "queued_gates",
        "update gradient.derivation_build set probed = false where derivation = %(queued)s",
    ),
    (
        "promotable_not_queued",
        "update gradient.derivation_build set status = 'Created' where derivation = %(queued)s",
    ),
    ("ready_build", "delete from gradient.ready_build where derivation_build = %(queued)s"),
    (
        "ready_build",
        (
            "update gradient.build_class set architecture = 'riscv64-linux'"
            " where architecture = 'x86_64-linux'"
        ),
    ),
    (
        "ready_build",
        (
            "update gradient.build_class set required_features = '{kvm}'"
            " where architecture = 'x86_64-linux'"
        ),
    ),
    (
        "ready_build",
        (
            "insert into gradient.ready_build"
            " (derivation_build, project, class, queued_at, offer_generation)"
            " select %(waiting)s, project, class, queued_at, offer_generation"
            " from gradient.ready_build limit 1"
        ),
    ),
    (
        "retry_at",
        "update gradient.derivation_build set retry_at = null where derivation = %(flaky)s",
    ),
    (
        "retry_at",
        "update gradient.derivation_build set retry_at = now() where derivation = %(done)s",
    ),
    (
        "failed_by",
        "update gradient.derivation_build set failed_by = null where derivation = %(above-broken)s",
    ),
    (
        "failed_by",
        (
            "update gradient.derivation_build set failed_by ="
            " (select max(id) from gradient.build_attempt where derivation_build = %(done)s)"
            " where derivation = %(above-broken)s"
        ),
    ),
    (
        "failed_by",
        "delete from gradient.derivation_dependency where derivation = %(above-broken)s",
    ),
    (
        "failed_by",
        (
            "update gradient.derivation_build set failed_by ="
            " (select min(id) from gradient.build_attempt) where derivation = %(waiting)s"
        ),
    ),
    (
        "waits_for_failure",
        (
            "update gradient.derivation_build"
            " set status = 'Created', failed_by = null, wanted = true"
            " where derivation = %(above-broken)s"
        ),
    ),
    (
        "building_assigned",
        (
            "update gradient.dispatched_job set finished_at = now(), outcome = 'Abandoned'"
            " where derivation_build = %(running)s"
        ),
    ),
    (
        "building_assigned",
        (
            "update gradient.build_attempt set outcome = 'Aborted'"
            " where derivation_build = %(running)s"
        ),
    ),
    (
        "build_assignment",
        "update gradient.derivation_build set status = 'Created' where derivation = %(running)s",
    ),
    (
        "running_attempt",
        "update gradient.build_attempt set outcome = 'Running' where derivation_build = %(done)s",
    ),
    (
        "running_attempt",
        (
            "update gradient.build_attempt set dispatched_job = null"
            " where derivation_build = %(running)s"
        ),
    ),
    (
        "assignment_job",
        "update gradient.dispatched_job set job = 'build:0' where derivation_build = %(running)s",
    ),
    (
        "evaluation_assignment",
        "update gradient.evaluation set status = 'Building' where status = 'EvaluatingDerivation'",
    ),
    (
        "evaluating_assigned",
        (
            "update gradient.dispatched_job set finished_at = now(), outcome = 'Abandoned'"
            " where kind = 'Evaluation' and finished_at is null"
        ),
    ),
    (
        "evaluation_named",
        (
            "update gradient.evaluation set named_shared_builds = named_shared_builds + 1"
            " where status = 'Building'"
        ),
    ),
    (
        "evaluation_active",
        (
            "update gradient.evaluation set active_shared_builds = active_shared_builds + 1"
            " where status = 'Building'"
        ),
    ),
    (
        "evaluation_failed",
        (
            "update gradient.evaluation set failed_shared_builds = failed_shared_builds + 1"
            " where status = 'Building'"
        ),
    ),
    (
        "evaluation_queued",
        (
            "insert into gradient.evaluation_shared_build_delta"
            " (evaluation, named, active, failed, queued, building)"
            " select id, 0, 0, 0, 1, 0 from gradient.evaluation where status = 'Building'"
        ),
    ),
    (
        "evaluation_building",
        (
            "update gradient.evaluation set building_shared_builds = building_shared_builds + 1"
            " where status = 'Building'"
        ),
    ),
    (
        "verdict_missing",
        (
            "update gradient.evaluation set status = 'Building', finished_at = null"
            " where status = 'Completed'"
        ),
    ),
    (
        "completed_with_error",
        (
            "insert into gradient.evaluation_message"
            " (evaluation, level, message, source, created_at)"
            " select id, 'Error', 'bad', 'nix-eval', now() from gradient.evaluation"
            " where status = 'Completed'"
        ),
    ),
    (
        "completed_with_failure",
        (
            "update gradient.derivation_build set status = 'FailedPermanent',"
            " updated_at = updated_at - interval '1 day' where derivation = %(done)s"
        ),
    ),
    (
        "aborted_runs",
        (
            "with aborted as (update gradient.evaluation"
            " set status = 'Aborted', finished_at = now() where status = 'Building')"
            " update gradient.derivation_build set wanted = false where derivation = %(running)s"
        ),
    ),
    (
        "claim",
        (
            "delete from gradient.cached_path_signature where cached_path ="
            " (select o.cached_path from gradient.derivation_output o"
            " where o.derivation = %(library)s and o.name = 'dev')"
        ),
    ),
    (
        "drift",
        (
            "insert into gradient.drift (at, counter, derivation, stored, recounted, context)"
            " values (now(), 'blocking_deps', %(done)s, -1, 0, 'test')"
        ),
    ),
]


@pytest.mark.parametrize(
    ("rule", "breaking"), BREAKS, ids=[f"{r}-{n}" for n, (r, _) in enumerate(BREAKS)]
)
def test_a_broken_invariant_is_found(busy: World, rule: str, breaking: LiteralString) -> None:
    ids = {
        drv.name: busy.id(drv)
        for drv in (LIBRARY, BROKEN, PROGRAM, ABOVE_BROKEN, RUNNING, WAITING, FLAKY, DONE, QUEUED)
    }
    # What is broken here must be gone before the fixture's own check.
    with busy.conn.transaction(force_rollback=True):
        changed = busy.conn.execute(breaking, ids).rowcount
        assert changed > 0, "the statement broke nothing"
        found = {row["rule"] for row in busy.rows("select rule from gradient.violations()")}
    assert rule in found


def test_an_empty_database_breaks_nothing(world: World) -> None:
    assert world.rows("select * from gradient.violations()") == []
