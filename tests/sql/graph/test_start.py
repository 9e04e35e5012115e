"""What may start: gates, presence, closures, and what each arrival moves."""

from __future__ import annotations

import itertools

import pytest
from psycopg.types.json import Jsonb

from tests.support.graph_builder import derivation, drv_nar, nar, output_nars, source_nar
from tests.support.graph_world import World, refused, stray_nar

LEAF = derivation("leaf", sources=["leaf.c"])
TOP = derivation("top", LEAF)


def uncached(path: str) -> dict[str, object]:
    """A plain source's NAR that no assignment sends."""
    return {**source_nar(path), "caches": []}


@pytest.mark.scenario(10)
def test_a_build_waits_for_its_drv_file_and_is_queued_when_it_lands(world: World) -> None:
    evaluation = world.start_walk()
    assignment = world.assignments[f"eval:{evaluation}"]
    world.commit(source_nar(LEAF.sources[0], assignment=assignment))
    world.record(evaluation, [LEAF], [LEAF])
    assert world.status(LEAF) == "Created"
    assert world.ready() == set()
    world.commit(drv_nar(LEAF, assignment=assignment))
    assert world.status(LEAF) == "Queued"
    assert world.ready() == {"leaf"}


@pytest.mark.scenario(10)
def test_a_build_waits_for_each_of_its_sources(world: World) -> None:
    two = derivation("two", sources=["a", "b"])
    evaluation = world.start_walk()
    assignment = world.assignments[f"eval:{evaluation}"]
    world.commit(drv_nar(two, assignment=assignment))
    world.record(evaluation, [two], [two])
    assert world.build(two)["missing_sources"] == 2
    world.commit(source_nar(two.sources[0], assignment=assignment))
    assert (world.status(two), world.build(two)["missing_sources"]) == ("Created", 1)
    # The same NAR again counts once.
    world.commit(source_nar(two.sources[0], assignment=assignment))
    assert (world.status(two), world.build(two)["missing_sources"]) == ("Created", 1)
    world.commit(source_nar(two.sources[1], assignment=assignment))
    assert (world.status(two), world.build(two)["missing_sources"]) == ("Queued", 0)


def test_a_build_waits_for_its_inputs_and_is_queued_by_the_last(world: World) -> None:
    other = derivation("other")
    both = derivation("both", LEAF, other)
    world.evaluate(LEAF, other, both)
    assert world.statuses(LEAF, other, both) == ["Queued", "Queued", "Created"]
    world.run(LEAF)
    assert (world.status(both), world.build(both)["blocking_deps"]) == ("Created", 1)
    world.run(other)
    assert (world.status(both), world.build(both)["blocking_deps"]) == ("Queued", 0)


def test_uploaded_outputs_alone_release_nothing(world: World) -> None:
    world.evaluate(LEAF, TOP)
    world.start(LEAF)
    world.upload_outputs(LEAF)
    assert world.status(LEAF) == "Building"
    assert not world.build(LEAF)["fetchable"]
    assert world.status(TOP) == "Created"
    world.complete(LEAF)
    assert world.build(LEAF)["fetchable"]
    assert world.status(TOP) == "Queued"


def test_an_output_is_complete_only_with_everything_it_refers_to(world: World) -> None:
    runtime = derivation("runtime")
    world.evaluate(LEAF, runtime)
    user = derivation("user", LEAF)
    world.evaluate(user)
    world.run(LEAF, *runtime.outputs.values())
    assert world.status(LEAF) == "Completed"
    assert world.build(LEAF)["missing_runtime_deps"] == 1
    assert not world.build(LEAF)["fetchable"]
    assert world.status(user) == "Created"
    world.run(runtime)
    assert world.build(LEAF)["fetchable"]
    assert world.status(user) == "Queued"


def test_completeness_climbs_every_level_of_a_chain_at_once(world: World) -> None:
    chain = [derivation("level-0")]
    for level in range(1, 12):
        chain.append(derivation(f"level-{level}", chain[-1]))
    world.evaluate(*chain)
    base = derivation("base")
    world.evaluate(base)
    # The lowest output refers to one that is not built, each other to the one below it.
    world.run(chain[0], *base.outputs.values())
    assert not world.build(chain[0])["fetchable"]
    assert world.status(chain[1]) == "Created"
    world.run(base)
    assert world.build(chain[0])["fetchable"]
    for below, drv in itertools.pairwise(chain):
        world.run(drv, *below.outputs.values())
    assert all(world.build(drv)["fetchable"] for drv in chain)


def test_a_reference_recorded_before_its_producer_is_walked_is_adopted(world: World) -> None:
    late = derivation("late")
    world.evaluate(LEAF)
    world.run(LEAF, *late.outputs.values())
    assert world.build(LEAF)["fetchable"], "nobody says yet that the path has a producer"
    world.evaluate(late)
    assert world.build(LEAF)["missing_runtime_deps"] == 1
    assert not world.build(LEAF)["fetchable"]
    world.run(late)
    assert world.build(LEAF)["fetchable"]


def test_a_derivation_with_several_outputs_is_present_with_the_last_of_them(world: World) -> None:
    many = derivation("many", outputs=("out", "dev", "doc"))
    user = derivation("user", many)
    world.evaluate(many, user)
    world.start(many)
    world.upload_outputs(many, outputs=["out", "doc"])
    world.complete(many)
    assert world.status(many) == "FailedTransient"
    world.later(minutes=10)
    world.message("select graph.requeue()")
    world.start(many)
    world.upload_outputs(many, outputs=["dev"])
    world.complete(many)
    assert world.statuses(many, user) == ["Completed", "Queued"]


@pytest.mark.scenario(6)
def test_a_derivation_without_outputs_never_counts_as_present(world: World) -> None:
    empty = derivation("empty", outputs=())
    user = derivation("user", empty)
    world.evaluate(empty, user)
    world.start(empty)
    world.complete(empty)
    assert not world.build(empty)["fetchable"]
    assert world.status(user) != "Queued"


@pytest.mark.scenario(6)
def test_an_input_without_a_shared_build_blocks(world: World) -> None:
    evaluation = world.start_walk()
    world.record(evaluation, [TOP, LEAF], [TOP])
    # An edge to a derivation that has no shared build, as a crash of some other tool leaves it.
    world.conn.execute(
        "with gone as (insert into gradient.derivation (hash, name, created_at)"
        " values (repeat('0', 32), 'gone', now()) returning id)"
        " insert into gradient.derivation_dependency (derivation, dependency, kind)"
        " select %s, id, 'Build' from gone",
        [world.id(LEAF)],
    )
    world.conn.execute(
        "update gradient.derivation set unwalked_inputs = 1 where id = %s", [world.id(LEAF)]
    )
    world.message("select graph.seed_blocking_deps(%s)", [world.id(LEAF)])
    assert world.build(LEAF)["blocking_deps"] == 1
    world.upload(evaluation, LEAF, TOP)
    assert world.statuses(LEAF, TOP) == ["Created", "Created"]


@pytest.mark.scenario(6)
def test_an_unprobed_build_is_not_queued(world: World) -> None:
    cache = world.value("select cache from gradient.project_cache")
    world.conn.execute(
        "insert into gradient.cache_upstream (cache, display_name, url, public_key)"
        " values (%s, 'upstream', 'https://cache.example.org', 'key')",
        [cache],
    )
    evaluation = world.start_walk()
    alone = derivation("alone")
    world.upload(evaluation, LEAF, TOP, alone)
    world.record(evaluation, [LEAF, TOP, alone], [TOP, alone])
    assert not world.build(alone)["probed"]
    assert world.statuses(LEAF, TOP, alone) == ["Created", "Created", "Created"]
    assert not world.build(LEAF)["wanted"], "need stops at an unprobed build"


def test_without_an_upstream_every_build_counts_as_probed(world: World) -> None:
    world.evaluate(LEAF)
    assert world.build(LEAF)["probed"]


@pytest.mark.scenario(17)
def test_what_nobody_wants_is_skipped_and_thaws_when_it_is_wanted(world: World) -> None:
    helper = derivation("helper")
    middle = derivation("middle", helper)
    world.evaluate(helper, middle, entry_points=[])
    assert world.statuses(helper, middle) == ["Skipped", "Skipped"]
    assert world.ready() == set()
    user = derivation("user", middle)
    world.evaluate(user)
    assert world.statuses(helper, middle, user) == ["Queued", "Created", "Created"]


def test_an_evaluation_of_unwanted_builds_only_is_completed(world: World) -> None:
    evaluation = world.evaluate(LEAF, entry_points=[])
    assert world.evaluation_status(evaluation) == "Completed"


@pytest.mark.scenario(18)
def test_queued_builds_pass_every_gate_after_each_step_of_a_diamond(world: World) -> None:
    left, right = derivation("left", LEAF), derivation("right", LEAF)
    peak = derivation("peak", left, right)
    evaluation = world.evaluate(LEAF, left, right, peak, entry_points=[peak])
    for drv in (LEAF, left, right, peak):
        # violations() is checked after every message of this.
        world.run(drv)
    assert world.evaluation_status(evaluation) == "Completed"


def test_ready_builds_are_sorted_into_classes(world: World) -> None:
    plain = derivation("plain")
    picky = derivation("picky", features=("kvm", "big-parallel", "kvm"))
    fetched = derivation("fetched", architecture="builtin", is_fixed_output=True)
    world.evaluate(plain, picky, fetched)
    classes = world.rows(
        "select d.name, c.architecture, c.required_features from gradient.ready_build r"
        " join gradient.derivation d on d.id = r.derivation_build"
        " join gradient.build_class c on c.id = r.class order by 1"
    )
    assert [(c["name"], c["architecture"], c["required_features"]) for c in classes] == [
        ("fetched", "builtin", []),
        ("picky", "x86_64-linux", ["big-parallel", "kvm"]),
        ("plain", "x86_64-linux", []),
    ]


# NARs -----------------------------------------------------------------------------------------


def test_a_backed_path_keeps_its_nar(world: World) -> None:
    path = LEAF.sources[0]
    assert world.commit(uncached(path))[0]["created"]
    assert not world.commit(uncached(path))[0]["created"]
    other = {**uncached(path), "nar_hash": stray_nar("x")["nar_hash"]}
    with refused("GR007", path):
        world.commit(other)


def test_a_build_may_upload_only_its_own_outputs(world: World) -> None:
    world.evaluate(LEAF, TOP)
    assignment = world.assign(LEAF)
    path = TOP.outputs["out"]
    with refused("GR006", path):
        world.commit(nar(path, assignment=assignment))
    assert world.value("select count(*) from gradient.cached_path where package = 'top'") == 0


def test_an_evaluation_may_not_upload_outputs(world: World) -> None:
    evaluation = world.start_walk()
    world.record(evaluation, [LEAF], [LEAF])
    with refused("GR006"):
        world.commit(*output_nars(LEAF, assignment=world.assignments[f"eval:{evaluation}"]))


def test_a_closed_assignment_may_upload_nothing(world: World) -> None:
    evaluation = world.evaluate(LEAF)
    world.run(LEAF)
    with refused("GR003"):
        world.commit(*output_nars(LEAF, assignment=world.assignments[world.job(LEAF)]))
    with refused("GR003"):
        world.commit(drv_nar(TOP, assignment=world.assignments[f"eval:{evaluation}"]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "/nix/store/nothing"},
        {"file_hash": "sha256:short"},
        {"nar_hash": "md5:" + "0" * 32},
        {"references": ["/nix/store/" + "0" * 32 + "-x"]},
        {"nar_size": -1},
    ],
)
def test_a_malformed_nar_is_refused_and_changes_nothing(
    world: World, wrong: dict[str, object]
) -> None:
    before = world.value("select count(*) from gradient.cached_path")
    good = uncached(LEAF.sources[0])
    with refused("GR005"):
        world.commit(stray_nar(TOP.path), {**good, **wrong})
    assert world.value("select count(*) from gradient.cached_path") == before


def test_an_upload_is_claimed_for_every_cache_its_project_writes(world: World) -> None:
    project = world.value("select id from gradient.project")
    own = world.value("select cache from gradient.project_cache")
    read_only, write_only, foreign = (world.cache(n) for n in ("readonly", "writeonly", "foreign"))
    world.subscribe(project, read_only, "ReadOnly")
    world.subscribe(project, write_only, "WriteOnly")
    world.evaluate(LEAF)
    world.run(LEAF)
    expected = {LEAF.path, LEAF.sources[0], LEAF.outputs["out"]}
    assert expected <= world.claims(own)
    assert expected <= world.claims(write_only)
    assert world.claims(read_only) == world.claims(foreign) == set()


@pytest.mark.scenario(58)
def test_what_a_user_pushed_at_an_output_path_backs_no_build(world: World) -> None:
    world.evaluate(LEAF, TOP)
    cache = world.value("select cache from gradient.project_cache")
    pushed = nar(LEAF.outputs["out"], content="not what the build makes")
    world.message("select graph.push_path(%s, %s)", cache, Jsonb(pushed))
    assert not world.build(LEAF)["fetchable"]
    assert world.statuses(LEAF, TOP) == ["Queued", "Created"]
    world.run(LEAF)
    assert world.statuses(LEAF, TOP) == ["Completed", "Queued"]
