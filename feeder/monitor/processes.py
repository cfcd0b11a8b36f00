"""What Linux says of processes: their memory, and the processors' time that they have had."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from feeder.produce.workforce import Workforce

LEAST_NS = 200_000_000
"""Processors' time is told in hundredths of a second: over less, it says little."""

_PROC = Path("/proc")


class Usage(NamedTuple):
    """What a process uses.

    Attributes:
        rss_bytes: Resident bytes.
        own_bytes: Those of them that no other process can map: neither slots nor files.
        cpu_s: Processors' time that it has had, all threads together.
    """

    rss_bytes: int
    own_bytes: int
    cpu_s: float


class Sample(NamedTuple):
    """What the processes of a loader used at a moment.

    Attributes:
        at_ns: When.
        usage: Of each process, by its name and process id.
        slots_bytes: Bytes of slots.
    """

    at_ns: int
    usage: Mapping[tuple[str, int], Usage]
    slots_bytes: int


def usage(pid: int, proc: Path = _PROC) -> Usage | None:
    """What a process uses now: 30 µs, whatever its size; None: it is gone, or there is no Linux.

    Args:
        pid: Process id.
        proc: Where ``/proc`` is mounted.
    """
    try:
        _, resident, shared, *_ = (proc / f"{pid}/statm").read_text().split()
        stat = (proc / f"{pid}/stat").read_text()
        # After the name, which may hold anything: the state is field 3, utime 14, stime 15.
        fields = stat[stat.rindex(")") + 1 :].split()
        ticks = int(fields[11]) + int(fields[12])
    except (OSError, ValueError):
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    own = max(0, int(resident) - int(shared))
    return Usage(int(resident) * page, own * page, ticks / os.sysconf("SC_CLK_TCK"))


def sample(now_ns: int, force: Workforce) -> Sample:
    """What this process and its workers use now."""
    named = [("parent", os.getpid())]
    named += [(f"worker {number}", pid) for number, pid in sorted(force.pids.items())]
    found = {each: used for each in named if (used := usage(each[1])) is not None}
    return Sample(now_ns, found, force.slots_bytes)


def worker_cpus(before: Sample, now: Sample, threads: bool = False) -> float | None:
    """Processors that workers kept busy between two samples; None: they are too close.

    Threads are a part of this process, whose other code counts with them.
    """
    if now.at_ns - before.at_ns < LEAST_NS:
        return None
    spent = sum(
        used.cpu_s - before.usage[each].cpu_s if each in before.usage else used.cpu_s
        for each, used in now.usage.items()
        if (each[0] == "parent") == threads
    )
    return spent * 1e9 / (now.at_ns - before.at_ns)
