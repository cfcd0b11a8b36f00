"""How much memory this process may use: the machine's, or its container's."""

from __future__ import annotations

import os
from pathlib import Path


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """The least of the machine's memory and the limits of the cgroups around this process.

    Args:
        root: Where ``proc`` and ``sys`` are mounted.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux, or /proc is hidden: the machine's memory is all we know
        memberships = []
    for line in memberships:
        # "0::/path" is version 2; "7:memory:/path" is version 1. The limits of all parents hold.
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            try:
                text = (mount / folder / name).read_text().strip()
            except OSError:  # the root group has no such file, or it is not mounted here
                continue
            if text.isdigit():  # "max": no limit
                limits.append(int(text))
    return min(limits)
