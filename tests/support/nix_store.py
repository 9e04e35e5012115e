"""A Nix store of its own, in a mount namespace with a folder bound over /nix.

Nix itself lives outside /nix (Debian's package), so an empty folder is a complete store. Two ways:

- `NixStore(folder).command([...])` is a command line that runs its arguments in that store: for
  workers and for `nix` as a user would run it. Processes with the same folder share the store.
- `with NixStore(folder).entered():` gives the store to this process and to the children that it
  starts, until the block ends: for tests of the worker's own modules.

Both point NIX_CONF_DIR at a `nix.conf` of the store's own: no sandbox, no substituters, and
builders run as the user who starts them. With build users, Nix kills every process of the user
that a build is about to get, and two stores on one machine would kill each other's builders.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class NixStore:
    """One store; the folder is made when it is missing and stays after use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nix = folder / "nix"
        (self.nix / "store").mkdir(parents=True, exist_ok=True)
        (self.nix / "var" / "nix").mkdir(parents=True, exist_ok=True)
        self.conf_dir = folder / "etc"
        self.conf_dir.mkdir(exist_ok=True)
        # Without substituters: each build would first wait for a cache that is out of reach.
        (self.conf_dir / "nix.conf").write_text(
            "sandbox = false\nbuild-users-group =\nsubstituters =\n"
        )

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command line that runs `argv` with this store as /nix."""
        unshare = ["unshare", "--mount", "--propagation", "private"]
        if os.geteuid() != 0:
            unshare[1:1] = ["--user", "--map-root-user"]
        script = 'mount --bind "$0" /nix && exec "$@"'
        conf = f"NIX_CONF_DIR={self.conf_dir}"
        return [*unshare, "sh", "-c", script, str(self.nix), "env", conf, *argv]

    def real_path(self, store_path: str) -> Path:
        """Where a path of this store lies as seen from outside of the namespace."""
        return self.nix / Path(store_path).relative_to("/nix")

    @contextlib.contextmanager
    def entered(self) -> Iterator[NixStore]:
        """Bind this store over /nix for this process and its later children."""
        _own_namespace()
        _mount(self.nix, Path("/nix"), _MS_BIND)
        before = os.environ.get("NIX_CONF_DIR")
        os.environ["NIX_CONF_DIR"] = str(self.conf_dir)
        try:
            yield self
        finally:
            if before is None:
                del os.environ["NIX_CONF_DIR"]
            else:
                os.environ["NIX_CONF_DIR"] = before
            if _libc.umount2(b"/nix", _MNT_DETACH) != 0:
                raise OSError(ctypes.get_errno(), "cannot unmount /nix")


@cache
def unavailable_reason() -> str | None:
    """Why this machine cannot run tests with a store of their own; None when it can."""
    if shutil.which("nix-store") is None:
        return "Nix is not installed (Debian: nix-bin)"
    if not Path("/nix").is_dir():
        return "there is no folder /nix to bind a store over"
    if os.geteuid() != 0:
        return "a mount namespace inside the test process needs root"
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        return f"mount namespaces are not allowed here: {probe.stderr.decode().strip()}"
    return None


@cache
def _own_namespace() -> None:
    """Leave the machine's mount namespace, once a process; nothing mounted later leaks out."""
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a mount namespace")
    _mount(None, Path("/"), _MS_REC | _MS_PRIVATE)


def _mount(source: Path | None, target: Path, flags: int) -> None:
    text = os.fsencode(source) if source is not None else None
    if _libc.mount(text, os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source or 'private'} on {target}")
