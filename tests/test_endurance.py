"""A thousand deaths, and hundreds of lives: nothing lost, nothing left behind."""

import gc
import os
import random
import signal

import numpy as np
import psutil
import pytest

import feeder
from tests.support import digest, noisy, rows

pytestmark = pytest.mark.endurance


exhaustive = pytest.mark.exhaustive


@pytest.mark.timeout(300)
@pytest.mark.parametrize("deaths", [200, pytest.param(1000, marks=exhaustive)])
def test_a_thousand_sigkills_in_one_run_change_nothing(deaths):
    options = {"shuffle": True, "transforms": [feeder.RandomMap(noisy)], "num_epochs": None}
    chooser = random.Random(0)
    killed = 0
    seen = []
    apart = 20  # batches: more than are under way, so that no chunk is hit three times
    with feeder.DataLoader(rows(1000), 8, num_workers=3, **options) as loader:
        batches = iter(loader)
        while batches.stats().restarts < deaths:
            seen.append(digest([next(batches)]))
            if len(seen) % apart:
                continue
            pids = batches.stats().worker_pids
            if pids:
                try:
                    os.kill(chooser.choice(pids), signal.SIGKILL)
                except ProcessLookupError:  # killed before, and not yet buried
                    continue
                killed += 1
        assert killed >= deaths
    undisturbed = iter(feeder.DataLoader(rows(1000), 8, **options))
    assert seen == [digest([next(undisturbed)]) for _ in seen]


@pytest.mark.parametrize("loaders", [60, pytest.param(200, marks=exhaustive)])
@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_two_hundred_loaders_leave_files_processes_and_memory_as_they_were(worker_type, loaders):
    this = psutil.Process()

    def live():
        with feeder.DataLoader(
            rows(100), 10, transforms=[dict], num_workers=2, worker_type=worker_type
        ) as loader:
            batches = iter(loader)
            next(batches)
            next(batches)

    def left():
        gc.collect()
        return this.num_fds(), len(this.children(recursive=True)), this.num_threads()

    for _ in range(20):
        live()
    before, memory = left(), this.memory_info()
    for _ in range(loaders - 20):
        live()
    assert left() == before
    grown = this.memory_info()
    assert grown.rss - memory.rss < 20 * 2**20
    assert grown.vms - memory.vms < 2**30  # a slab that stays mapped takes hundreds


def test_two_hundred_iterators_of_one_loader_leave_nothing_either():
    this = psutil.Process()
    with feeder.DataLoader(rows(100), 10, transforms=[dict], num_workers=2) as loader:
        expected = digest(loader)
        while len(iter(loader).stats().worker_pids) < 2:
            digest(loader)  # until both workers have been heard of
        gc.collect()
        before = this.num_fds(), len(this.children(recursive=True))
        pids = set(iter(loader).stats().worker_pids)
        for number in range(200):
            batches = iter(loader)
            next(batches)
            if number % 2:
                batches.close()
        del batches
        gc.collect()
        assert digest(loader) == expected
        assert (this.num_fds(), len(this.children(recursive=True))) == before
        assert set(iter(loader).stats().worker_pids) == pids
        assert np.array_equal(next(iter(loader))["index"], np.arange(10))
