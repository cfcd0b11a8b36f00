"""Reading again what was read before, on the way to a place, so that others hear of it."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_AT_ONCE = 1024
"""Most records read at once; they are not kept."""

_PACE_S = 0.02


class Pace:
    """Says how many records to read at once, and tells after each time that work goes on.

    So a chunk whose shards must be read again first is not late, with ``timeout_s``, as long as
    records come.

    Args:
        tell: Called after each time.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self.count = 1
        self._tell = tell
        self._began = self._last = time.perf_counter()

    @property
    def spent_s(self) -> float:
        """Seconds from its beginning to the last `tick`."""
        return self._last - self._began

    def tick(self) -> None:
        """So many records were read."""
        now = time.perf_counter()
        slow = now - self._last > _PACE_S
        self.count = max(1, self.count // 2) if slow else min(2 * self.count, MOST_AT_ONCE)
        self._last = now
        self._tell()
