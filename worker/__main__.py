"""`python -m worker` is `gradient-worker`."""

from __future__ import annotations

from worker.cli import main

main(prog_name="gradient-worker")
