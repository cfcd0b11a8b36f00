"""What the system says of memory: the limit of this process, or of its container, and kills.

Both versions of cgroups are read; where there are none, the machine's memory is the limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def memory_limit_bytes(root: Path = _ROOT) -> int:
    """The least of the machine's memory and the limits of the cgroups around this process.

    Args:
        root: Where ``proc`` and ``sys`` are mounted.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for mount, path, version in _groups(root):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        for folder in (path, *path.parents):  # the limits of all parents hold
            try:
                text = (mount / folder / name).read_text().strip()
            except OSError:  # the root group has no such file, or it is not mounted here
                continue
            if text.isdigit():  # "max": no limit
                limits.append(int(text))
    return min(limits)


def oom_kills(root: Path = _ROOT) -> int:
    """Processes that the kernel has killed for want of memory in this process's cgroup.

    Args:
        root: Where ``proc`` and ``sys`` are mounted.

    Returns:
        The count since the cgroup was made; 0 where it cannot be read.
    """
    for mount, path, version in _groups(root):
        name = "memory.events" if version == 2 else "memory.oom_control"
        try:
            lines = (mount / path / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdigit():
                return int(value)
    return 0


def _groups(root: Path) -> Iterator[tuple[Path, Path, int]]:
    """Yields mount, path and version of each memory cgroup of this process."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux, or /proc is hidden: the machine's memory is all we know
        return
    for line in memberships:
        # "0::/path" is version 2; "7:memory:/path" is version 1.
        _, controllers, path = line.split(":", 2)
        inside = Path(path.lstrip("/"))
        if controllers == "":
            yield root / "sys/fs/cgroup", inside, 2
        elif "memory" in controllers.split(","):
            yield root / "sys/fs/cgroup/memory", inside, 1
