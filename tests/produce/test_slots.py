"""Slots and leases: memory that is never taken back from under a batch."""

import errno
import gc
import mmap
import os

import numpy as np
import pytest

from feeder import MemoryLimitError
from feeder.produce.slots import HUGE_PAGE, Slab

PAGE = mmap.PAGESIZE


@pytest.fixture
def slab():
    slab = Slab(max_bytes=4 * PAGE)
    yield slab
    slab.close()


def array_on(slab, slot):
    return np.ndarray((slot.capacity,), np.uint8, slab.lease(slot))


def test_a_slot_freed_last_is_handed_out_first(slab):
    first, second = slab.allocate(100), slab.allocate(100)
    slab.free(first)
    slab.free(second)
    assert slab.allocate(100) == second
    assert slab.allocate(100) == first


def test_a_slot_comes_back_only_when_every_array_over_it_is_gone(slab):
    slot = slab.allocate(100)
    array = array_on(slab, slot)
    view = array[10:20][::2]
    del array
    assert slab.allocate(100) != slot
    del view
    gc.collect()
    assert slab.allocate(100) == slot


def test_the_owner_of_the_memory_is_the_base_of_the_arrays(slab):
    # JAX keeps the root base alive, and nothing else: it must be what the lease watches.
    owner = slab.lease(slab.allocate(100))
    assert np.ndarray((5,), np.uint8, owner, 10)[1:].base.base is owner


def test_slots_grow_with_the_largest_batch_and_small_ones_are_given_up(slab):
    small = slab.allocate(10)
    slab.free(small)
    large = slab.allocate(PAGE + 1)
    assert large.capacity == 2 * PAGE
    assert slab.allocate(10).capacity == 2 * PAGE


def test_slots_in_use_are_limited_and_the_error_says_what_to_change(slab):
    held = [slab.allocate(PAGE) for _ in range(4)]
    with pytest.raises(MemoryLimitError) as caught:
        slab.allocate(PAGE)
    assert str(caught.value) == (
        f"a batch needs a slot of {PAGE:,} bytes, and slots of {4 * PAGE:,} bytes are in use, of "
        f"at most `max_memory_bytes` = {4 * PAGE:,}: keep fewer batches, lower "
        "`prefetch_batches` or `batch_size`, or raise `max_memory_bytes`"
    )
    assert (caught.value.needed_bytes, caught.value.held_bytes) == (PAGE, 4 * PAGE)
    slab.free(held.pop())
    assert slab.allocate(PAGE).capacity == PAGE


def test_batches_outlive_the_slab():
    slab = Slab(max_bytes=4 * PAGE)
    array = array_on(slab, slab.allocate(PAGE))
    array[:] = 7
    slab.close()
    slab.close()
    del slab
    gc.collect()
    assert np.all(array == 7)
    array[:] = 8
    assert np.all(array == 8)


def test_closing_gives_back_descriptors_and_memory():
    before = len(os.listdir("/proc/self/fd"))
    slab = Slab(max_bytes=64 << 20)
    slot = slab.allocate(32 << 20)
    array = array_on(slab, slot)
    array[:] = 1
    shared = shared_bytes()
    slab.close()
    del array
    assert shared_bytes() < shared - (24 << 20)
    del slab, slot
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def shared_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssShmem"))
    return int(line.split()[1]) * 1024


def test_a_system_without_memory_is_an_error_and_takes_nothing(monkeypatch):
    slab = Slab(2**30)
    given = slab.allocate(100)

    def full(fd, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryLimitError) as caught:
        slab.allocate(100)
    assert str(caught.value) == (
        "a batch needs a slot of 4,096 bytes, and the system has no memory left for it, beside "
        "slots of 4,096 bytes: keep fewer batches, lower `prefetch_batches`, `batch_size` or "
        "`max_memory_bytes`, or end other processes"
    )
    slab.free(given)
    assert slab.allocate(100) == given
    slab.close()


def test_large_slots_begin_at_huge_pages():
    slab = Slab(2**30)
    slab.allocate(100)
    for _ in range(3):
        assert slab.allocate(3 * 2**20).offset % HUGE_PAGE == 0
    slab.close()
