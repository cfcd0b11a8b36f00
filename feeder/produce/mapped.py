"""Arrays that are mapped from files: told to workers by name, not copied.

Guarantees:
    * An `np.memmap`, and any view of one, is opened again where it is unpickled, read-only. Its
      pages are those of the page cache, which all processes share.
    * What only this process can see is copied: changes to a map of mode ``"c"``, and a file that
      has no name any more.
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
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.mode == "c" or root.filename is None:
        return None
    path = os.fspath(root.filename)
    low, high = byte_bounds(array)
    start = root.offset + low - root.ctypes.data
    try:
        if Path(path).stat().st_size < start + high - low:
            return None
    except OSError:
        return None
    first = array.ctypes.data - low  # not 0 where a stride is negative
    return _open, (path, start, high - low, first, array.dtype, array.shape, array.strides)


def _open(
    path: str,
    start: int,
    num_bytes: int,
    first: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> NDArray[Any]:
    if not num_bytes:
        return np.empty(shape, dtype)
    memory = np.memmap(path, np.uint8, "r", start, (num_bytes,))
    return np.ndarray(shape, dtype, memory, first, strides)
