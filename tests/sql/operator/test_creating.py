"""Projects, caches, tasks, tokens and workers: what is accepted, and what is refused and why."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.operator.conftest import PUBLIC_KEY
from tests.support.database import Database
from tests.support.graph_world import World, refused
from tests.support.sessions import TwoSessions

HASH = hashlib.sha256(b"token").digest()
BAD_NAMES = ["", "Main", "-main", "with space", "a" * 64, None]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_malformed_name_is_refused_everywhere(furnished: World, name: str | None) -> None:
    for call, params in (
        ("select gradient.create_project(%s)", [name]),
        ("select gradient.create_cache(%s, 'main-1', %s, 'sealed')", [name, PUBLIC_KEY]),
        ("select gradient.create_task('main', %s, 'https://example.org/x.git')", [name]),
        ("select gradient.create_cache_token('main', %s, %s)", [name, HASH]),
    ):
        with refused("GR005", "cannot be named"):
            furnished.message(call, *params)


def test_a_taken_name_is_refused_with_what_to_type_next(furnished: World) -> None:
    for call, params in (
        ("select gradient.create_project('main')", []),
        ("select gradient.create_cache('main', 'main-1', %s, 'sealed')", [PUBLIC_KEY]),
        ("select gradient.create_task('main', 'site', 'https://example.org/x.git')", []),
    ):
        with pytest.raises(Exception, match="already") as caught:
            furnished.message(call, *params)
        assert caught.value.sqlstate == "GR007"  # type: ignore[attr-defined]
        hint = caught.value.diag.message_hint  # type: ignore[attr-defined]
        assert len(furnished.rows(hint)) == 1


def test_what_does_not_exist_is_refused_with_what_to_type_next(furnished: World) -> None:
    for call in (
        "select gradient.subscribe_cache('nothing', 'main')",
        "select gradient.subscribe_cache('main', 'nothing')",
        "select gradient.create_task('nothing', 'site', 'https://example.org/x.git')",
        "select gradient.create_cache_token('nothing', 'ci', sha256('x'))",
        "select gradient.register_worker('nothing', 'w', sha256('x'))",
        "select gradient.start_evaluation('nothing', 'site')",
        "select gradient.start_evaluation('main', 'nothing')",
    ):
        with pytest.raises(Exception, match="nothing") as caught:
            furnished.message(call)
        assert caught.value.sqlstate == "GR002"  # type: ignore[attr-defined]
        furnished.rows(caught.value.diag.message_hint)  # type: ignore[attr-defined]


def test_a_project_is_listed_with_its_tasks_and_caches(furnished: World) -> None:
    [row] = furnished.rows("select * from gradient.project_overview")
    assert (row["name"], row["display_name"], row["public"]) == ("main", "main", False)
    assert (row["tasks"], row["caches"], row["served"]) == (1, ["main"], True)
    furnished.conn.execute("select gradient.subscribe_cache('main', 'main', 'ReadOnly')")
    [row] = furnished.rows("select * from gradient.project_overview")
    assert (row["caches"], row["served"]) == (["main (read)"], False)


def test_a_cache_is_listed_without_its_private_key(furnished: World) -> None:
    [row] = furnished.rows("select * from gradient.cache_overview")
    assert (row["name"], row["public_key"], row["priority"]) == ("main", PUBLIC_KEY, 40)
    assert (row["paths"], row["size_bytes"], row["projects"]) == (0, 0, ["main"])
    assert b"sealed" not in row.values()


@pytest.mark.parametrize(
    ("key_name", "public_key", "private"),
    [
        ("main-1", "main-1", b"sealed"),
        ("main-1", "main-1:short=", b"sealed"),
        ("main-1", PUBLIC_KEY[len("main-1:") :], b"sealed"),
        ("other-1", PUBLIC_KEY, b"sealed"),
        ("main-1", PUBLIC_KEY, b""),
        ("main-1", None, b"sealed"),
    ],
)
def test_a_cache_with_a_malformed_key_is_refused(
    world: World, key_name: str, public_key: str | None, private: bytes
) -> None:
    with refused("GR005"):
        world.message(
            "select gradient.create_cache('main', %s, %s, %s)", key_name, public_key, private
        )
    assert world.rows("select * from gradient.cache_overview") == []


@pytest.mark.parametrize(
    "arguments", ["p_max_nar_size => 0", "p_max_storage_bytes => -1", "p_priority => null"]
)
def test_a_cache_with_a_malformed_limit_is_refused(world: World, arguments: str) -> None:
    with refused("GR005", "main"):
        world.message(
            f"select gradient.create_cache('main', 'main-1', '{PUBLIC_KEY}', 'x', {arguments})"
        )


def test_an_unknown_subscription_mode_is_refused(furnished: World) -> None:
    with refused("GR005", "Sideways"):
        furnished.message("select gradient.subscribe_cache('main', 'main', 'Sideways')")


def test_a_task_keeps_its_options(furnished: World) -> None:
    options = {
        "display_name": "The site",
        "revision": "main",
        "keep_evaluations": 3,
        "concurrency": "Skip",
        "wait_for_workers": True,
        "retry_failed_builds": False,
        "allow_import_from_derivation": True,
        "eval_timeout_secs": 60,
        "eval_memory_mb": 512,
        "input_overrides": {"nixpkgs": None, "lib": "github:x/y"},
    }
    furnished.conn.execute(
        "select gradient.create_task('main', 'other', '/srv/site', 'checks.*', %s)",
        [Jsonb(options)],
    )
    [row] = furnished.rows("select * from gradient.task_overview where name = 'other'")
    overrides = options.pop("input_overrides")
    assert {key: row[key] for key in options} == options
    assert (row["repository"], row["wildcard"]) == ("/srv/site", "checks.*")
    stored = furnished.rows("select input_name, url from gradient.task_flake_input_override")
    assert {o["input_name"]: o["url"] for o in stored} == overrides


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("colour", "red"),
        ("keep_evaluations", 0),
        ("keep_evaluations", "3"),
        ("eval_timeout_secs", 1.5),
        ("eval_memory_mb", -1),
        ("wait_for_workers", "yes"),
        ("concurrency", "Sometimes"),
        ("revision", "--upload-pack=evil"),
        ("revision", "two words"),
        ("input_overrides", ["nixpkgs"]),
        ("input_overrides", {"nixpkgs": 3}),
    ],
)
def test_a_malformed_option_is_refused_by_name_and_nothing_is_made(
    furnished: World, option: str, value: Any
) -> None:
    with refused("GR005", option):
        furnished.message(
            "select gradient.create_task('main', 'other', '/srv/site', 'checks.*', %s)",
            Jsonb({option: value}),
        )
    assert len(furnished.rows("select * from gradient.task_overview")) == 1


@pytest.mark.parametrize("repository", ["", "--upload-pack=evil", "two words", None])
def test_a_malformed_repository_is_refused(furnished: World, repository: str | None) -> None:
    with refused("GR005", "repository"):
        furnished.message("select gradient.create_task('main', 'other', %s)", repository)


def test_a_task_without_attributes_is_refused(furnished: World) -> None:
    with refused("GR005", "attributes"):
        furnished.message("select gradient.create_task('main', 'other', '/srv/site', ' ')")


def test_a_token_is_kept_as_its_hash_and_refused_as_anything_else(furnished: World) -> None:
    make = "select gradient.create_cache_token('main', %s, %s, true)"
    furnished.message(make, "ci", HASH)
    assert furnished.value("select token_hash from gradient.cache_token") == HASH
    with refused("GR005", "SHA-256"):
        furnished.message(make, "other", b"token")
    with refused("GR007", "ci"):
        furnished.message(make, "ci", hashlib.sha256(b"other").digest())
    with refused("GR007"):
        furnished.message(make, "other", HASH)


def test_a_worker_is_a_teams_or_a_projects_and_never_both(furnished: World) -> None:
    furnished.message("select gradient.register_worker('main', 'builder', %s)", HASH)
    with refused("GR007", "builder", "project"):
        furnished.message("select gradient.register_local_worker('builder', %s)", HASH)
    furnished.message("select gradient.register_local_worker('local', %s)", HASH)
    with refused("GR007", "local", "team"):
        furnished.message("select gradient.register_worker('main', 'local', %s)", HASH)


def test_two_people_cannot_make_a_worker_both_at_once(clean_db: Database) -> None:
    World(clean_db.connect()).project("main")
    with TwoSessions(clean_db) as sessions:
        sessions.a.execute("select gradient.register_worker('main', 'builder', %s)", [HASH])
        other = sessions.blocks(
            sessions.b, "select gradient.register_local_worker('builder', %s)", [HASH]
        )
        sessions.a.commit()
        with refused("GR007", "builder"):
            other.result(timeout=10)


def test_a_worker_is_registered_once_with_a_project(furnished: World) -> None:
    furnished.message("select gradient.register_worker('main', 'builder', %s)", HASH)
    with refused("GR007", "builder"):
        furnished.message("select gradient.register_worker('main', 'builder', %s)", HASH)
    with refused("GR005", "bad id"):
        furnished.message("select gradient.register_worker('main', 'bad id', %s)", HASH)
    with refused("GR005", "SHA-256"):
        furnished.message("select gradient.register_worker('main', 'other', 'token')")
    rows = furnished.rows("select * from gradient.worker_registration_overview")
    assert [(row["worker"], row["project"], row["team"]) for row in rows] == [
        ("builder", "main", None)
    ]


def test_the_local_worker_is_granted_to_every_project_and_may_get_a_new_token(
    furnished: World,
) -> None:
    first = furnished.message("select gradient.register_local_worker('local', %s)", HASH)
    furnished.message("select gradient.create_project('second')")
    other = hashlib.sha256(b"other").digest()
    again = furnished.message("select gradient.register_local_worker('local', %s)", other)
    assert first == again
    assert furnished.value("select token_hash from gradient.team_worker") == other
    rows = furnished.rows("select * from gradient.worker_registration_overview order by project")
    assert [(row["worker"], row["project"], row["team"]) for row in rows] == [
        ("local", "main", "server"),
        ("local", "second", "server"),
    ]


def test_a_worker_of_another_team_does_not_become_the_local_one(furnished: World) -> None:
    furnished.conn.execute(
        "with team as (insert into gradient.team (name, display_name, created_at)"
        " values ('ops', 'Ops', now()) returning id)"
        " insert into gradient.team_worker (team, worker_id, token_hash, display_name, created_at)"
        " select id, 'big', sha256('x'), 'big', now() from team"
    )
    with refused("GR007", "big"):
        furnished.message("select gradient.register_local_worker('big', %s)", HASH)
    assert furnished.value("select token_hash from gradient.team_worker") != HASH


def test_a_trusted_key_is_kept_once(furnished: World) -> None:
    for _ in range(2):
        furnished.message("select gradient.trust_key('main', %s)", PUBLIC_KEY)
    [row] = furnished.rows("select trusted_keys from gradient.project_overview")
    assert row["trusted_keys"] == [PUBLIC_KEY]
    with refused("GR005", "public key"):
        furnished.message("select gradient.trust_key('main', 'main-1')")
