"""A throwaway SQL folder for tests of the migrator and the deployer."""

from __future__ import annotations

import shutil
from pathlib import Path

from gradient.db.source import sql_root


class SqlFolder:
    """`sql/` in a temporary place, beginning with the real first migration only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "migrations").mkdir(parents=True)
        (root / "functions").mkdir()
        for path in (sql_root() / "migrations").glob("0000.*"):
            shutil.copy(path, root / "migrations")

    def migration(self, name: str, up: str, down: str) -> None:
        """Write the migration `name` with its rollback."""
        (self.root / "migrations" / f"{name}.sql").write_text(up, "utf-8")
        (self.root / "migrations" / f"{name}.rollback.sql").write_text(down, "utf-8")

    def function(self, path: str, text: str) -> None:
        """Write one file below `functions`."""
        target = self.root / "functions" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")

    def remove(self, path: str) -> None:
        """Delete one file below `functions`."""
        (self.root / "functions" / path).unlink()
