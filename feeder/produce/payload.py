"""The recipe's way to the workers: pickled once, its arrays shared instead of copied.

Guarantees:
    * Arrays of `SHARED_BYTES` or more are written to memory once, by the parent; every worker
      maps them read-only. No worker holds a copy of its own.
    * Arrays that are mapped from files are not copied at all: each worker maps the file itself.
    * Nothing is unpickled before a worker was forked: user code may start threads.

Owner:
    Whoever calls `pack` owns the memfd, and closes it.
"""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import cloudpickle
import numpy as np

from feeder.produce import mapped
from feeder.produce.layout import ALIGNMENT

SHARED_BYTES = 16 * 1024
"""Smaller buffers are pickled along: a mapping would cost more than the copy."""


def pack(value: object) -> tuple[int, int]:
    """Pickles a value, functions of ``__main__`` included, into a new memfd.

    Returns:
        The memfd, and how many of its bytes every worker keeps a copy of. The memfd holds the
        buffers one after the other, each aligned; then the pickle; then a pickled index of the
        buffers; then the length of the two pickles.

    Raises:
        TypeError: Some part of the value cannot be pickled.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < SHARED_BYTES:
            return True
        buffers.append(view)
        return False

    written = io.BytesIO()
    try:
        _Pickler(written, protocol=5, buffer_callback=keep_in_band).dump(value)
    except Exception as error:
        raise TypeError(
            "`source`, `transforms`, `collate` and `batch_transforms` must be picklable to reach "
            f"worker processes, got {type(error).__name__}: {error}; open files, locks and "
            "connections in the worker, where they are first used, or set `num_workers=0`"
        ) from error
    pickled = written.getvalue()
    fd = os.memfd_create("feeder-recipe")
    try:
        with io.FileIO(fd, "wb", closefd=False) as file:
            ranges = []
            for view in buffers:
                start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
                file.seek(start)
                _write_all(file, view)
                ranges.append((start, view.nbytes))
            index = pickle.dumps(ranges, 5)
            _write_all(file, memoryview(pickled + index))
            _write_all(file, memoryview(_lengths(len(pickled), len(index))))
    except BaseException:
        os.close(fd)
        raise
    return fd, len(pickled)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and (reopened := mapped.opener(obj)) is not None:
            return reopened
        return super().reducer_override(obj)


def _lengths(*lengths: int) -> bytes:
    return b"".join(length.to_bytes(8, "little") for length in lengths)


def _write_all(file: io.FileIO, view: memoryview) -> None:
    view = view.cast("B") if view.nbytes else view
    while view.nbytes:  # one write(2) moves at most 2 GiB
        view = view[file.write(view) :]
