"""Slabs: what a chunk of the storage holds of the rows, decoded; the last used ones are kept.

TensorStore's own cache keeps chunks as well, but gathers scattered rows from them element by
element, at about a tenth of NumPy's speed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    import tensorstore as ts

    Read: TypeAlias = ts.Future[NDArray[Any]]

Key: TypeAlias = tuple[int, int]
"""Leaf, and number of the slab."""


class Slabs:
    """Reads of slabs, under way or done; may be shared by threads.

    Args:
        max_bytes: How much is kept; what is being used may come on top.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._reads: OrderedDict[Key, tuple[Read, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key, num_bytes: int, start: Callable[[], Read]) -> Read:
        """The read of a slab; ``start`` begins it where it is not kept."""
        with self._lock:
            found = self._reads.get(key)
            if found is None:
                found = self._reads[key] = start(), num_bytes
                self._bytes += num_bytes
                while self._bytes > self._max_bytes and len(self._reads) > 1:
                    _, (_, dropped) = self._reads.popitem(last=False)
                    self._bytes -= dropped
            else:
                self._reads.move_to_end(key)
            return found[0]

    def drop(self, key: Key, read: Read) -> None:
        """Forgets a read that failed, so that the next one tries again."""
        with self._lock:
            found = self._reads.get(key)
            if found is not None and found[0] is read:
                del self._reads[key]
                self._bytes -= found[1]
