"""Record indices: checked, looked up in a sequence of parts; and rows made records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray


def checked(indices: Any, length: int) -> NDArray[np.int64]:
    """Indices from 0 on, of those that may count from the end.

    Raises:
        TypeError: They are no integers.
        IndexError: One is out of range.
    """
    found = np.asarray(indices)
    if found.dtype.kind not in "iu":
        if found.size:
            raise TypeError(f"a record's index must be an integer, got {indices!r}")
        return np.empty(0, np.int64)
    found = found.astype(np.int64, copy=False)
    wrong = (found < -length) | (found >= length)
    if wrong.any():
        raise IndexError(
            f"a record's index must be below the number of records, {length}, got {found[wrong][0]}"
        )
    return np.where(found < 0, found + length, found)


class Parts:
    """Parts of some records each, one after the other: files, row groups.

    Args:
        lengths: Records of each part.
    """

    def __init__(self, lengths: Any) -> None:
        self.starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])

    def __len__(self) -> int:
        """Records in all of them."""
        return int(self.starts[-1])

    def numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The part that each of ``indices`` is in."""
        return np.searchsorted(self.starts, indices, "right") - 1

    def of(
        self, indices: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yields each part that holds some of the records, once.

        Args:
            indices: Shape (rows,), every one in ``range(len(self))``.

        Yields:
            The part's number; which of ``indices`` it holds, as places; their rows in the part.
        """
        if not len(indices):
            return
        parts = self.numbers(indices)
        order = np.argsort(parts, kind="stable")
        sorted_parts = parts[order]
        ends = np.flatnonzero(np.diff(sorted_parts)) + 1
        for places in np.split(order, ends):
            part = int(parts[places[0]])
            yield part, places, indices[places] - self.starts[part]


def records(batch: Any, num_rows: int) -> list[Any]:
    """A batch row by row."""
    leaves, treespec = optree.tree_flatten(batch)
    return [treespec.unflatten([leaf[row] for leaf in leaves]) for row in range(num_rows)]
