"""Runs one command and leaves no process behind.

    supervise.py <parent pid> <grace seconds> <command> [argument …]

Started as a script of its own, with nothing but the standard library, by `worker.nix.processes`.
It is a child subreaper: whatever the command's descendants do (own sessions, double forks), they
end up below this process and can be found. It ends when the command has ended and every
descendant is gone, with the command's exit code (128 + signal when a signal ended it).

SIGTERM, and the death of the parent, are passed on to the command; what is alive after the grace
is killed. Nix stops its builder on SIGTERM, but not on SIGKILL, hence the order.

It starts with every command, and its imports are most of what that costs: hence no pathlib and no
contextlib here.
"""

# ruff: noqa: PTH123, PTH208, SIM105

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02


def descendants(root: int) -> list[int]:
    """Every living process below `root`, by /proc; a process that vanishes meanwhile is skipped."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields and fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_all(pids: list[int]) -> None:
    """SIGKILL each; one that is gone is no error."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def main(argv: list[str]) -> int:
    """Run the command of the command line; returns its exit code."""
    parent, grace, command = int(argv[1]), float(argv[2]), argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.stderr.write("cannot become a child subreaper\n")
        return 125
    wanted = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        return 125
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=[])
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127
    # The command alone holds the pipes, so that each end sees when the other is gone.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)

    exit_code: int | None = None
    deadline: float | None = None
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return exit_code if exit_code is not None else 125
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                exit_code = code if code >= 0 else 128 - code
        expired = deadline is not None and time.monotonic() >= deadline
        if exit_code is not None or expired:
            kill_all(descendants(os.getpid()))
        if exit_code is not None or deadline is not None:
            received = signal.sigtimedwait(wanted, POLL_SECONDS)
            number = received.si_signo if received else None
        else:
            number = signal.sigwait(wanted)
        if number not in (None, signal.SIGCHLD) and exit_code is None and deadline is None:
            deadline = time.monotonic() + grace
            os.kill(child, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
