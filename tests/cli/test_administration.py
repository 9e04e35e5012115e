"""Projects, tasks, caches, tokens and settings: made, listed, and their secrets kept."""

from __future__ import annotations

import hashlib
import stat

import pytest

from gradient.cache.signing import keys_that_signed, sign
from gradient.secrets import Secrets
from tests.support.cli_commands import Cli
from tests.support.graph_world import World


def test_a_project_with_cache_and_task_is_made_in_three_commands(cli: Cli) -> None:
    cli.ok("cache", "create", "main", "--public")
    cli.ok("project", "create", "acme", "--cache", "main", "--display-name", "Acme Inc.")
    cli.ok("task", "create", "acme/site", "--repository", "https://example.org/site.git")
    [project] = cli.ok("project", "list", "--json").json()
    assert (project["name"], project["display_name"]) == ("acme", "Acme Inc.")
    assert (project["tasks"], project["caches"], project["served"]) == (1, ["main"], True)
    [task] = cli.ok("task", "list", "--project", "acme", "--json").json()
    assert task["wildcard"] == "packages.x86_64-linux.*"
    assert cli.ok("task", "list", "--project", "other", "--json").json() == []


@pytest.mark.parametrize("kind, name", [("project", "acme"), ("cache", "main")])
def test_show_prints_the_row_that_list_prints(cli: Cli, kind: str, name: str) -> None:
    cli.ok(kind, "create", name)
    assert cli.ok(kind, "list", "--json").json() == [cli.ok(kind, "show", name, "--json").json()]


def test_the_options_of_a_task_reach_the_database(cli: Cli) -> None:
    cli.ok("project", "create", "acme")
    cli.ok(
        *("task", "create", "acme/site", "--repository", "https://example.org/site.git"),
        *("--revision", "main", "--wildcard", "checks.*", "--concurrency", "skip"),
        *("--wait-for-workers", "--allow-ifd", "--eval-timeout", "60", "--eval-memory", "512"),
    )
    task = cli.ok("task", "show", "acme/site", "--json").json()
    expected = {
        "revision": "main",
        "wildcard": "checks.*",
        "concurrency": "Skip",
        "wait_for_workers": True,
        "allow_import_from_derivation": True,
        "eval_timeout_secs": 60,
        "eval_memory_mb": 512,
    }
    assert {key: task[key] for key in expected} == expected


def test_a_cache_gets_a_key_pair_whose_private_half_only_the_secret_opens(
    cli: Cli, world: World
) -> None:
    made = cli.ok("cache", "create", "main", "--key-name", "cache.example.org-1", "--json").json()
    sealed = world.value("select private_key_encrypted from gradient.cache where name = 'main'")
    private = Secrets.from_state_dir(cli.state).decrypt(sealed, "cache:main")
    signature = sign("cache.example.org-1", private, b"a fingerprint")
    public_key = made["public_key"]
    assert keys_that_signed([public_key], [signature], b"a fingerprint") == [public_key]
    assert private not in sealed
    assert stat.S_IMODE((cli.state / "secret").stat().st_mode) == 0o600


def test_the_limits_of_a_cache_reach_the_database(cli: Cli) -> None:
    cli.ok("cache", "create", "main", "--priority", "30", "--max-nar-size", "1GiB")
    shown = cli.ok("cache", "show", "main", "--json").json()
    assert (shown["priority"], shown["max_nar_size"]) == (30, 1024**3)
    cli.ok("cache", "create", "plain")
    assert cli.ok("cache", "show", "plain", "--json").json()["max_nar_size"] == 16 * 1024**3


def test_a_cache_shows_where_clients_find_it(cli: Cli) -> None:
    cli.ok("cache", "create", "main")
    shown = cli.ok("cache", "show", "main", "--json").json()
    assert shown["url"].startswith("http://127.0.0.1:")
    assert shown["url"].endswith("/cache/main")
    assert "private" not in str(shown)


def test_a_cache_token_is_shown_once_and_stored_as_a_hash(cli: Cli, world: World) -> None:
    cli.ok("cache", "create", "main")
    token = cli.ok("cache", "create-token", "main", "laptop", "--write").out.strip()
    row = world.rows("select name, token_hash, can_write from gradient.cache_token")
    assert row == [
        {
            "name": "laptop",
            "token_hash": hashlib.sha256(token.encode()).digest(),
            "can_write": True,
        }
    ]
    assert token not in cli.ok("cache", "show", "main", "--json").out


def test_a_worker_token_opens_the_door_it_was_made_for(cli: Cli, world: World) -> None:
    cli.ok("cache", "create", "main")
    cli.ok("project", "create", "acme", "--cache", "main")
    token = cli.ok("worker-token", "create", "acme", "builder-1", "--json").json()["token"]
    query = "select accepted from scheduler.authenticate_worker('builder-1', array[%s])"
    assert world.value(query, token) is True
    assert world.value(query, token[::-1]) is False
    listed = cli.ok("worker-token", "list", "--json")
    assert [(row["worker"], row["project"]) for row in listed.json()] == [("builder-1", "acme")]
    assert token not in listed.out


def test_the_same_name_twice_is_refused_and_changes_nothing(cli: Cli) -> None:
    cli.ok("cache", "create", "main")
    before = cli.ok("cache", "list", "--json").json()
    typed = cli.type("cache", "create", "main")
    assert typed.code == 1
    assert "main" in typed.err
    assert cli.ok("cache", "list", "--json").json() == before


def test_a_project_is_subscribed_in_another_mode(cli: Cli) -> None:
    cli.ok("cache", "create", "main")
    cli.ok("project", "create", "acme")
    cli.ok("project", "subscribe", "acme", "main", "--mode", "readonly")
    assert cli.ok("project", "show", "acme", "--json").json()["caches"] == ["main (read)"]


def test_a_trusted_key_is_kept(cli: Cli) -> None:
    cli.ok("project", "create", "acme")
    key = cli.ok("cache", "create", "other", "--json").json()["public_key"]
    cli.ok("project", "trust-key", "acme", key)
    assert cli.ok("project", "show", "acme", "--json").json()["trusted_keys"] == [key]


def test_a_setting_is_changed_for_every_server(cli: Cli, world: World) -> None:
    cli.ok("setting", "set", "worker_grace", "300")
    assert world.value("select gradient.setting_int('worker_grace')") == 300
    listed = {row["name"]: row for row in cli.ok("setting", "list", "--json").json()}
    assert listed["worker_grace"]["value"] == "300"
    assert listed["worker_grace"]["default_value"] != "300"


def test_lists_say_what_to_do_when_they_are_empty(cli: Cli) -> None:
    for kind in ("project", "cache", "task"):
        assert f"gradient {kind} create" in cli.ok(kind, "list").out


def test_workers_and_queue_show_the_pool_and_what_waits(cli: Cli, world: World) -> None:
    assert "Nothing waits" in cli.ok("queue").out
    world.project()
    world.task(world.value("select id from gradient.project"), "site")
    world.evaluation()
    world.worker("w1")
    [waiting] = cli.ok("queue", "--json").json()
    assert (waiting["kind"], waiting["name"]) == ("evaluation", "site")
    [worker] = cli.ok("workers", "--json").json()
    assert (worker["worker"], worker["state"]) == ("w1", "Connected")
    assert "fetch eval build" in cli.ok("workers").out
