"""The real Nix client against the cache, as a user would run it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.server.cache.support import CacheServer, MadeCache
from tests.support import nix_store
from tests.support.nix_store import NixStore

pytestmark = [
    pytest.mark.nix,
    pytest.mark.skipif(
        nix_store.unavailable_reason() is not None, reason=str(nix_store.unavailable_reason())
    ),
]

EXPRESSION = """
let
  base = builtins.toFile "base" "the base\\n";
  build = name: text: derivation {
    inherit name text;
    system = builtins.currentSystem;
    builder = "/bin/sh";
    args = [ "-c" "echo $text > $out" ];
  };
in build "top" (toString [ (build "middle" (toString base)) ])
"""


class Client:
    """Nix with a store of its own, and nothing remembered between its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = NixStore(folder / "machine")

    def run(
        self, *argv: str, trusted: str = "", token: str | None = None, port: int = 0
    ) -> subprocess.CompletedProcess[str]:
        netrc = self.folder / "netrc"
        netrc.write_text(f"machine 127.0.0.1 login anyone password {token}\n" if token else "")
        settings = [
            "experimental-features = nix-command",
            "build-users-group =",
            "sandbox = false",
            "substituters =",
            "narinfo-cache-positive-ttl = 0",
            "narinfo-cache-negative-ttl = 0",
            "require-sigs = true",
            f"trusted-public-keys = {trusted}",
            f"netrc-file = {netrc}",
        ]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "NIX_CONFIG": "\n".join(settings),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        return subprocess.run(
            self.store.command(argv), env=env, capture_output=True, text=True, check=False
        )

    def build(self) -> str:
        """Build the expression; the path of its result."""
        expression = self.folder / "top.nix"
        expression.write_text(EXPRESSION)
        done = self.run("nix-build", "--no-out-link", str(expression))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def builder(tmp_path: Path) -> Client:
    (tmp_path / "builder").mkdir()
    return Client(tmp_path / "builder")


@pytest.fixture
def user(tmp_path: Path) -> Client:
    (tmp_path / "user").mkdir()
    return Client(tmp_path / "user")


@pytest.mark.parametrize("compression", ["xz", "zstd", "none"])
def test_a_closure_is_pushed_and_substituted_with_signatures_required(
    server: CacheServer, main: MadeCache, builder: Client, user: Client, compression: str
) -> None:
    top = builder.build()
    to = f"{main.url}?compression={compression}"
    done = builder.run("nix", "copy", "--to", to, top, token=main.write_token)
    assert done.returncode == 0, done.stderr

    done = user.run(
        "nix", "copy", "--from", main.url, top, trusted=main.public_key, token=main.read_token
    )
    assert done.returncode == 0, done.stderr
    closure = user.run("nix-store", "--query", "--requisites", top).stdout.split()
    assert len(closure) == 3
    verified = user.run("nix-store", "--verify-path", *closure)
    assert verified.returncode == 0, verified.stderr
    assert user.store.real_path(top).read_text() == builder.store.real_path(top).read_text()


def test_a_client_refuses_a_cache_whose_key_it_does_not_trust(
    server: CacheServer, main: MadeCache, builder: Client, user: Client
) -> None:
    other = server.make_cache("other")
    top = builder.build()
    builder.run("nix", "copy", "--to", main.url, top, token=main.write_token)
    done = user.run(
        "nix", "copy", "--from", main.url, top, trusted=other.public_key, token=main.read_token
    )
    assert done.returncode != 0
    assert "signature" in done.stderr
    assert not user.store.real_path(top).exists()


def test_a_client_without_a_token_gets_nothing_of_a_private_cache(
    server: CacheServer, main: MadeCache, builder: Client, user: Client
) -> None:
    top = builder.build()
    before = server.everything()
    assert builder.run("nix", "copy", "--to", main.url, top).returncode != 0
    assert server.everything() == before
    builder.run("nix", "copy", "--to", main.url, top, token=main.write_token)
    done = user.run("nix", "copy", "--from", main.url, top, trusted=main.public_key)
    assert done.returncode != 0
    assert not user.store.real_path(top).exists()


def test_a_second_push_sends_nothing_again(
    server: CacheServer, main: MadeCache, builder: Client
) -> None:
    top = builder.build()
    for _ in range(2):
        done = builder.run("nix", "copy", "--to", main.url, top, token=main.write_token)
        assert done.returncode == 0, done.stderr
    first = server.everything()
    builder.run("nix", "copy", "--to", main.url, top, token=main.write_token)
    assert server.everything() == first


def test_derivations_are_pushed_as_content_that_backs(
    server: CacheServer, main: MadeCache, builder: Client, user: Client
) -> None:
    top = builder.build()
    drv = builder.run("nix-store", "--query", "--deriver", top).stdout.strip()
    done = builder.run("nix", "copy", "--to", main.url, "--derivation", drv, token=main.write_token)
    assert done.returncode == 0, done.stderr
    backed = server.conn.execute("select package from gradient.cached_path order by 1").fetchall()
    assert backed == [("base",), ("middle.drv",), ("top.drv",)]
    done = user.run(
        "nix",
        "copy",
        "--from",
        main.url,
        "--derivation",
        drv,
        trusted=main.public_key,
        token=main.read_token,
    )
    assert done.returncode == 0, done.stderr


def test_a_push_signed_by_a_key_the_project_trusts_backs(
    server: CacheServer, main: MadeCache, builder: Client, tmp_path: Path
) -> None:
    top = builder.build()
    secret, public = tmp_path / "secret.key", tmp_path / "public.key"
    builder.run("nix-store", "--generate-binary-cache-key", "builder-1", str(secret), str(public))
    signed = builder.run("nix", "store", "sign", "--key-file", str(secret), "--recursive", top)
    assert signed.returncode == 0, signed.stderr
    server.conn.execute(
        "insert into gradient.project (name, display_name, created_at) values ('p', 'p', now())"
    )
    server.conn.execute(
        "insert into gradient.project_cache (project, cache) select id, %s from gradient.project",
        [main.id],
    )
    server.conn.execute(
        "insert into gradient.project_trusted_key (project, public_key)"
        " select id, %s from gradient.project",
        [public.read_text().strip()],
    )
    done = builder.run("nix", "copy", "--to", main.url, top, token=main.write_token)
    assert done.returncode == 0, done.stderr
    assert server.value("select count(*) from gradient.cached_path") == 3
    assert server.value("select count(*) from gradient.pushed_path") == 0
