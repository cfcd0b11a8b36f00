"""Indices of records of composed sources, checked."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from feeder.plan.order import Indices


def in_range(index: Any, length: int, kind: str) -> int:
    """An index from 0, where a negative one counts from the end, as with a list.

    Raises:
        TypeError: It is no integer.
        IndexError: It is out of range.
    """
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(
            f"`index` of feeder.{kind} must be an integer, got {index!r}; feeder.subset(source, "
            "indices) takes slices, ranges and arrays"
        ) from None
    if not -length <= number < length:
        raise IndexError(
            f"`index` of feeder.{kind} must be from {-length} to {length - 1}, of its {length} "
            f"records, got {number}"
        )
    return number % length


def checked(indices: Any, length: int, kind: str) -> Indices:
    """Indices of a chunk.

    Raises:
        IndexError: One of them is out of range.
    """
    found: Indices = np.asarray(indices, np.int64)
    if len(found) and (found.min() < 0 or found.max() >= length):
        wrong = found[(found < 0) | (found >= length)][0]
        raise IndexError(
            f"`indices` of feeder.{kind} must be from 0 to {length - 1}, the last of its records, "
            f"got {wrong}"
        )
    return found
