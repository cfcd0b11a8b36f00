"""The recipe's way to the workers."""

import os
import re
import threading

import numpy as np
import pytest

from feeder.produce import payload, unpacking


def round_trip(value):
    fd, _ = payload.pack(value)
    try:
        return unpacking.unpack(fd)
    finally:
        os.close(fd)


def test_large_arrays_are_shared_and_small_ones_travel_along():
    large, small = np.arange(100_000), np.arange(10)
    result = round_trip({"large": large, "small": small, "f": lambda x: x + 1})
    assert np.array_equal(result["large"], large)
    assert np.array_equal(result["small"], small)
    assert result["f"](1) == 2
    assert not result["large"].flags.writeable
    assert result["small"].flags.writeable


def test_several_arrays_lie_aligned_and_apart():
    arrays = [np.full(20_001 + k, k, np.uint8) for k in range(4)]
    for k, result in enumerate(round_trip(arrays)):
        assert np.all(result == k)
        assert len(result) == 20_001 + k
        assert result.ctypes.data % 64 == 0


def test_what_cannot_be_pickled_is_refused_with_the_remedy():
    before = len(os.listdir("/proc/self/fd"))
    message = (
        "`source`, `transforms`, `collate` and `batch_transforms` must be picklable to reach "
        "worker processes, got TypeError: cannot pickle '_thread.lock' object; open files, locks "
        "and connections in the worker, where they are first used, or set `num_workers=0`"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        payload.pack(threading.Lock())
    assert len(os.listdir("/proc/self/fd")) == before
