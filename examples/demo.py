"""`make demo`: from a flake to an empty store, on one machine, in one go.

Starts `gradient up` (embedded database, server, local worker), evaluates and builds the example
flake, fetches the result with an ordinary `nix copy` into an empty store with signatures checked,
stops everything and sums up. The state is kept: a second run builds nothing again.

Needs Nix and git; as root on Debian and Ubuntu it installs what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
PROJECT, TASK, CACHE = "demo", "workshop", "main"
START_SECONDS = 180
STOP_SECONDS = 90
LOG_LINES = 30


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


def main() -> int:
    """Run the demo; returns the exit code."""
    # A stopped terminal or CI job ends the demo as Ctrl-C does: everything is stopped in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    try:
        need("git")
        need("nix")
        demo = Demo(state_folder())
        with demo.running():
            demo.prepare()
            demo.await_worker()
            demo.evaluate()
            demo.fetch()
        demo.summary(time.monotonic() - begun)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


def step(text: str) -> None:
    """Say what happens next."""
    print(f"\n== {text}", flush=True)


def need(program: str) -> None:
    """Make sure that a program is there: from Debian's package when we may, else say how."""
    done = subprocess.run(
        ["sh", CHECKOUT / ".ci" / "need", program], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise DemoError(done.stderr.strip())


def state_folder() -> Path:
    """Where the demo keeps its state: in the checkout, or where PostgreSQL's account can reach.

    PostgreSQL refuses to run as root, and its account cannot reach below a closed home.
    """
    given = os.environ.get("GRADIENT_DEMO_STATE")
    if given:
        return Path(given).resolve()
    inside = CHECKOUT / "var" / "demo"
    if os.geteuid() != 0 or all(
        folder.stat().st_mode & stat.S_IXOTH for folder in CHECKOUT.parents
    ):
        return inside
    # A checkout of its own has a state of its own, also when it replaced one at the same place.
    marker = inside / "id"
    if not marker.exists():
        inside.mkdir(parents=True, exist_ok=True)
        marker.write_text(secrets.token_hex(6) + "\n", encoding="ascii")
    return Path("/var/lib") / f"gradient-demo-{marker.read_text(encoding='ascii').strip()}"


class Demo:
    """One run: its state folder, its server, and what came of it."""

    def __init__(self, state: Path) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self.state = state
        self.log = state / "up.log"
        self.config = state / "gradient.toml"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.system = f"{platform.machine()}-linux"
        self.attribute = f"packages.{self.system}.default"
        self.evaluation: dict[str, Any] = {}
        self.cache: dict[str, Any] = {}
        self.built_now = 0
        self.result = ""
        write_config(self.config, state, self.port)
        # Nothing of this machine's own installation may leak into the demo.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GRADIENT_")}
        self.environment = {
            **kept,
            "GRADIENT_CONFIG": str(self.config),
            "GRADIENT_DATABASE_URL": "",
        }

    # The command line ------------------------------------------------------------------------

    def gradient(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command, its output captured."""
        return subprocess.run(
            [PROGRAMS / "gradient", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def ask(self, *words: str) -> Any:
        """What a command prints with --json."""
        done = self.gradient(*words, "--json")
        if done.returncode != 0:
            raise DemoError(f"gradient {' '.join(words)}:\n{done.stderr.strip()}")
        return json.loads(done.stdout)

    # Starting and stopping -------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """`gradient up` runs during the block."""
        step(f"gradient up: embedded database, server, local worker (log: {self.log})")
        with self.log.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [PROGRAMS / "gradient", "up"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is ours alone: we stop it when we are done with it.
                start_new_session=True,
            )
        try:
            self.wait_for(process, self.is_ready, "the server")
            print(f"   it serves {self.url}")
            yield
        finally:
            step("stopping everything")
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise DemoError(
                    f"gradient up did not stop within {STOP_SECONDS} s{self.log_end()}"
                ) from None

    def wait_for(self, process: subprocess.Popen[bytes], ready: Any, what: str) -> None:
        """Wait until `ready()`; give up when the process ends or the time is over."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if process.poll() is not None:
                raise DemoError(f"gradient up ended with {process.returncode}{self.log_end()}")
            if time.monotonic() > deadline:
                raise DemoError(f"{what} was not there within {START_SECONDS} s{self.log_end()}")
            time.sleep(0.2)

    def is_ready(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def log_end(self) -> str:
        """The end of the log, as the tail of an error."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return "; the end of its log:\n" + "\n".join(lines)

    # The steps -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the repository, the cache, the project and the task, where they are missing."""
        repository = self.state / "flake"
        commit(CHECKOUT / "examples" / "flake", repository)
        wanted = {
            ("cache", CACHE): ["cache", "create", CACHE, "--public"],
            ("project", PROJECT): ["project", "create", PROJECT, "--cache", CACHE],
            ("task", f"{PROJECT}/{TASK}"): [
                *["task", "create", f"{PROJECT}/{TASK}"],
                *["--repository", repository.as_uri()],
                *["--wildcard", f"packages.{self.system}.*"],
            ],
        }
        for (kind, name), command in wanted.items():
            if self.gradient(kind, "show", name).returncode == 0:
                continue
            step("gradient " + " ".join(command))
            self.ask(*command)
        self.cache = self.ask("cache", "show", CACHE)

    def await_worker(self) -> None:
        """Wait until the local worker is connected: it starts with the first project."""
        deadline = time.monotonic() + START_SECONDS
        while not any(worker["state"] == "Connected" for worker in self.ask("workers")):
            hopeless = "the local worker cannot run" in self.log.read_text(errors="replace")
            if hopeless or time.monotonic() > deadline:
                raise DemoError(
                    f"no worker: {PROGRAMS / 'gradient-worker'} check says what this machine "
                    f"lacks{self.log_end()}"
                )
            time.sleep(0.2)

    def evaluate(self) -> None:
        """Evaluate and build, and watch it."""
        name = f"{PROJECT}/{TASK}"
        step(f"gradient eval start {name} --watch")
        watched = subprocess.run(
            [PROGRAMS / "gradient", "eval", "start", name, "--watch"],
            env=self.environment,
            check=False,
        )
        if watched.returncode != 0:
            raise DemoError(f"the evaluation ended with {watched.returncode}{self.log_end()}")
        self.evaluation = self.ask("eval", "list", "--task", name, "--limit", "1")[0]
        number = str(self.evaluation["id"])
        self.evaluation = self.ask("eval", "show", number)
        begun = moment(self.evaluation["created_at"])
        builds = self.ask("build", "list", "--eval", number, "--limit", "1000")
        finished = [moment(build["build_finished_at"]) for build in builds]
        self.built_now = sum(1 for time in finished if time is not None and time >= begun)
        build = self.ask("build", "show", f"{self.attribute}@{number}")
        self.result = next(item["path"] for item in build["outputs"] if item["name"] == "out")

    def fetch(self) -> None:
        """Fetch the result with Nix alone, into an empty store, with signatures checked."""
        store = self.state / "empty-store"
        remove_store(store)
        caches = self.state / "nix-cache"
        shutil.rmtree(caches, ignore_errors=True)
        command = ["nix", "copy", "--from", f"{self.url}/cache/{CACHE}"]
        command += ["--to", f"local?root={store}"]
        command += ["--option", "require-sigs", "true"]
        command += ["--option", "trusted-public-keys", self.cache["public_key"], self.result]
        step(" ".join(command))
        done = subprocess.run(
            command,
            env={
                **self.environment,
                "NIX_CONFIG": "experimental-features = nix-command flakes\nsubstituters =\n",
                "XDG_CACHE_HOME": str(caches),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoError(f"nix copy failed:\n{done.stderr.strip()}")
        print((store / self.result.lstrip("/")).read_text(encoding="utf-8"), end="")
        paths = sum(1 for path in (store / "nix/store").iterdir() if path.name[0] != ".")
        print(f"   {paths} paths, every signature checked")

    def summary(self, seconds: float) -> None:
        """What happened, in a few lines."""
        counts = self.evaluation["builds_by_status"]
        builds = ", ".join(f"{number} {status}" for status, number in counts.items())
        now = self.built_now
        news = f"{now} built in this run" if now else "nothing had to be built again"
        took = moment(self.evaluation["finished_at"]) - moment(self.evaluation["created_at"])
        print(
            f"""
Done in {seconds:.0f} s; nothing is left running.

  evaluation   {self.evaluation["id"]} {self.evaluation["status"]} in {took.total_seconds():.1f} s
  builds       {builds} ({news})
  result       {self.result}
  cache        {self.url}/cache/{CACHE} (while the server runs)
  public key   {self.cache["public_key"]}
  state        {self.state}

Again: make demo. To look around: {PROGRAMS / "gradient"} --config {self.config} up"""
        )


def moment(text: str | None) -> Any:
    """A time of the JSON output; None where there is none."""
    return None if text is None else datetime.fromisoformat(text)


def free_port() -> int:
    """The usual port when it is free, else any other."""
    for wanted in (8420, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", wanted))
            port: int = probe.getsockname()[1]
            return port
    raise DemoError("there is no free port on 127.0.0.1")


def write_config(path: Path, state: Path, port: int) -> None:
    """The configuration of the demo's server."""
    path.write_text(
        f"state_dir = {json.dumps(str(state))}\n\n[listen]\nport = {port}\n", encoding="utf-8"
    )


def commit(source: Path, repository: Path) -> None:
    """A git repository with one commit of the example; the same files give the same commit."""
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(source, repository)
    environment = {
        **os.environ,
        "HOME": str(repository),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    for person in ("AUTHOR", "COMMITTER"):
        environment[f"GIT_{person}_NAME"] = "Gradient"
        environment[f"GIT_{person}_EMAIL"] = "demo@gradient.invalid"
        environment[f"GIT_{person}_DATE"] = "2026-01-01T00:00:00Z"
    for command in (
        ["git", "init", "--quiet", "--initial-branch=main"],
        ["git", "add", "--all"],
        ["git", "commit", "--quiet", "--message=A small workshop"],
    ):
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DemoError(f"{' '.join(command)}: {done.stderr.strip()}")


def remove_store(store: Path) -> None:
    """Delete a store of ours; Nix makes its files read-only."""
    for root, folders, _ in os.walk(store):
        for name in folders:
            path = Path(root) / name
            if not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
