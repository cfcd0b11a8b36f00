"""How many batches are on the devices, and in the host's memory, at a time."""

import jax
import numpy as np
import pytest

import feeder
from feeder.place import placer
from feeder.place.pinning import Pinner
from tests.place.test_pinning import Driver
from tests.place.test_placement import SHARDINGS

SHAPE = (8, 4321)
"""Of a batch; of no other array in these tests."""


def on_devices():
    return sum(array.shape == SHAPE for array in jax.live_arrays())


def source():
    return np.arange(8 * SHAPE[1] * 40, dtype=np.int32).reshape(-1, SHAPE[1])


@pytest.mark.parametrize("device_batches", [1, 2, 3])
@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_no_more_than_device_batches_are_on_the_devices_ahead_of_the_step(
    device_batches, worker_type
):
    with feeder.DataLoader(
        source(),
        SHAPE[0],
        num_workers=2,
        worker_type=worker_type,
        sharding=SHARDINGS["data"],
        device_batches=device_batches,
    ) as loader:
        most = 0
        for _batch in loader:
            most = max(most, on_devices())
    assert most <= device_batches + 1  # and the one that the step has
    if worker_type == "process":
        assert most > 1  # so transfers are ahead of the step
    del _batch
    assert on_devices() == 0


def test_in_process_one_batch_is_on_its_way_while_another_is_used():
    batches = iter(feeder.DataLoader(source(), SHAPE[0], sharding=SHARDINGS["data"]))
    for _ in range(5):
        batch = next(batches)
        assert on_devices() == 2
    batches.close()
    del batch
    assert on_devices() == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}],
    ids=["inline", "processes", "threads"],
)
def test_a_slow_loop_makes_the_hosts_memory_grow_no_further(options, monkeypatch):
    driver = Driver()  # hears of every slot that is made
    monkeypatch.setattr(placer.Pinner, "of", lambda _: Pinner(driver))
    with feeder.DataLoader(
        source(), SHAPE[0], prefetch_batches=3, sharding=SHARDINGS["data"], **options
    ) as loader:
        batches = iter(loader)
        for _ in range(40):
            batch = next(batches)
            for _ in range(5):  # many a turn of the loop's own work
                batches._feed.poll()
            assert np.asarray(batch).shape == SHAPE
    # Three under way, two on the devices, the loop's own, and a few that JAX drops late.
    assert driver.num_maps <= 3 + 2 + 1 + 4
