"""A whole Gradient for end-to-end tests: database, server, workers, each a real process.

The test is a user: it types `gradient …` and `nix copy`, and starts and kills processes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.database import Database, check
from tests.support.nix_store import NixStore
from tests.support.server import free_port
from tests.support.waiting import wait_until

_BIN = Path(sys.executable).parent
NIX_CONFIG = (
    "extra-experimental-features = nix-command flakes\n"
    "sandbox = false\n"
    "substituters =\n"
    "narinfo-cache-positive-ttl = 0\n"
    "narinfo-cache-negative-ttl = 0\n"
)


@dataclass(frozen=True)
class Said:
    """What a command left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


class Process:
    """A process of the test's own, with its output in a file."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], output: Path) -> None:
        self.output = output
        with output.open("ab") as sink:
            self.popen = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd="/"
            )

    @property
    def pid(self) -> int:
        """The process itself: command lines of the harness end in an exec."""
        return self.popen.pid

    def said(self) -> str:
        """Everything it wrote so far."""
        return self.output.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """Its exit code."""
        return self.popen.wait(timeout)

    def stop(self) -> None:
        """End it, whatever it does."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()


class World:
    """Database, server and workers of one test."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.port = free_port()
        self.conn = database.connect()
        self.server: Process | None = None
        self._processes: list[Process] = []
        self._names = iter(range(1, 10_000))

    # -- the server ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the server and the operator's commands."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "GRADIENT_DATABASE_URL": self.database.dsn,
            "GRADIENT_STATE_DIR": str(self.folder / "server"),
            "GRADIENT_LISTEN_PORT": str(self.port),
            "GRADIENT_INSTANCE": "e2e",
            "COLUMNS": "200",
            "PYTHONFAULTHANDLER": "1",
        }

    def start_server(self) -> Process:
        """Start the server and wait until it is ready."""
        self.server = self._start([str(_BIN / "gradient"), "server"], self.environment, "server")
        wait_until(self._ready, 60, f"the server being ready ({self.server.output})")
        return self.server

    def _ready(self) -> bool:
        assert self.server is not None
        assert self.server.popen.poll() is None, self.server.said()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def gradient(self, *arguments: str, check_code: bool = True, timeout: float = 240) -> Said:
        """Type a command."""
        done = subprocess.run(
            [str(_BIN / "gradient"), *arguments],
            env=self.environment,
            capture_output=True,
            timeout=timeout,
            check=False,
            cwd="/",
        )
        said = Said(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )
        if check_code:
            assert said.code == 0, f"gradient {' '.join(arguments)}: {said}"
        return said

    def project(self, name: str = "main", cache: str = "main") -> None:
        """A project with a public cache."""
        self.gradient("cache", "create", cache, "--public")
        self.gradient("project", "create", name, "--cache", cache)

    def task(self, repository: str, name: str = "main/flake", **options: str) -> str:
        """A task of a project; returns its name."""
        more = [part for option, value in options.items() for part in (f"--{option}", value)]
        self.gradient("task", "create", name, "--repository", repository, *more)
        return name

    def evaluate(self, task: str, *options: str) -> int:
        """Start an evaluation; returns its number."""
        said = self.gradient("eval", "start", task, "--json", *options).json()
        return int(said["id"])

    def watch(self, evaluation: int, timeout: float = 240) -> int:
        """Follow an evaluation to its end; returns the exit code, which is its verdict."""
        return self.gradient(
            "eval", "watch", str(evaluation), check_code=False, timeout=timeout
        ).code

    def builds(self, evaluation: int) -> dict[str, dict[str, Any]]:
        """The builds of an evaluation by the name of their derivation."""
        rows = self.gradient(
            "build", "list", "--eval", str(evaluation), "--limit", "100000", "--json"
        ).json()
        return {row["name"]: row for row in rows}

    def row(self, query: str, *params: Any) -> tuple[Any, ...]:
        """One row of the database, for what no command shows."""
        found = self.conn.execute(query, params).fetchone()
        assert found is not None, f"no row: {query}"
        return tuple(found)

    def outputs(self, evaluation: int) -> dict[str, str]:
        """The output paths `out` of an evaluation's derivations, by name."""
        rows = self.conn.execute(
            "select d.name, '/nix/store/' || o.hash || '-' || o.package"
            " from gradient.build_job j"
            " join gradient.derivation d on d.id = j.derivation_build"
            " join gradient.derivation_output o on o.derivation = d.id"
            " where j.evaluation = %s and o.name = 'out'",
            [evaluation],
        ).fetchall()
        return dict(rows)

    # -- workers -------------------------------------------------------------------------------

    def token(self, worker: str, project: str = "main") -> str:
        """Register a worker; returns its token."""
        said = self.gradient("worker-token", "create", project, worker, "--json").json()
        return str(said["token"])

    def worker(
        self,
        name: str,
        token: str | None = None,
        *,
        server: str | None = None,
        build_slots: int = 2,
        eval_slots: int = 1,
    ) -> Process:
        """Start a worker with a store of its own; the same name finds its store again."""
        token = token or self.token(name)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "GRADIENT_WORKER_SERVER": server or self.url,
            "GRADIENT_WORKER_ID": name,
            "GRADIENT_WORKER_TOKEN": token,
            "GRADIENT_WORKER_STATE_DIR": str(self.folder / f"worker-{name}"),
            "GRADIENT_WORKER_BUILD_SLOTS": str(build_slots),
            "GRADIENT_WORKER_EVAL_SLOTS": str(eval_slots),
        }
        argv = [
            str(_BIN / "gradient-worker"), "run",
            "--nix-option", "sandbox", "false",
            "--nix-option", "substituters", "",
        ]  # fmt: skip
        return self._start(self.store(name).command(argv), environment, f"worker-{name}")

    def store(self, name: str) -> NixStore:
        """The store of a worker, or an empty one for a new name."""
        return NixStore(self.folder / "stores" / name)

    # -- users of the cache --------------------------------------------------------------------

    def public_key(self, cache: str = "main") -> str:
        """The key that the cache signs with."""
        return str(self.gradient("cache", "show", cache, "--json").json()["public_key"])

    def nix_copy(self, paths: Sequence[str], cache: str = "main") -> NixStore:
        """What a user does: substitute paths into an empty store, with signatures checked."""
        name = f"user-{next(self._names)}"
        store = self.store(name)
        done = subprocess.run(
            store.command(
                [
                    "nix", "copy", "--from", f"{self.url}/cache/{cache}",
                    "--option", "require-sigs", "true",
                    "--option", "trusted-public-keys", self.public_key(cache),
                    *paths,
                ]
            ),
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder / name),
                "XDG_CACHE_HOME": str(self.folder / name / "cache"),
                "NIX_CONFIG": NIX_CONFIG,
            },
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for path in paths:
            assert store.real_path(path).exists(), path
        return store

    def check(self) -> None:
        """No invariant is broken right now."""
        check(self.conn)

    # -- processes -----------------------------------------------------------------------------

    def _start(self, argv: Sequence[str], env: dict[str, str], name: str) -> Process:
        output = self.folder / f"{name}.log"
        process = Process(argv, env, output)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End every process, workers first."""
        for process in reversed(self._processes):
            process.stop()

    def report(self) -> str:
        """The end of what every process said, for a failed test."""
        parts = []
        for output in sorted({process.output for process in self._processes}):
            text = output.read_text(errors="replace")
            parts.append(f"== {output.name}\n{text[-6000:]}")
        return "\n".join(parts)


@contextlib.contextmanager
def running_world(database: Database, folder: Path) -> Iterator[World]:
    """A world with its server started; ended and its processes' words shown at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(database, folder)
    try:
        world.start_server()
        yield world
    finally:
        world.close()
        sys.stdout.write(world.report())
