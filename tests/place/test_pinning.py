"""Slots registered with an accelerator's driver, which a fake plays."""

import logging

import numpy as np
import pytest

import feeder
from feeder.errors import MemoryLimitError
from feeder.place import placer
from feeder.place.pinning import Pinner
from feeder.produce.slots import Slab
from tests.place.test_placement import SHARDINGS

PAGE = 4096


class Driver:
    """What XLA's client offers, with the rule of the driver: nothing is registered twice."""

    def __init__(self, error=None):
        self.error = error
        self.mapped = {}
        self.num_maps = 0

    def dma_map(self, address, num_bytes):
        if self.error is not None:
            raise self.error
        assert address % PAGE == 0
        assert not any(a < address + num_bytes and address < a + n for a, n in self.mapped.items())
        self.mapped[address] = num_bytes
        self.num_maps += 1

    def dma_unmap(self, address):
        del self.mapped[address]


def test_a_slot_is_pinned_once_however_often_it_is_used():
    driver = Driver()
    slab = Slab(4 * PAGE, Pinner(driver))
    for _ in range(5):
        first, second = slab.allocate(PAGE), slab.allocate(PAGE)
        slab.free(first)
        slab.free(second)
    assert driver.num_maps == 2
    slab.close()
    assert driver.mapped == {}


def test_a_slot_of_the_wrong_size_is_unpinned_before_its_memory_goes():
    driver = Driver()
    slab = Slab(4 * PAGE, Pinner(driver))
    slab.free(slab.allocate(PAGE))
    large = slab.allocate(2 * PAGE)
    assert list(driver.mapped.values()) == [2 * PAGE]
    with pytest.raises(MemoryLimitError):
        slab.allocate(4 * PAGE)
    slab.free(large)
    slab.close()
    assert driver.mapped == {}


def test_a_batch_that_outlives_its_slab_stays_pinned_as_long_as_it_lives():
    driver = Driver()
    slab = Slab(4 * PAGE, Pinner(driver))
    array = np.frombuffer(slab.lease(slab.allocate(PAGE)), np.uint8)
    slab.close()
    assert len(driver.mapped) == 1
    del array
    assert driver.mapped == {}


def test_where_it_cannot_be_done_one_warning_says_so(caplog):
    with caplog.at_level(logging.INFO, "feeder"):
        slab = Slab(4 * PAGE, Pinner(Driver(RuntimeError("UNIMPLEMENTED: DmaMap"))))
        slab.free(slab.allocate(PAGE))
        slab.free(slab.allocate(2 * PAGE))
        slab.close()
    (record,) = caplog.records
    assert record.getMessage() == (
        "slots are not pinned, so each batch is copied once more on its way to the devices: "
        "UNIMPLEMENTED: DmaMap; `pin_memory=False` says so without this warning"
    )


def test_a_driver_that_is_gone_at_the_end_does_no_harm(caplog):
    driver = Driver()
    slab = Slab(4 * PAGE, Pinner(driver))
    slab.free(slab.allocate(PAGE))
    driver.mapped.clear()
    slab.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}, {"num_workers": "auto"}],
    ids=["inline", "processes", "threads", "auto"],
)
def test_a_loader_pins_its_slots_and_takes_all_back(options, monkeypatch):
    driver = Driver()
    monkeypatch.setattr(placer.Pinner, "of", lambda _: Pinner(driver))
    source = np.arange(64 * 512).reshape(64, 512)
    with feeder.DataLoader(source, 8, sharding=SHARDINGS["data"], **options) as loader:
        assert len(list(loader)) == 8
        assert driver.mapped
    assert len(driver.mapped) <= 1  # JAX lets go of the last at its next call
    with feeder.DataLoader(source, 8, sharding=SHARDINGS["data"], pin_memory=False) as loader:
        before = driver.num_maps
        assert len(list(loader)) == 8
        assert driver.num_maps == before


def test_devices_that_read_the_hosts_memory_need_no_pinning():
    assert Pinner.of([SHARDINGS["data"]]) is None
