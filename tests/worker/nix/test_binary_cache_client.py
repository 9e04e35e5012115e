"""How Nix's own client treats a binary cache: what our server and our settings rest on."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.nix.support import Nix
from worker.nix.settings import NixSettings

pytestmark = pytest.mark.nix


class Cache(http.server.ThreadingHTTPServer):
    """A binary cache that keeps what it is given and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {
            "/nix-cache-info": b"StoreDir: /nix/store\nWantMassQuery: 1\n"
        }
        self.requests: list[tuple[str, str]] = []
        self.hidden: set[str] = set()
        self.authorization: set[str | None] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, method: str) -> list[str]:
        """The paths asked by a method, in order."""
        return [path for asked, path in self.requests if asked == method]

    def forget(self, store_path: str) -> str:
        """Lose a narinfo, as a garbage collection would; returns its name."""
        name = f"/{Path(store_path).name[:32]}.narinfo"
        del self.objects[name]
        return name


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Cache
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def note(self) -> str:
        self.server.requests.append((self.command, self.path))
        self.server.authorization.add(self.headers.get("Authorization"))
        return self.path

    def do_GET(self) -> None:
        path = self.note()
        body = self.server.objects.get(path)
        if body is None or path in self.server.hidden:
            self.answer(404)
        else:
            self.answer(200, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        path = self.note()
        self.server.objects[path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)


@pytest.fixture
def cache() -> Iterator[Cache]:
    """A running cache."""
    server = Cache()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def forgetful(nix: Nix) -> Nix:
    """Nix as the worker runs it: it remembers no narinfo."""
    return nix


@pytest.fixture
def mindful(settings: NixSettings) -> Nix:
    """Nix with its own defaults for remembering narinfos."""
    return Nix(
        NixSettings(
            settings.state_dir,
            {"narinfo-cache-positive-ttl": "2592000", "narinfo-cache-negative-ttl": "3600"},
        )
    )


def chain(nix: Nix) -> tuple[str, str]:
    """A built path and the one that refers to it."""
    top = nix.derivation("""
        let bottom = sh "bottom" "echo bottom > $out" { };
        in sh "top" "echo ${bottom} > $out" { }""")
    nix.build(top.path)
    (bottom,) = top.request().inputs
    return bottom, top.out


def narinfo(path: str) -> str:
    """What a path's narinfo is called in a cache."""
    return f"/{Path(path).name[:32]}.narinfo"


def test_a_push_asks_for_narinfos_then_puts_the_nar_and_then_its_narinfo(
    forgetful: Nix, cache: Cache
) -> None:
    bottom, top = chain(forgetful)
    forgetful.run("nix", "copy", "--to", cache.url, top)
    assert {narinfo(bottom), narinfo(top)} <= {*cache.asked("GET"), *cache.asked("HEAD")}
    puts = cache.asked("PUT")
    for path in (bottom, top):
        text = cache.objects[narinfo(path)].decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        assert fields["StorePath"] == path
        assert puts.index(f"/{fields['URL']}") < puts.index(narinfo(path))
        hashed = fields["FileHash"].removeprefix("sha256:")
        assert fields["URL"] == f"nar/{hashed}.nar.xz"


def test_references_are_pushed_first(forgetful: Nix, cache: Cache) -> None:
    bottom, top = chain(forgetful)
    forgetful.run("nix", "copy", "--to", cache.url, top)
    puts = cache.asked("PUT")
    assert puts.index(narinfo(bottom)) < puts.index(narinfo(top))


def test_a_path_whose_references_the_cache_does_not_show_is_refused_by_the_client(
    forgetful: Nix, cache: Cache
) -> None:
    bottom, top = chain(forgetful)
    cache.hidden.add(narinfo(bottom))
    done = forgetful.run("nix", "copy", "--to", cache.url, top, check=False)
    assert done.returncode != 0
    assert narinfo(top) not in cache.objects


def test_an_incomplete_path_that_answers_404_is_pushed_again_without_its_nar(
    forgetful: Nix, cache: Cache
) -> None:
    bottom, _ = chain(forgetful)
    forgetful.run("nix", "copy", "--to", cache.url, bottom)
    cache.forget(bottom)
    cache.requests.clear()
    forgetful.run("nix", "copy", "--to", cache.url, bottom)
    assert cache.asked("PUT") == [narinfo(bottom)]
    assert any(path.startswith("/nar/") for path in cache.asked("HEAD"))


def test_credentials_come_from_a_netrc_file_as_http_basic(
    forgetful: Nix, cache: Cache, tmp_path: Path
) -> None:
    bottom, _ = chain(forgetful)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password secret\n")
    forgetful.run("nix", "copy", "--to", cache.url, "--option", "netrc-file", str(netrc), bottom)
    assert "Basic YWRhOnNlY3JldA==" in cache.authorization


def test_with_its_defaults_nix_believes_in_a_path_that_the_cache_has_lost(
    mindful: Nix, cache: Cache
) -> None:
    bottom, _ = chain(mindful)
    mindful.run("nix", "copy", "--to", cache.url, bottom)
    cache.forget(bottom)
    cache.requests.clear()
    mindful.run("nix", "copy", "--to", cache.url, bottom)
    assert cache.asked("PUT") == []


def test_as_the_worker_runs_it_nix_asks_each_time(forgetful: Nix, cache: Cache) -> None:
    bottom, _ = chain(forgetful)
    forgetful.run("nix", "copy", "--to", cache.url, bottom)
    lost = cache.forget(bottom)
    cache.requests.clear()
    forgetful.run("nix", "copy", "--to", cache.url, bottom)
    assert cache.asked("PUT") == [lost]


def test_a_404_is_remembered_by_default_and_never_as_the_worker_runs_it(
    mindful: Nix, forgetful: Nix, cache: Cache, tmp_path: Path
) -> None:
    bottom, _ = chain(forgetful)

    def sees(nix: Nix) -> bool:
        done = nix.run("nix", "path-info", "--store", cache.url, bottom, check=False)
        return done.returncode == 0

    assert not sees(mindful)
    # Pushed by somebody with another memory.
    Nix(NixSettings(tmp_path / "pusher")).run("nix", "copy", "--to", cache.url, bottom)
    assert not sees(mindful)
    assert sees(forgetful)
