"""Slabs: what a chunk of the storage holds of the rows, decoded; those that are used are kept.

TensorStore's own cache keeps chunks as well, but gathers scattered rows from them element by
element, at about a tenth of NumPy's speed.

A slab is worth its copy, and the room of another one, only if it is used again. While there is
room every slab is kept. Then the one that was used longest ago makes room once it has been idle for
four times as many reads as pass, on average, until a slab is used again; and for more, twice as
many each time that one goes which was never used again, half as many when one was. So blocks that
are shuffled in windows are each read once, and a shuffle of all records, which comes back to all
chunks alike, reads past the slabs that it has: none of them is worth another's room.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    import tensorstore as ts

    Read: TypeAlias = ts.Future[NDArray[Any]]

Key: TypeAlias = tuple[int, int]
"""Leaf, and number of the slab."""

_LEAST_PATIENCE, _MOST_PATIENCE = 2, 1024
"""Reads without a slab after which it may make room."""

_INTERVALS = 4
"""The same, in average times until slabs are used again."""

_LEARNING = 1 / 64
"""Weight of a use in that average."""


@dataclass(slots=True)
class _Slab:
    read: Read
    num_bytes: int
    used_at: int
    num_uses: int = 0


class Slabs:
    """Reads of slabs, under way or done; may be shared by threads.

    Args:
        max_bytes: How much is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._slabs: OrderedDict[Key, _Slab] = OrderedDict()  # the one used last at the end
        self._lock = threading.Lock()
        self._now = 0
        self._patience = _LEAST_PATIENCE
        self._interval = 0.0  # reads until a slab is used again, on average

    def tick(self) -> None:
        """Counts a read of a batch."""
        with self._lock:
            self._now += 1

    def get(self, key: Key, num_bytes: int, start: Callable[[], Read]) -> Read | None:
        """The read of a slab, begun by ``start`` if need be; None: there is no room for it."""
        with self._lock:
            slab = self._slabs.get(key)
            if slab is None:
                if not self._make_room(num_bytes):
                    return None
                slab = self._slabs[key] = _Slab(start(), num_bytes, self._now)
                self._bytes += num_bytes
            elif slab.used_at < self._now:
                self._interval += (self._now - slab.used_at - self._interval) * _LEARNING
                slab.used_at = self._now
                slab.num_uses += 1
                self._slabs.move_to_end(key)
            return slab.read

    def drop(self, key: Key, read: Read) -> None:
        """Forgets a read that failed, so that the next one tries again."""
        with self._lock:
            slab = self._slabs.get(key)
            if slab is not None and slab.read is read:
                del self._slabs[key]
                self._bytes -= slab.num_bytes

    def _make_room(self, num_bytes: int) -> bool:
        while self._bytes + num_bytes > self._max_bytes:
            key, oldest = next(iter(self._slabs.items()))
            if self._now - oldest.used_at <= max(self._patience, _INTERVALS * self._interval):
                return False
            if oldest.num_uses:
                self._patience = max(self._patience // 2, _LEAST_PATIENCE)
            else:
                self._patience = min(self._patience * 2, _MOST_PATIENCE)
            del self._slabs[key]
            self._bytes -= oldest.num_bytes
        return True
