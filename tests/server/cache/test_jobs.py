"""Uploads and downloads of jobs: what a token may write, how long, and what follows from it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from gradient.cache.store_path import STORE_DIR
from tests.server.cache.support import (
    CacheServer,
    MadeCache,
    Upload,
    assign,
    built_upload,
    narinfo_fields,
    some_path,
    source_upload,
    text_upload,
)
from tests.support.database import check
from tests.support.graph_builder import Drv, derivation
from tests.support.graph_world import World


class Walk:
    """A project with a cache, and an evaluation whose job is open."""

    def __init__(self, server: CacheServer, world: World, cache: MadeCache) -> None:
        self.server = server
        self.world = world
        project = world.project("project", cache=cache.name)
        self.evaluation = world.evaluation(world.task(project))
        self.job = assign(server, world, "evaluation")[f"eval:{self.evaluation}"]

    @property
    def url(self) -> str:
        return self.server.url + str(self.job["cache_path"])

    @property
    def token(self) -> str:
        return str(self.job["token"])

    def upload(self, upload: Upload) -> None:
        answer = self.server.push(self.url, self.token, upload)
        assert answer.status_code == 201, answer.text

    def derivations(self, *names: str, sources: tuple[Upload, ...] = ()) -> list[Drv]:
        """Derivations whose `.drv` files and sources are in the cache, recorded and queued."""
        made = [self.unsent(name, sources) for name in names]
        for source in sources:
            self.upload(source)
        for _, drv in made:
            self.upload(drv)
        world, evaluation = self.world, self.evaluation
        assignment = self.job["assignment"]
        flake = source_upload("source", {"flake.nix": b"{}"})
        self.upload(flake)
        world.message("select graph.fetch_started(%s, 'w1')", assignment)
        world.message(
            "select graph.fetch_completed(%s, 'w1', %s, %s, '', null)",
            assignment,
            flake.path,
            "0" * 40,
        )
        world.message("select graph.evaluating_flake(%s, 'w1')", assignment)
        world.message("select graph.evaluating_derivations(%s, 'w1')", assignment)
        world.record(evaluation, [drv for drv, _ in made], [drv for drv, _ in made])
        return [drv for drv, _ in made]

    @staticmethod
    def unsent(name: str, sources: tuple[Upload, ...] = ()) -> tuple[Drv, Upload]:
        """A derivation and its `.drv` file."""
        references = [source.path.removeprefix(f"{STORE_DIR}/") for source in sources]
        file = text_upload(f"{name}.drv", f"Derive({name})".encode(), references)
        drv = replace(
            derivation(name),
            drv=file.path.removeprefix(f"{STORE_DIR}/"),
            sources=tuple(source.path for source in sources),
        )
        return drv, file


@pytest.fixture
def walk(server: CacheServer, world: World, main: MadeCache) -> Walk:
    return Walk(server, world, main)


def output(drv: Drv, content: bytes = b"built", **options: Any) -> Upload:
    return built_upload(drv.outputs["out"], content, **options)


def test_a_walk_uploads_what_is_content_addressed_and_nothing_else(
    server: CacheServer, walk: Walk
) -> None:
    walk.upload(source_upload("src", {"a": b"1"}))
    walk.upload(text_upload("x.drv", b"Derive"))
    lying = source_upload("src", {"a": b"2"})
    lying.path = some_path("src")
    for refused in (built_upload(some_path("built"), b"x"), lying):
        assert server.put_nar(walk.url, walk.token, refused).status_code == 201
        before = server.everything()
        answer = server.put_narinfo(walk.url, walk.token, refused)
        assert answer.status_code == 403
        assert refused.path in answer.text
        assert server.everything() == before


@pytest.mark.scenario(10)
def test_a_build_is_queued_when_the_nar_of_its_source_lands(
    server: CacheServer, world: World, walk: Walk
) -> None:
    late = source_upload("late", {"a": b"1"})
    drv, file = walk.unsent("needs-it", (late,))
    walk.derivations("other")
    world.record(walk.evaluation, [drv], [drv])
    assert world.status(drv) == "Created"
    walk.upload(file)
    assert world.status(drv) == "Created"
    walk.upload(late)
    assert world.status(drv) == "Queued"
    check(server.conn)


def test_a_build_uploads_its_outputs_and_every_cache_of_its_project_claims_them(
    server: CacheServer, world: World, walk: Walk, main: MadeCache
) -> None:
    second = server.make_cache("second")
    read_only = server.make_cache("read-only")
    project = server.value("select id from gradient.project")
    world.subscribe(project, second.id, "WriteOnly")
    world.subscribe(project, read_only.id, "ReadOnly")
    [drv] = walk.derivations("hello")
    job = assign(server, world, "build")[world.job(drv)]
    world.start(drv)
    answer = server.push(server.url + job["cache_path"], job["token"], output(drv))
    assert answer.status_code == 201, answer.text

    for cache, status in ((main, 200), (second, 200), (read_only, 404)):
        url = f"{cache.url}/{output(drv).hash_part}.narinfo"
        assert server.get(url, cache.read_token).status_code == status
    world.report_output(drv)
    world.complete(drv)
    assert world.status(drv) == "Completed"
    check(server.conn)


def test_a_token_writes_the_outputs_of_its_own_build_only(
    server: CacheServer, world: World, walk: Walk
) -> None:
    mine, other = walk.derivations("mine", "other")
    jobs = assign(server, world, "build")
    job = jobs[world.job(mine)]
    url = server.url + job["cache_path"]
    assert server.put_nar(url, job["token"], output(other)).status_code == 201
    before = server.everything()
    for refused in (
        output(other),
        replace(output(other), path=output(mine).path + "-renamed"),
        replace(output(other), path=some_path("unknown")),
    ):
        answer = server.put_narinfo(url, job["token"], refused)
        assert answer.status_code == 403
        assert refused.path in answer.text
    # Its token is not that of the other assignment either.
    foreign = server.url + jobs[world.job(other)]["cache_path"]
    assert server.put_nar(foreign, job["token"], output(other)).status_code == 403
    assert server.put_narinfo(foreign, job["token"], output(other)).status_code == 403
    assert server.everything() == before
    check(server.conn)


@pytest.mark.parametrize("token", [None, "f" * 64, "Zm9v:\N{SNOWMAN}"])
def test_a_job_without_its_token_is_refused(
    server: CacheServer, walk: Walk, token: str | None
) -> None:
    before = server.everything()
    upload = source_upload("src", b"x")
    header = {} if token is None else {b"Authorization": f"Bearer {token}".encode()}
    for method, path in (
        ("GET", "nix-cache-info"),
        ("GET", f"{upload.hash_part}.narinfo"),
        ("GET", f"nar/{upload.file_name}"),
        ("PUT", f"nar/{upload.file_name}"),
        ("PUT", f"{upload.hash_part}.narinfo"),
    ):
        answer = server.client.request(method, f"{walk.url}/{path}", headers=header)
        assert answer.status_code in (401, 403)
    assert server.everything() == before


@pytest.mark.parametrize("number", ["0", "999999", "99999999999999999999999"])
def test_an_assignment_that_does_not_exist_is_refused(
    server: CacheServer, walk: Walk, number: str
) -> None:
    url = f"{server.url}/jobs/{number}/cache/nix-cache-info"
    assert server.get(url, walk.token).status_code == 403


def test_a_token_dies_with_its_assignment(server: CacheServer, world: World, walk: Walk) -> None:
    [drv] = walk.derivations("hello")
    job = assign(server, world, "build")[world.job(drv)]
    url = server.url + job["cache_path"]
    world.start(drv)
    assert server.put_nar(url, job["token"], output(drv)).status_code == 201
    world.fail(drv)
    before = server.everything()
    for answer in (
        server.put_nar(url, job["token"], output(drv)),
        server.put_narinfo(url, job["token"], output(drv)),
        server.get(f"{url}/nix-cache-info", job["token"]),
    ):
        assert answer.status_code == 403
        assert "GR003" in answer.text
    assert server.everything() == before


def test_a_job_reads_every_backed_path_whatever_its_cache_and_closure(
    server: CacheServer, walk: Walk, main: MadeCache
) -> None:
    elsewhere = server.make_cache("elsewhere")
    backed = source_upload("src", b"x")
    pushed = built_upload(some_path("pushed"), b"y")
    for upload in (backed, pushed):
        assert server.push(elsewhere.url, elsewhere.write_token, upload).status_code == 201
    found = server.get(f"{walk.url}/{backed.hash_part}.narinfo", walk.token)
    assert narinfo_fields(found.text)["StorePath"] == backed.path
    nar = server.get(f"{walk.url}/nar/{backed.file_name}", walk.token)
    assert nar.content == backed.file
    # What a user pushed into a cache of his own is nobody else's business.
    assert server.get(f"{walk.url}/{pushed.hash_part}.narinfo", walk.token).status_code == 404
    assert server.get(f"{walk.url}/nar/{pushed.file_name}", walk.token).status_code == 404


@pytest.mark.scenario(58)
def test_a_user_push_at_the_path_of_an_output_backs_nothing(
    server: CacheServer, world: World, walk: Walk, main: MadeCache
) -> None:
    [drv] = walk.derivations("hello")
    before = world.build(drv)
    user = server.make_cache("user")
    evil = output(drv, b"evil")
    for cache in (user, main):
        assert server.push(cache.url, cache.write_token, evil).status_code == 201
    assert world.build(drv) == before
    assert (
        server.value("select count(*) from gradient.derivation_output where cached_path > 0") == 0
    )
    # It is not even there for another cache or for a job.
    job = assign(server, world, "build")[world.job(drv)]
    url = server.url + job["cache_path"]
    assert server.get(f"{url}/{evil.hash_part}.narinfo", job["token"]).status_code == 404

    # The build's own output backs the path, and is what the cache serves from then on.
    world.start(drv)
    assert server.push(url, job["token"], output(drv)).status_code == 201
    served = server.get(f"{main.url}/{evil.hash_part}.narinfo", main.read_token)
    assert narinfo_fields(served.text)["URL"] == f"nar/{output(drv).file_name}"
    # The user's own cache made no claim and goes on with what was pushed into it.
    served = server.get(f"{user.url}/{evil.hash_part}.narinfo", user.read_token)
    assert narinfo_fields(served.text)["URL"] == f"nar/{evil.file_name}"
    check(server.conn)


@pytest.mark.scenario(51)
def test_a_built_path_is_served_only_with_its_whole_runtime_closure(
    server: CacheServer, world: World, walk: Walk, main: MadeCache
) -> None:
    library, program = walk.derivations("library", "program")
    jobs = assign(server, world, "build")
    world.start(library)
    world.start(program)
    uses = output(program, references=[output(library).path.removeprefix(f"{STORE_DIR}/")])

    def push(drv: Drv, upload: Upload) -> None:
        job = jobs[world.job(drv)]
        answer = server.push(server.url + job["cache_path"], job["token"], upload)
        assert answer.status_code == 201, answer.text

    def status(upload: Upload) -> int:
        url = f"{main.url}/{upload.hash_part}.narinfo"
        statuses = {server.get(url, main.read_token), server.head(url, main.read_token)}
        assert len({answer.status_code for answer in statuses}) == 1
        return statuses.pop().status_code

    push(program, uses)
    assert status(uses) == 404
    push(library, output(library))
    assert status(output(library)) == 200
    assert status(uses) == 200
    check(server.conn)


@pytest.mark.scenario(60)
def test_a_build_whose_outputs_the_store_did_not_take_is_tried_again(
    server: CacheServer, world: World, walk: Walk
) -> None:
    [drv] = walk.derivations("hello")
    job = assign(server, world, "build")[world.job(drv)]
    url = server.url + job["cache_path"]
    world.start(drv)
    world.report_output(drv)
    shutil.move(server.objects, server.objects.with_name("gone"))
    server.objects.write_text("a file where the folder was")

    answer = server.put_nar(url, job["token"], output(drv))
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    world.complete(drv)
    [attempt] = world.attempts(drv)
    assert (attempt["outcome_class"], world.build(drv)["attempt"]) == ("upload_failed", 0)

    server.objects.unlink()
    shutil.move(server.objects.with_name("gone"), server.objects)
    world.later(hours=1)
    world.message("select graph.requeue()")
    assert world.status(drv) == "Queued"
    job = assign(server, world, "build")[world.job(drv)]
    world.start(drv)
    assert server.push(server.url + job["cache_path"], job["token"], output(drv)).status_code == 201
    world.report_output(drv)
    world.complete(drv)
    assert world.status(drv) == "Completed"
    check(server.conn)


def test_a_database_that_is_away_is_said_to_be_and_comes_back(
    server: CacheServer, main: MadeCache, pg_server: str
) -> None:
    upload = source_upload("src", b"x")
    name = server.database.name
    assert server.context is not None
    server.context.pool.timeout = 2.0
    with psycopg.connect(pg_server, autocommit=True) as admin:
        admin.execute(f"alter database {name} allow_connections false")
        try:
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s",
                [name],
            )
            answer = server.put_nar(main.url, main.write_token, upload)
            assert answer.status_code == 503
            assert "try again" in answer.text
            assert server.object_files() == []
        finally:
            admin.execute(f"alter database {name} allow_connections true")
    server.conn = server.database.connect()
    answer = server.push(main.url, main.write_token, upload)
    assert answer.status_code == 201
