"""How many processors this process may use: its own set, or its container's share."""

from __future__ import annotations

import os
from pathlib import Path


def available_cpus(root: Path = Path("/")) -> int:
    """The least of the processors that may be used and the cgroup's share of them, rounded up.

    Args:
        root: Where ``sys`` is mounted.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    share = _share(root / "sys/fs/cgroup")
    return cpus if share is None else max(1, min(cpus, -(-share[0] // share[1])))


def _share(cgroup: Path) -> tuple[int, int] | None:
    """Microseconds of processor time per period of so many; None: no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()  # version 2
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()  # version 1
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return (int(quota), int(period)) if quota.isdigit() and int(period) else None
