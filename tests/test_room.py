"""Warnings before workers start, and errors of a system that has no room for them."""

import os
import re
import resource

import numpy as np
import pytest

import feeder
from feeder.produce import room
from tests.support import digest, rows


@pytest.fixture
def few_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(left):
        used = [int(fd) for fd in os.listdir("/proc/self/fd")]  # by what other tests imported too
        number = left
        while number - sum(fd < number for fd in used) < left:
            number += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_large_pickle_that_cannot_be_shared_is_warned_of_and_arrays_are_not():
    text = "x" * room.LARGE_PICKLE_BYTES
    message = (
        r"the source and the transforms pickle to 64 MiB that cannot be shared, and each of 2 "
        r"workers keeps a copy: hold large data in NumPy arrays, which are shared, or open them in "
        r"the worker"
    )
    with pytest.warns(RuntimeWarning, match=f"^{message}$") as caught:
        feeder.DataLoader([text, "y"], 1, num_workers=2).close()
    assert [warning.filename for warning in caught] == [__file__]
    feeder.DataLoader(np.zeros((2, room.LARGE_PICKLE_BYTES), np.uint8), 1, num_workers=2).close()


def test_workers_beyond_the_memory_are_warned_of(monkeypatch):
    monkeypatch.setattr(room, "memory_limit_bytes", lambda: 2**30)
    message = (
        "2 workers take about 80 MiB, and slots up to 1.0 GiB, which is more than the 1.0 GiB of "
        "memory that this process may use: lower `num_workers` or `max_memory_bytes`"
    )
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(rows(8), 4, num_workers=2, max_memory_bytes=2**30).close()
    feeder.DataLoader(rows(8), 4, num_workers=2, max_memory_bytes=2**29).close()


def test_too_few_file_descriptors_are_warned_of_and_an_error_that_says_what_to_do(few_files):
    few_files(44)
    message = (
        r"100 workers need 310 file descriptors, and \d+ are left to this process: raise the limit "
        r"with `ulimit -n` or resource.setrlimit\(\), or lower `num_workers`"
    )
    with pytest.warns(RuntimeWarning, match=f"^{message}$"):
        loader = feeder.DataLoader(rows(8), 4, num_workers=100)
    with loader, pytest.raises(feeder.WorkerStartError) as caught:
        next(iter(loader))
    assert str(caught.value) == (
        "workers could not be started: Too many open files; raise the limit with `ulimit -n` or "
        "resource.setrlimit(), close files, or lower `num_workers`"
    )


def test_a_loader_goes_on_once_there_is_room(few_files):
    with feeder.DataLoader(rows(80), 4, num_workers=20) as loader:
        few_files(20)
        with pytest.raises(feeder.WorkerStartError):
            iter(loader)
        few_files(1000)
        assert digest(loader) == digest(feeder.DataLoader(rows(80), 4))
