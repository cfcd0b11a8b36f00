"""Is there room for the workers here? Said before they start, where it can be known."""

from __future__ import annotations

import errno
import os
import resource
import warnings

from feeder.errors import WorkerStartError
from feeder.produce.memory import memory_limit_bytes

WORKER_BYTES = 40 * 2**20
"""Memory of a worker before user code, about."""

LARGE_PICKLE_BYTES = 64 * 2**20
"""From here on, a copy in each worker is worth a word."""

_FILES_PER_WORKER = 3  # both ends of its socket, and its pidfd
_FILES_BESIDE = 10


def check(num_workers: int, own_bytes: int, slots_bytes: int) -> None:
    """Warns of what will go wrong later.

    Args:
        num_workers: Worker processes.
        own_bytes: Pickled bytes that every worker keeps a copy of.
        slots_bytes: Most bytes of slots.
    """
    if own_bytes >= LARGE_PICKLE_BYTES:
        _warn(
            f"the source and the transforms pickle to {_size(own_bytes)} that cannot be shared, "
            f"and each of {num_workers} workers keeps a copy: hold large data in NumPy arrays, "
            "which are shared, or open them in the worker"
        )
    limit = memory_limit_bytes()
    needed = num_workers * (WORKER_BYTES + own_bytes)
    if slots_bytes > limit:
        slots_bytes = 0  # who sets it so high wants no limit, and knows what a batch takes
    if needed + slots_bytes > limit:
        _warn(
            f"{num_workers} workers take about {_size(needed)}, and slots up to "
            f"{_size(slots_bytes)}, which is more than the {_size(limit)} of memory that this "
            "process may use: lower `num_workers` or `max_memory_bytes`"
        )
    files = num_workers * _FILES_PER_WORKER + _FILES_BESIDE
    left = _files_left()
    if left is not None and files > left:
        _warn(
            f"{num_workers} workers need {files} file descriptors, and {left} are left to this "
            "process: raise the limit with `ulimit -n` or resource.setrlimit(), or lower "
            "`num_workers`"
        )


def start_error(error: OSError) -> WorkerStartError | None:
    """What to raise for an error of the system while workers start; None: the error itself."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return WorkerStartError(
            f"workers could not be started: {error.strerror}; raise the limit with `ulimit -n` or "
            "resource.setrlimit(), close files, or lower `num_workers`"
        )
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return WorkerStartError(
            f"workers could not be started: {error.strerror}; the system allows no more processes "
            "or memory; lower `num_workers`"
        )
    return None


def _files_left() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return soft - len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        return None


def _warn(message: str) -> None:
    # The user's line: check ← Pool ← Production._made ← .producer ← DataLoader ← there.
    warnings.warn(message, RuntimeWarning, stacklevel=7)


def _size(num_bytes: int) -> str:
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    return f"{num_bytes / 2**20:.0f} MiB"
