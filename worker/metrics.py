"""What this machine has left, for the heartbeat and the capabilities. Linux only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """Load in percent of all processors; free memory and disk space in MiB; None where unknown."""

    cpu_usage_pct: float | None
    ram_free_mb: int | None
    disk_free_mb: int | None


def live_metrics(folder: str) -> LiveMetrics:
    """Measure now.

    Parameters:
        folder: a folder on the file system whose free space counts.
    """
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1) * 100
        cpu: float | None = round(min(100.0, load), 1)
    except OSError:
        cpu = None
    try:
        space = os.statvfs(folder)
        disk: int | None = space.f_bavail * space.f_frsize >> 20
    except OSError:
        disk = None
    return LiveMetrics(cpu, _meminfo("MemAvailable"), disk)


def ram_total_mb() -> int | None:
    """The machine's memory in MiB."""
    return _meminfo("MemTotal")


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) >> 10
    except (OSError, ValueError, IndexError):
        pass
    return None
