"""Arrays that are mapped from files: told to workers by name, not copied.

Guarantees:
    * An `np.memmap`, and any view of one, is opened again where it is unpickled, read-only. Its
      pages are those of the page cache, which all processes share.
    * What only this process can see is copied: changes to a map of mode ``"c"``, and a file that
      has no name any more, or whose name is another's by now.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

Opener: TypeAlias = tuple[Callable[..., NDArray[Any]], tuple[Any, ...]]
"""A function and its arguments, as pickle has it."""


def opener(array: NDArray[Any]) -> Opener | None:
    """How to open again what an array is mapped from; None where it is not, or cannot be."""
    if type(array) not in (np.ndarray, np.memmap):  # one that is more than its numbers
        return None
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.mode == "c" or root.filename is None:
        return None
    path = os.fspath(root.filename)
    low, high = byte_bounds(array)
    start = root.offset + low - root.ctypes.data
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if status.st_size < start + high - low or not _is_mapped(status, root.ctypes.data):
        return None
    first = array.ctypes.data - low  # not 0 where a stride is negative
    identity = (status.st_dev, status.st_ino)
    place = (path, identity, start, high - low, first)
    return _open, (*place, array.dtype, array.shape, array.strides)


def _is_mapped(status: os.stat_result, address: int) -> bool:
    """Whether it is this file that lies at an address: another one may have its name by now."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return True
    for line in lines:
        bounds, _, _, _, inode, *_ = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            return int(inode) == status.st_ino
    return False


def _open(
    path: str,
    identity: tuple[int, int],
    start: int,
    num_bytes: int,
    first: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> NDArray[Any]:
    if not num_bytes:
        return np.empty(shape, dtype)
    status = Path(path).stat()
    if (status.st_dev, status.st_ino) != identity:
        raise RuntimeError(
            f"{path} must stay where it is while a loader reads it, got another file of that name; "
            "make the loader anew"
        )
    memory = np.memmap(path, np.uint8, "r", start, (num_bytes,))
    return np.ndarray(shape, dtype, memory, first, strides)
