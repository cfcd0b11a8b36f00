"""What a process keeps open or decoded, up to a limit: the least recently used is given up.

Guarantees:
    * Nothing of it is pickled, nor used in a process that was forked meanwhile.
    * Threads that ask for the same thing at the same time wait for one of them to make it.
    * What was given up lives as long as somebody still uses it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values made at their first use in a process.

    Args:
        make: ``make(key)`` → the value, and its size.
        limit: Of all sizes together. One value is kept, however large.
    """

    def __init__(self, make: Callable[[K], tuple[V, int]], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._of_process: dict[int, _Held[K, V]] = {}

    def __call__(self, key: K) -> V:
        """The value of a key.

        Raises:
            Exception: Whatever making it raises; the next call tries again.
        """
        pid = os.getpid()
        held = self._of_process.get(pid)
        if held is None:
            # Without a lock, which a fork could copy while it is held.
            held = self._of_process.setdefault(pid, _Held())
        made: Future[V] = Future()
        try:
            with held.lock:
                future = held.futures.setdefault(key, made)
                held.futures.move_to_end(key)
            if future is not made:
                return future.result()
            value, size = self._make(key)
        except BaseException as error:
            with held.lock:
                if held.futures.get(key) is made:
                    del held.futures[key]
            made.set_exception(error)
            raise
        made.set_result(value)
        with held.lock:
            held.keep(key, size, self._limit)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_process": {}}


class _Held(Generic[K, V]):
    """Of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.futures: OrderedDict[K, Future[V]] = OrderedDict()
        self._sizes: dict[K, int] = {}
        self._total = 0

    def keep(self, key: K, size: int, limit: int) -> None:
        """Counts a value that was made, and gives up the oldest ones beyond the limit."""
        self._sizes[key] = size
        self._total += size
        for oldest in list(self.futures):
            if self._total <= limit:
                return
            if oldest != key and oldest in self._sizes:  # else it is being made
                del self.futures[oldest]
                self._total -= self._sizes.pop(oldest)
