"""What is made of patterns, remembered up to so many entries in all."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_ENTRIES = 2**17
"""Of all that is remembered; an entry takes 40 to 250 bytes."""

_ENTRIES_EACH = 32
"""What a value takes whatever its size, as so many entries."""


class KeptPatterns(Generic[K, V]):
    """Values by key; all are forgotten once they are too large together."""

    def __init__(self) -> None:
        self._found: dict[K, V] = {}
        self._entries = 0

    def get(self, key: K, make: Callable[[], V], entries: int) -> V:
        """The value of a key, made where it is not remembered.

        Args:
            key: What it is of.
            make: Makes it.
            entries: Its size.
        """
        value = self._found.get(key)
        if value is None:
            value = make()
            entries += _ENTRIES_EACH
            if self._entries + entries > _MOST_ENTRIES:
                self._found.clear()
                self._entries = 0
            self._found[key] = value
            self._entries += entries
        return value
