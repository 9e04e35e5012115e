"""graph.record: derivations, edges, names, and what a batch cannot break."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from tests.support.database import Database
from tests.support.graph_builder import batch, derivation, drv_nar
from tests.support.graph_world import World, refused

SOURCE = derivation("source", sources=["a", "b"])
LIBRARY = derivation("library", SOURCE, outputs=("out", "dev"), features=("kvm", "big"))
PROGRAM = derivation("program", SOURCE, LIBRARY)


def shape(world: World) -> tuple[list[dict[str, object]], ...]:
    """What the graph holds, by names, without ids and times."""
    return (
        world.rows(
            "select d.hash, d.name, d.architecture, d.required_features, d.pname, d.walked,"
            " d.drv_present, d.unwalked_inputs, b.status, b.wanted, b.probed, b.fetchable,"
            " b.blocking_deps, b.missing_runtime_deps, b.missing_sources"
            " from gradient.derivation d left join gradient.derivation_build b"
            " on b.derivation = d.id order by 1, 2"
        ),
        world.rows(
            "select d.name, i.name as input, e.kind from gradient.derivation_dependency e"
            " join gradient.derivation d on d.id = e.derivation"
            " join gradient.derivation i on i.id = e.dependency order by 1, 2"
        ),
        world.rows(
            "select d.name, o.name as output, o.hash, o.package from gradient.derivation_output o"
            " join gradient.derivation d on d.id = o.derivation order by 1, 2"
        ),
        world.rows(
            "select d.name, s.hash, s.package from gradient.derivation_input_source s"
            " join gradient.derivation d on d.id = s.derivation order by 1, 2"
        ),
        world.rows(
            "select j.evaluation, d.name from gradient.build_job j"
            " join gradient.derivation d on d.id = j.derivation_build order by 1, 2"
        ),
    )


def test_everything_that_a_derivation_says_is_kept(world: World) -> None:
    evaluation = world.start_walk()
    limited = derivation("limited", timeout_secs=0, max_silent_secs=7, prefer_local_build=True,
                         allow_substitutes=False, ifd=True, is_fixed_output=True)  # fmt: skip
    world.record(evaluation, [SOURCE, LIBRARY, limited], [LIBRARY])
    row = world.derivation(LIBRARY)
    assert row["architecture"] == "x86_64-linux"
    assert row["required_features"] == ["big", "kvm"]
    assert row["pname"] == "library"
    assert row["walked"]
    outputs = world.rows(
        "select name, '/nix/store/' || hash || '-' || package as path"
        " from gradient.derivation_output where derivation = %s",
        world.id(LIBRARY),
    )
    assert {o["name"]: o["path"] for o in outputs} == dict(LIBRARY.outputs)
    sources = world.rows(
        "select '/nix/store/' || hash || '-' || package as path"
        " from gradient.derivation_input_source where derivation = %s",
        world.id(SOURCE),
    )
    assert {s["path"] for s in sources} == set(SOURCE.sources)
    row = world.derivation(limited)
    assert row["prefer_local_build"]
    assert row["ifd"]
    assert row["is_fixed_output"]
    assert not row["allow_substitutes"]
    assert world.build(limited)["timeout_secs"] == 0
    assert world.build(limited)["max_silent_secs"] == 7


def test_an_evaluation_names_what_a_batch_lists_and_its_direct_inputs(world: World) -> None:
    evaluation = world.start_walk()
    world.record(evaluation, [PROGRAM], [PROGRAM])
    names = world.rows(
        "select d.name from gradient.build_job j"
        " join gradient.derivation d on d.id = j.derivation_build where j.evaluation = %s",
        evaluation,
    )
    assert {n["name"] for n in names} == {"program", "library", "source"}
    entry_points = world.rows("select attribute, derivation from gradient.entry_point")
    assert entry_points == [{"attribute": "program", "derivation": world.id(PROGRAM)}]


def test_the_report_counts_what_was_walked(world: World) -> None:
    evaluation = world.start_walk()
    first = world.record(evaluation, [PROGRAM, SOURCE], [PROGRAM])
    again = world.record(evaluation, [PROGRAM, LIBRARY])
    assert (first["evaluation"], first["skipped"], first["walked"], first["entry_points"]) == (
        evaluation,
        False,
        2,
        1,
    )
    assert again["walked"] == 1


@pytest.mark.scenario(2)
def test_a_subtree_is_known_only_when_all_of_it_is_walked(world: World) -> None:
    child = derivation("child")
    parent = derivation("parent", child)
    first = world.start_walk()
    world.upload(first, parent)
    world.record(first, [parent], [parent])
    second = world.start_walk()

    def known() -> set[str]:
        rows = world.rows(
            "select k as drv from graph.known_derivations(%s, %s) as k",
            second,
            [parent.drv, child.drv],
        )
        return {row["drv"] for row in rows}

    assert known() == set()
    world.upload(second, child)
    world.record(second, [child])
    assert known() == {parent.drv, child.drv}


@pytest.mark.scenario(2)
@pytest.mark.parametrize("cut", range(4))
def test_a_walk_cut_at_any_batch_is_completed_by_the_next(world: World, cut: int) -> None:
    batches = [[PROGRAM], [LIBRARY], [SOURCE]]
    dying = world.start_walk()
    for drvs in batches[:cut]:
        world.upload(dying, *drvs)
        world.record(dying, drvs, [d for d in drvs if d is PROGRAM])
    world.message(
        "select graph.return_assignments(%s, 'worker_lost')",
        [world.assignments[f"eval:{dying}"]],
    )
    following = world.start_walk()
    for drvs in batches:
        world.upload(following, *drvs)
        world.record(following, drvs, [d for d in drvs if d is PROGRAM])
    world.complete_walk(following)
    for drv in (SOURCE, LIBRARY, PROGRAM):
        assert world.derivation(drv)["unwalked_inputs"] == 0
        assert world.derivation(drv)["walked"]
    assert world.status(SOURCE) == "Queued"


def test_a_derivation_without_its_drv_file_is_not_known(world: World) -> None:
    leaf = derivation("leaf")
    top = derivation("top", leaf)
    evaluation = world.start_walk()
    world.record(evaluation, [leaf, top], [top])
    query = "select k as drv from graph.known_derivations(%s, %s) as k"
    assert world.rows(query, evaluation, [leaf.drv, top.drv]) == []
    world.upload(evaluation, top)
    assert world.rows(query, evaluation, [leaf.drv, top.drv]) == []
    assert world.derivation(top)["unwalked_inputs"] == 1
    world.upload(evaluation, leaf)
    assert {r["drv"] for r in world.rows(query, evaluation, [leaf.drv, top.drv])} == {
        leaf.drv,
        top.drv,
    }


def test_a_full_walk_knows_nothing(world: World) -> None:
    leaf = derivation("leaf")
    world.evaluate(leaf)
    full = world.evaluation()
    world.conn.execute("update gradient.evaluation set walk_mode = 'Full' where id = %s", [full])
    query = "select graph.known_derivations(%s, %s)"
    assert world.rows(query, full, [leaf.drv]) == []


@pytest.mark.scenario(3)
def test_a_derivation_recorded_twice_is_recorded_once(world: World) -> None:
    evaluation = world.start_walk()
    world.upload(evaluation, SOURCE, LIBRARY, PROGRAM)
    world.record(evaluation, [PROGRAM, SOURCE, LIBRARY], [PROGRAM])
    once = shape(world)
    world.record(evaluation, [SOURCE, PROGRAM, SOURCE, LIBRARY, PROGRAM], [PROGRAM, PROGRAM])
    assert shape(world) == once
    world.record_all([batch(evaluation, [SOURCE, SOURCE]), batch(evaluation, [SOURCE, PROGRAM])])
    assert shape(world) == once


@pytest.mark.scenario(3)
def test_a_derivation_twice_in_its_first_batch_is_recorded_once(world: World) -> None:
    evaluation = world.start_walk()
    report = world.record(evaluation, [SOURCE, LIBRARY, SOURCE], [LIBRARY])
    assert world.value("select count(*) from gradient.derivation") == 2
    assert world.derivation(LIBRARY)["walked"]
    assert report["evaluation"] == evaluation


@pytest.mark.scenario(4)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
@pytest.mark.parametrize("uploaded_first", [True, False])
def test_parents_and_children_of_one_batch_count_each_other_in_any_order(
    world: World, order: tuple[int, ...], uploaded_first: bool
) -> None:
    drvs = [SOURCE, LIBRARY, PROGRAM]
    evaluation = world.start_walk()
    if uploaded_first:
        world.upload(evaluation, *drvs)
    world.record(evaluation, [drvs[place] for place in order], [PROGRAM])
    if not uploaded_first:
        world.upload(evaluation, *drvs)
    assert [world.build(d)["blocking_deps"] for d in drvs] == [0, 1, 2]
    assert [world.derivation(d)["unwalked_inputs"] for d in drvs] == [0, 0, 0]


@pytest.mark.scenario(9)
@pytest.mark.parametrize(
    "spoil",
    [
        {"outputs": [{"name": "out", "path": "/nix/store/not-a-path"}]},
        {"outputs": [{"name": "out", "path": "/tmp/" + "0" * 32 + "-x"}]},
        {"outputs": [{"name": "out", "path": "/nix/store/" + "e" * 32 + "-x"}]},
        {"dependencies": ["nonsense.drv"]},
        {"input_sources": ["/nix/store/../etc/passwd"]},
        {"drv": "short-x.drv"},
    ],
)
def test_a_malformed_path_refuses_its_batch_by_name(world: World, spoil: dict[str, object]) -> None:
    evaluation = world.start_walk()
    before = shape(world)
    spoiled = batch(evaluation, [SOURCE], [SOURCE])
    spoiled["derivations"].append({**LIBRARY.wire(), **spoil})
    [value] = spoil.values()
    path = value if isinstance(value, str) else value[0]  # type: ignore[index]
    with refused("GR005", path["path"] if isinstance(path, dict) else path):
        world.record_all([batch(evaluation, [PROGRAM]), spoiled])
    assert shape(world) == before


@pytest.mark.scenario(9)
def test_the_other_batches_of_a_flush_land(world: World) -> None:
    good, bad = world.start_walk(), world.start_walk()
    spoiled = batch(bad, [], [])
    spoiled["derivations"] = [{**LIBRARY.wire(), "dependencies": ["nonsense.drv"]}]
    with refused("GR005"):
        world.record_all([batch(good, [SOURCE], [SOURCE]), spoiled])
    # As the graph writer goes on: batch by batch, and the bad one's evaluation fails.
    world.record_all([batch(good, [SOURCE], [SOURCE])])
    with refused("GR005", "nonsense.drv"):
        world.record_all([spoiled])
    world.message(
        "select graph.fail_evaluation(%s, %s, %s)", bad, "malformed: nonsense.drv", "db-insert"
    )
    assert world.evaluation_status(bad) == "Failed"
    assert world.errors(bad) == ["malformed: nonsense.drv"]
    assert world.evaluation_status(good) == "EvaluatingDerivation"
    assert world.derivation(SOURCE)["walked"]


def test_a_batch_of_an_unknown_evaluation_is_refused(world: World) -> None:
    with refused("GR002", "4711"):
        world.record_all([batch(4711, [SOURCE])])


def test_a_batch_for_an_evaluation_that_no_longer_walks_is_skipped(world: World) -> None:
    evaluation = world.evaluate(SOURCE)
    before = shape(world)
    report = world.record(evaluation, [SOURCE, LIBRARY], [LIBRARY])
    assert report["skipped"]
    assert shape(world) == before


@pytest.mark.scenario(37)
def test_a_batch_of_another_assignment_is_refused(world: World) -> None:
    one, other = world.start_walk(), world.start_walk()
    with refused("GR003"):
        world.record_all([batch(one, [SOURCE], assignment=world.assignments[f"eval:{other}"])])
    world.record_all([batch(one, [SOURCE], assignment=world.assignments[f"eval:{one}"])])
    assert world.derivation(SOURCE)["walked"]


def test_messages_are_kept_with_their_level(world: World) -> None:
    evaluation = world.start_walk()
    world.record(
        evaluation,
        [],
        messages=[
            {"level": "error", "message": "no such attribute", "attribute": "a.b"},
            {"level": "warning", "message": "dirty tree"},
            {"level": "notice", "message": "hello"},
        ],
    )
    found = world.rows(
        "select level, message, attribute, source from gradient.evaluation_message order by id"
    )
    assert [(m["level"], m["message"], m["attribute"]) for m in found] == [
        ("Error", "no such attribute", "a.b"),
        ("Warning", "dirty tree", None),
        ("Notice", "hello", None),
    ]
    assert {m["source"] for m in found} == {"nix-eval"}


def test_an_error_message_fails_the_evaluation_in_the_end(world: World) -> None:
    evaluation = world.start_walk()
    world.upload(evaluation, SOURCE)
    world.record(evaluation, [SOURCE], [SOURCE], [{"level": "error", "message": "bad"}])
    world.complete_walk(evaluation)
    assert world.evaluation_status(evaluation) == "Building"
    world.run(SOURCE)
    assert world.evaluation_status(evaluation) == "Failed"


@pytest.mark.scenario(12)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_than_65536_derivations_in_one_message(clean_db: Database) -> None:
    # In the database that other tests share, autovacuum takes what they rolled back for the
    # whole content, and the plans of this one message are made for empty tables.
    world = World(clean_db.connect(autocommit=False))
    world.task(world.project())
    evaluation = world.start_walk()
    world.checked = False
    hub = derivation("hub")
    many = [derivation(f"leaf-{n}", hub) for n in range(66_000)]
    reports = world.message(
        "select graph.record(%s)", Jsonb([batch(evaluation, [*many, hub], many[:10])])
    )
    assert reports[0]["walked"] == len(many) + 1
    locks = world.value(
        "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
    )
    assert locks < 5000, "one lock a derivation fills the server's lock table"
    world.checked = True
    world.commit(drv_nar(hub, assignment=world.assignments[f"eval:{evaluation}"]))
    assert world.status(hub) == "Queued"
    assert world.build(many[0])["blocking_deps"] == 1
