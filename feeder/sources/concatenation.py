"""One source after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feeder.plan.order import Indices
from feeder.plan.schedule import MAX_POSITIONS
from feeder.sources.composed import Composed
from feeder.sources.reading import children_of


def concat(sources: Sequence[object]) -> Composed:
    """A source of the records of several sources, one after the other.

    Args:
        sources: At least one; each as for a loader, with random access. Empty ones are fine.

    Returns:
        A source of ``sum(map(len, sources))`` records. Their structure, shapes and dtypes must be
        the same in all sources: nothing is cast.

    Raises:
        TypeError: One of them has no random access.
        ValueError: There is none, or arrays in memory differ in structure, row shape or dtype.
    """
    children, names = children_of(sources)
    return Composed("concat", children, names, _OneAfterTheOther([len(one) for one in children]))


class _OneAfterTheOther:
    """The route of `concat`."""

    def __init__(self, lengths: list[int]) -> None:
        if sum(lengths) > MAX_POSITIONS:
            raise ValueError(
                f"`sources` must hold 2**62 records at most, got {sum(lengths)} in all"
            )
        self._starts = np.cumsum([0, *lengths[:-1]])
        self._length = sum(lengths)

    def __len__(self) -> int:
        return self._length

    def __call__(self, indices: Indices) -> tuple[Indices | None, Indices]:
        if len(self._starts) == 1:
            return None, indices
        # To the right of equal starts: those are of empty sources.
        children = np.searchsorted(self._starts, indices, side="right") - 1
        return children, indices - self._starts[children]
