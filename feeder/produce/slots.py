"""One slab of shared memory, cut into slots; a lease keeps a slot while its batch lives.

Guarantees:
    * A slot is never handed out again before every array over it is gone, the user's and
      JAX's (on CPU a jax.Array may be the slot's memory itself).
    * A forked copy of this process can neither take nor free a slot.
    * Nobody waits for a slot to come back: there are more, up to the limit, then
      `MemoryLimitError`; also where the system has no memory left, which would else be a signal.
    * The slab has no name in any file system: it is gone with the last process that maps it.
      Memory of batches that outlive `Slab.close` stays valid, and goes with them.

Owner:
    The `Slab` owns the memfd and the mapping. A `Slot` belongs to whoever allocated it, who
    gives it back with `free` or hands it to a batch with `lease`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Protocol

from feeder.errors import ClosedError, MemoryLimitError
from feeder.produce.layout import Buffer

_VIRTUAL_FACTOR = 16
"""Address space per byte of limit. Untouched pages cost nothing; sizes that grow use it up."""

FORKED = (
    "the loader was made before this process was forked, and is its parent's; make a new one here"
)

_MAX_VIRTUAL = 2**44
"""Bytes of address space at most; a process has 2**47."""


HUGE_PAGE = 2**21
"""Bytes; larger slots begin at a multiple, so that the system can use huge pages for them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A range of the slab, in bytes."""

    offset: int
    capacity: int


class Pinner(Protocol):
    """Who is to know where slots lie, from when they are made until they are given back."""

    def pin(self, address: int, num_bytes: int) -> None:
        """A slot was made."""

    def unpin(self, address: int) -> None:
        """It is about to be given back. Called in any thread, and by the garbage collector."""


class Slab:
    """Allocates slots of one size, last freed first: its pages are warm.

    The size grows with the largest batch seen; smaller slots are given back to the system.

    Attributes:
        fd: The memfd, for other processes to map; -1 where there is none.
        num_bytes: Size of the mapping.
        slot_bytes: Capacity of the slots handed out now; 0 before the first.
        held_bytes: Bytes of slots that exist, free or not.
        max_bytes: Most of them.

    Args:
        max_bytes: Most bytes of slots at one time.
        pinner: Told of every slot.
    """

    def __init__(self, max_bytes: int, pinner: Pinner | None = None) -> None:
        self.max_bytes = max_bytes
        self._pinner = pinner
        self.num_bytes = min(max(max_bytes * _VIRTUAL_FACTOR, mmap.PAGESIZE), _MAX_VIRTUAL)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        shared = hasattr(os, "memfd_create")
        self.fd, self._map = _mapped(self.num_bytes) if shared else _private(self.num_bytes)
        # Bound here: a lease may end after the interpreter has cleared this module's globals.
        self._getpid = os.getpid
        give_back = mmap.MADV_REMOVE if shared else mmap.MADV_DONTNEED
        self._remove = functools.partial(self._map.madvise, give_back)
        self._address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))
        self.slot_bytes = 0
        self._end = 0  # bytes of the slab ever handed out
        self.held_bytes = 0
        # list.append and list.pop are atomic: a lease may end in any thread, or inside a
        # garbage collection, while another thread allocates.
        self._free: list[Slot] = []
        self._leases: dict[int, weakref.ref[Buffer]] = {}  # by offset, to keep the callbacks
        self._closed = False

    def allocate(self, num_bytes: int, spare: int = 0) -> Slot:
        """Hands out a slot of at least ``num_bytes`` bytes.

        Args:
            num_bytes: What it must hold.
            spare: Slots that must be left for others.

        Raises:
            MemoryLimitError: The slots would pass the limit.
            ClosedError: The slab was closed, or belongs to the process that forked this one.
        """
        with self._lock:
            return self._allocate(num_bytes, spare)

    def _allocate(self, num_bytes: int, spare: int) -> Slot:
        if self._closed:
            raise ClosedError
        if not self._own:
            raise ClosedError(FORKED)
        size = max(self.slot_bytes, _size_class(max(num_bytes, 1)))
        room = (self.max_bytes - self.held_bytes) // size
        while len(self._free) + room > spare and self._free:
            slot = self._free.pop()
            if slot.capacity == size:
                self.slot_bytes = size
                return slot
            self._discard(slot)
            room = (self.max_bytes - self.held_bytes) // size
        if room <= spare or self._end + size > self.num_bytes:
            raise MemoryLimitError(
                f"a batch needs a slot of {size:,} bytes, and slots of {self.held_bytes:,} bytes "
                f"are in use, of at most `max_memory_bytes` = {self.max_bytes:,}: keep fewer "
                "batches, lower `prefetch_batches` or `batch_size`, or raise `max_memory_bytes`",
                needed_bytes=size,
                held_bytes=self.held_bytes,
                limit_bytes=self.max_bytes,
            )
        start = self._end
        if size >= HUGE_PAGE:
            start = -(-start // HUGE_PAGE) * HUGE_PAGE
        self._back(start, size)
        self._end = start + size
        self.slot_bytes = size  # not before: one batch that fits nowhere is no measure
        self.held_bytes += size
        if self._pinner is not None:
            self._pinner.pin(self._address + start, size)
        return Slot(start, size)

    def _back(self, start: int, size: int) -> None:
        """Has the system find memory for a new slot now: an error here, a signal later."""
        if self.fd < 0:
            return
        try:
            os.posix_fallocate(self.fd, start, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            self._remove(start, size)
            raise MemoryLimitError(
                f"a batch needs a slot of {size:,} bytes, and the system has no memory left for "
                f"it, beside slots of {self.held_bytes:,} bytes: keep fewer batches, lower "
                "`prefetch_batches`, `batch_size` or `max_memory_bytes`, or end other processes",
                needed_bytes=size,
                held_bytes=self.held_bytes,
                limit_bytes=self.max_bytes,
            ) from error

    def free(self, slot: Slot) -> None:
        """Takes back a slot that nobody reads or writes any more."""
        if not self._own:
            return  # a forked copy has let go of its copy; the parent may still use the slot
        if self._closed:
            self._discard(slot)
        else:
            self._free.append(slot)

    @property
    def _own(self) -> bool:
        """Whether this is the process that made the slab, and no forked copy of it."""
        return self._getpid() == self._pid

    def lease(self, slot: Slot) -> Buffer:
        """Gives the slot to a batch: it is freed once nothing refers to the result any more.

        Returns:
            The slot's memory. It must be the ``base`` of every array over it.
        """
        owner = (ctypes.c_ubyte * slot.capacity).from_buffer(self._map, slot.offset)
        self._leases[slot.offset] = weakref.ref(owner, functools.partial(self._released, slot))
        return owner

    def memory(self) -> mmap.mmap:
        """The whole slab, for whoever builds batches in it from this process."""
        return self._map

    def close(self) -> None:
        """Gives all memory back but that of batches still alive; theirs follows with them."""
        if self._closed or not self._own:  # in a forked copy, its parent may have used them again
            return
        self._closed = True
        while self._free:
            self._discard(self._free.pop())
        if self.fd >= 0:
            os.close(self.fd)

    def _released(self, slot: Slot, _owner: weakref.ref[Buffer]) -> None:
        del self._leases[slot.offset]
        self.free(slot)

    def _discard(self, slot: Slot) -> None:
        self.held_bytes -= slot.capacity
        if self._pinner is not None:
            self._pinner.unpin(self._address + slot.offset)
        self._remove(slot.offset, slot.capacity)


def _mapped(num_bytes: int) -> tuple[int, mmap.mmap]:
    """A memfd and its mapping. Untouched, it takes no memory."""
    fd = os.memfd_create("feeder")
    try:
        os.ftruncate(fd, num_bytes)
        return fd, map_shared(fd, num_bytes)
    except BaseException:
        os.close(fd)
        raise


def map_shared(fd: int, num_bytes: int) -> mmap.mmap:
    """Maps a slab, with huge pages where the system gives them for the asking.

    Args:
        fd: Its memfd.
        num_bytes: Its size; 0: all of it.
    """
    mapping = mmap.mmap(fd, num_bytes)
    with contextlib.suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _private(num_bytes: int) -> tuple[int, mmap.mmap]:
    """Memory of this process alone, for threads. Untouched, it takes none."""
    no_reserve = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which mmap lacks
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return -1, mmap.mmap(-1, num_bytes, flags=flags)


def _size_class(num_bytes: int) -> int:
    """Rounds up to whole pages and to eighths of a power of two: few sizes, little waste."""
    step = max(mmap.PAGESIZE, 1 << max(0, num_bytes.bit_length() - 4))
    return max(step, -(-num_bytes // step) * step)
