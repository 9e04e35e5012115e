"""Small git repositories with a flake, for the tests of fetching and evaluating."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Repository:
    """A git repository of the test's user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """Run git in the repository, as its owner would."""
        done = subprocess.run(
            [
                "git",
                "-c",
                "user.name=Ada",
                "-c",
                "user.email=ada@example.org",
                "-c",
                f"safe.directory={self.folder}",
                *arguments,
            ],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"git {arguments} failed: {done.stderr}")
        return done.stdout.strip()

    def commit(self, message: str = "A change", **files: str) -> str:
        """Write files (`flake_nix` is `flake.nix`), commit everything, return the commit."""
        for name, content in files.items():
            (self.folder / name.replace("_", ".")).write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Every file of the repository with its content, to prove that nothing touched it."""
        return {
            str(path.relative_to(self.folder)): (path.stat().st_mode, path.read_bytes())
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
