"""Puts what arrives in any order back in step order.

Guarantees:
    * Steps leave in the order in which they were expected, each once, none skipped.
    * Pure: what leaves depends on the order of calls alone.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Collector(Generic[T]):
    """Holds what arrived early until its turn comes."""

    def __init__(self) -> None:
        self._expected: deque[int] = deque()
        self._arrived: dict[int, T] = {}

    def __len__(self) -> int:
        """Steps expected and not yet out, arrived or not."""
        return len(self._expected)

    def expect(self, step: int) -> None:
        """Adds a step behind all others."""
        self._expected.append(step)

    def arrive(self, step: int, item: T) -> None:
        """Takes what arrived for a step. Something that arrived before stays; this is dropped."""
        self._arrived.setdefault(step, item)

    def __bool__(self) -> bool:
        return bool(self._expected)

    @property
    def ready(self) -> bool:
        """Whether the next step has arrived."""
        return bool(self._expected) and self._expected[0] in self._arrived

    def pop(self) -> tuple[int, T]:
        """Takes the next step out.

        Raises:
            LookupError: It has not arrived.
        """
        if not self.ready:
            raise LookupError("the next step has not arrived")
        step = self._expected.popleft()
        return step, self._arrived.pop(step)
