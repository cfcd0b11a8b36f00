"""Some records of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices
from feeder.sources.composed import Composed, Route
from feeder.sources.reading import child_of


def subset(source: object, indices: Any) -> Composed:
    """A source of some records of another, in the order of ``indices``.

    Args:
        source: As for a loader, with random access.
        indices: A range or a slice, which takes no memory; or integers from 0 to
            ``len(source) - 1``, a list or an array of shape (records,), which may repeat; or a
            boolean mask, an array of shape (len(source),). They are copied.

    Raises:
        TypeError: ``indices`` are no integers, or ``source`` has no random access.
        ValueError: An index is out of range or negative, or the mask has another length.
    """
    child = child_of("source", source)
    return Composed("subset", [child], ["source"], _route(indices, len(child)))


def _route(indices: Any, length: int) -> Route:
    if isinstance(indices, slice):
        indices = range(*indices.indices(length))
    if isinstance(indices, range):
        for place, index in ((0, indices[:1]), (len(indices) - 1, indices[-1:])):
            if index and not 0 <= index[0] < length:
                raise _out_of_range(index[0], place, length)
        return Stride(indices)
    array = _as_array(indices)
    if array.dtype == np.bool_:
        if len(array) != length:
            raise ValueError(
                f"`indices` must have {length} values, one for each record of `source`, where it "
                f"is a boolean mask, got {len(array)}"
            )
        return Table(np.flatnonzero(array), length)
    wrong = np.flatnonzero((array < 0) | (array >= length))
    if len(wrong):
        raise _out_of_range(int(array[wrong[0]]), int(wrong[0]), length)
    return Table(array, length)


def _as_array(indices: Any) -> NDArray[Any]:
    rule = (
        "`indices` must be a range, a slice, a sequence of integers or a boolean mask of shape "
        "(records,)"
    )
    if isinstance(indices, str | bytes | dict | set) or not (
        isinstance(indices, Sequence) or hasattr(indices, "__array__")
    ):
        raise TypeError(f"{rule}, got {indices!r}")
    try:
        array = np.asarray(indices)
    except ValueError:  # lists of different lengths
        raise TypeError(f"{rule}, got {type(indices).__name__} of unequal items") from None
    if array.shape == (0,):
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise TypeError(f"{rule}, got one of shape {array.shape} and dtype {array.dtype}")
    return array


def _out_of_range(index: int, place: int, length: int) -> ValueError:
    return ValueError(
        f"`indices` must be from 0 to {length - 1}, the last record of `source`, got {index} at "
        f"{place}"
    )


class Stride:
    """Indices at equal distances."""

    def __init__(self, indices: range) -> None:
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __call__(self, indices: Indices) -> tuple[None, Indices]:
        return None, self._indices.start + indices * self._indices.step


class Table:
    """Indices, one by one.

    Args:
        indices: Of records, each from 0 to ``length - 1``.
        length: Records of the source.
    """

    def __init__(self, indices: NDArray[Any], length: int) -> None:
        # Workers share it as one array; half the memory where that will do.
        self._indices = indices.astype(np.int32 if length <= 2**31 else np.int64)

    def __len__(self) -> int:
        return len(self._indices)

    def __call__(self, indices: Indices) -> tuple[None, Indices]:
        return None, self._indices[indices].astype(np.int64)
