"""The served rule and the rules about access and pushes, in SQL alone."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.database import Connection
from tests.support.graph_builder import (
    derivation,
    drv_nar,
    nar,
    output_nars,
    sha256_hash,
    source,
    source_nar,
    store_hash,
)
from tests.support.graph_world import World, refused, stray_nar


@pytest.fixture
def world(db: Connection) -> World:
    world = World(db)
    world.project("main")
    return world


def cache_id(world: World, name: str = "main") -> int:
    found: int = world.value("select id from gradient.cache where name = %s", name)
    return found


def store(world: World, *nars: dict[str, Any]) -> None:
    """The objects of NARs that are about to be committed."""
    for each in nars:
        world.value("select graph.nar_uploaded(%s)", Jsonb(each))


def served(world: World, path: str, cache: str = "main") -> bool:
    found = world.value("select graph.narinfo(%s, %s)", cache, path[11:43])
    return found is not None


def fetched(world: World, path: str) -> bool:
    return world.value("select graph.job_narinfo(%s)", path[11:43]) is not None


def test_a_path_without_a_producer_is_served_when_it_is_claimed_and_stored(world: World) -> None:
    path = source("src")
    given = {**source_nar(path), "caches": [cache_id(world)]}
    world.commit(given)
    assert not served(world, path)
    assert not fetched(world, path)
    store(world, given)
    assert served(world, path)
    assert fetched(world, path)
    world.cache("other")
    assert not served(world, path, "other")


@pytest.mark.scenario(51)
def test_a_produced_path_needs_the_complete_closure_of_some_producer(world: World) -> None:
    library = derivation("library")
    program = derivation("program", library, outputs=("out", "doc"))
    twin = derivation("twin", output_of={"out": program}, outputs=("out", "extra"))
    world.evaluate(library, program, twin)
    world.start(library)
    runtime = library.outputs["out"]
    world.take("build")

    nars = [
        *output_nars(program, [runtime], assignment=None),
        *output_nars(library),
        *output_nars(twin, outputs=["extra"]),
    ]
    for each in nars:
        each["caches"] = [cache_id(world)]
    store(world, *nars)
    by_path = {each["path"]: each for each in nars}
    out, doc = program.outputs["out"], program.outputs["doc"]

    # One output of two is there: neither is served.
    world.commit(by_path[out])
    assert not served(world, out)
    assert fetched(world, out)
    # Both are there, but not what they refer to.
    world.commit(by_path[doc])
    assert not served(world, out)
    assert not served(world, doc)
    world.commit(by_path[runtime])
    assert served(world, runtime)
    assert served(world, out)
    assert served(world, doc)


def test_one_producer_with_a_complete_closure_is_enough(world: World) -> None:
    whole = derivation("whole")
    part = derivation("part", output_of={"out": whole}, outputs=("out", "never"))
    world.evaluate(whole, part)
    nars = [{**each, "caches": [cache_id(world)]} for each in output_nars(whole)]
    store(world, *nars)
    world.commit(*nars)
    assert (
        world.value(
            "select count(*) from graph.complete_closure(%s)", [world.id(whole), world.id(part)]
        )
        == 1
    )
    assert served(world, whole.outputs["out"])


def test_a_drv_file_is_served_by_presence(world: World) -> None:
    drv = derivation("x", sources=["s"])
    world.evaluate(drv)
    store(world, drv_nar(drv))
    assert served(world, drv.path)


def test_a_pushed_path_is_served_by_its_cache_only_and_backs_nothing(world: World) -> None:
    drv = derivation("x")
    world.evaluate(drv)
    out = drv.outputs["out"]
    pushed = nar(out, content="by a user")
    before = world.build(drv)
    report = world.value("select graph.push_path(%s, %s)", cache_id(world), Jsonb(pushed))
    assert report == {"path": out, "created": True, "claimed": False}
    assert not served(world, out)
    store(world, pushed)
    assert served(world, out)
    assert not fetched(world, out)
    world.cache("other")
    assert not served(world, out, "other")
    assert world.build(drv) == before
    again = world.value("select graph.push_path(%s, %s)", cache_id(world), Jsonb(pushed))
    assert again == {"path": out, "created": False, "claimed": False}
    with refused("GR007", out):
        world.message(
            "select graph.push_path(%s, %s)", cache_id(world), Jsonb(nar(out, content="b"))
        )


def test_a_claim_hides_what_was_pushed_even_while_it_is_not_served(world: World) -> None:
    drv = derivation("x", outputs=("out", "doc"))
    world.evaluate(drv)
    out, doc = drv.outputs["out"], drv.outputs["doc"]
    pushed = nar(out, content="by a user")
    built = [{**each, "caches": [cache_id(world)]} for each in output_nars(drv)]
    store(world, pushed, *built)
    world.value("select graph.push_path(%s, %s)", cache_id(world), Jsonb(pushed))
    assert served(world, out)
    world.commit(built[0])
    assert not served(world, out)
    world.commit(built[1])
    assert served(world, doc)
    found = world.value("select graph.narinfo('main', %s)", out[11:43])
    assert found["nar_hash"] == built[0]["nar_hash"]


def test_a_push_of_what_is_backed_is_a_claim(world: World) -> None:
    path = source("src")
    given = stray_nar(path)
    store(world, given)
    world.commit(given)
    assert not served(world, path)
    report = world.value("select graph.push_path(%s, %s)", cache_id(world), Jsonb(given))
    assert report == {"path": path, "created": True, "claimed": True}
    assert served(world, path)
    assert world.value("select count(*) from gradient.pushed_path") == 0
    with refused("GR007", path):
        world.message(
            "select graph.push_path(%s, %s)", cache_id(world), Jsonb(nar(path, content="b"))
        )
    renamed = {**given, "path": path + "-renamed"}
    with refused("GR007", renamed["path"]):
        world.message("select graph.push_path(%s, %s)", cache_id(world), Jsonb(renamed))


def test_a_push_into_a_cache_that_does_not_exist_is_refused(world: World) -> None:
    with refused("GR002", "4711"):
        world.message("select graph.push_path(4711, %s)", Jsonb(nar(source("x"))))


def test_a_signature_never_lands_on_another_content(world: World) -> None:
    path = source("src")
    given = {**source_nar(path), "caches": [cache_id(world)]}
    store(world, given)
    world.commit(given)
    keep = "select graph.store_signature('main', %s, %s, %s)"
    world.value(keep, path[11:43], sha256_hash("other"), "main-1:x")
    signature = "select graph.narinfo('main', %s) ->> 'signature'"
    assert world.value(signature, path[11:43]) is None
    world.value(keep, path[11:43], given["nar_hash"], "main-1:x")
    assert world.value(signature, path[11:43]) == "main-1:x"
    # One of another key, from before the cache got this one, does not count.
    world.value(keep, path[11:43], given["nar_hash"], "main-0:x")
    assert world.value(signature, path[11:43]) is None


def test_access_is_what_the_cache_and_the_token_allow(world: World) -> None:
    cache = cache_id(world)
    world.cache("other")
    for name, token, can_write in (("main", "w", True), ("main", "r", False), ("other", "o", True)):
        world.value(
            "select gradient.create_cache_token(%s, %s, %s, %s)",
            name,
            token,
            hashlib.sha256(token.encode()).digest(),
            can_write,
        )

    def access(token: str | None, name: str = "main") -> tuple[Any, ...] | None:
        return world.conn.execute(
            "select cache, readable, writable from graph.cache_access(%s, %s)", [name, token]
        ).fetchone()

    assert access("w") == (cache, True, True)
    assert access("r") == (cache, True, False)
    for foreign in (None, "", "o", "x"):
        assert access(foreign) == (cache, False, False)
    world.conn.execute("update gradient.cache set public = true")
    for reader in (None, "o", "r"):
        assert access(reader) == (cache, True, False)
    assert access("w") == (cache, True, True)
    assert access("w", "nowhere") is None
    world.conn.execute("update gradient.cache set active = false")
    assert access("w") is None
    assert world.value("select graph.narinfo('main', %s)", store_hash("x")) is None


def test_a_key_speaks_for_a_path_only_when_all_who_build_it_trust_it(world: World) -> None:
    main = world.value("select id from gradient.project")
    shared, own = derivation("shared"), derivation("own")
    world.evaluate(shared, own, task=world.task(main))
    other = world.project("other")
    world.evaluate(shared, task=world.task(other), worker="w2")

    def trusted(drv_path: str, *keys: str) -> bool:
        found: bool = world.value(
            "select graph.push_is_trusted(%s, %s, %s)", cache_id(world), drv_path[11:43], list(keys)
        )
        return found

    outs = [drv.outputs["out"] for drv in (shared, own)]
    assert not any(trusted(out, "k1") for out in outs)
    trust = "insert into gradient.project_trusted_key (project, public_key) values (%s, %s)"
    world.conn.execute(trust, [main, "k1"])
    assert trusted(outs[1], "k1")
    assert trusted(source("nobody's"), "k1")
    assert not trusted(outs[1], "k2")
    assert not trusted(outs[1])
    assert not trusted(outs[0], "k1")
    world.conn.execute(trust, [other, "k2"])
    assert not trusted(outs[0], "k1")
    assert trusted(outs[0], "k1", "k2")
    # A key of a project that has nothing to do with the cache is nothing to it.
    assert not trusted(source("nobody's"), "k2")
    assert world.value("select graph.trusted_keys(%s)", cache_id(world)) == "k1"


def test_the_limit_of_a_job_is_the_smallest_of_its_project_s_caches(world: World) -> None:
    project = world.value("select id from gradient.project")
    world.subscribe(project, world.cache("small"))
    world.conn.execute("update gradient.cache set max_nar_size = 1000 where name = 'small'")
    evaluation = world.start_walk()
    token = "select * from graph.job_access(%s, %s)"
    assignment = world.assignments[f"eval:{evaluation}"]
    world.conn.execute(
        "update gradient.dispatched_job set upload_token_hash = sha256('t') where id = %s",
        [assignment],
    )
    row = world.conn.execute(token, [assignment, "t"]).fetchone()
    assert row == ("w1", "Evaluation", project, 1000)
    assert world.conn.execute(token, [assignment, "u"]).fetchone() is None
    assert world.conn.execute(token, [assignment + 1, "t"]).fetchone() is None
    world.message("select graph.evaluation_failed(%s, 'w1', 'evaluation_failed', 'no')", assignment)
    assert world.conn.execute(token, [assignment, "t"]).fetchone() is None


def test_the_server_s_role_calls_the_cache_and_writes_none_of_its_tables(
    world: World, db: Connection
) -> None:
    db.execute("set role gradient_server")
    db.execute("select graph.narinfo('main', 'x')")
    store(world, source_nar(source("x")))
    db.execute("savepoint s")
    for statement in (
        "delete from gradient.nar_object",
        "insert into gradient.cached_path_signature values (1, 1, null, now())",
        "update gradient.pushed_path set package = 'x'",
    ):
        with refused("42501"):
            db.execute(statement)
        db.execute("rollback to s")
    db.execute("reset role")
    db.execute("set role gradient_reader")
    with refused("42501"):
        db.execute("select private_key_encrypted from graph.cache_access('main', null)")
    db.execute("rollback to s")
    db.execute("reset role")
