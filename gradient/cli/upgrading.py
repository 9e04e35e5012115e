"""What can go wrong while migrating and deploying, for the few commands that do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from gradient.cli.failures import CANNOT_RUN, Failure
from gradient.db.deploy import DeployError
from gradient.db.migrate import MigrationError
from gradient.db.source import SourceError


@contextmanager
def upgrade_failures() -> Iterator[None]:
    """Raise a refused migration or deployment as a Failure."""
    try:
        yield
    except (DeployError, MigrationError, SourceError) as error:
        raise Failure(str(error), exit_code=CANNOT_RUN) from error


class UpgradingGroup(click.Group):
    """A group of commands that migrate, deploy, or read what would be deployed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with upgrade_failures():
            return super().invoke(ctx)
