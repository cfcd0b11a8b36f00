"""Transforms of one record that the library itself provides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder import arguments


@dataclass(frozen=True, slots=True)
class RandomMap:
    """A transform that draws random numbers: ``function(record, rng)`` → record.

    The `numpy.random.Generator` that it gets is keyed by (seed, position of the record, place
    among the loader's transforms), so its draws are the same for any number of workers, after
    any crash or resume, and another epoch draws anew.

    Args:
        function: Called with the record and its Generator; returns the new record.

    Raises:
        TypeError: ``function`` is not callable.
    """

    function: Callable[[Any, np.random.Generator], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"`function` must be callable as function(record, rng), got {self.function!r}"
            )


@dataclass(frozen=True, slots=True)
class Filter:
    """A transform that leaves records of a stream out: those of which ``predicate`` is false.

    The next record of the same shard takes the row: batches stay full, and their order is the same
    for any number of workers.

    Args:
        predicate: Called with the record; returns whether it stays.

    Raises:
        TypeError: ``predicate`` is not callable.
    """

    predicate: Callable[[Any], object]

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise TypeError(
                f"`predicate` must be callable as predicate(record), got {self.predicate!r}"
            )


@dataclass(frozen=True, slots=True)
class FlatMap:
    """A transform that makes any number of records of one, in a stream.

    Args:
        function: Called with the record; returns an iterable of records.
        max_records: The most that it may return for one record, held in memory at a time.

    Raises:
        TypeError: ``function`` is not callable, or ``max_records`` no integer.
        ValueError: ``max_records`` is below 1.
    """

    function: Callable[[Any], Iterable[Any]]
    max_records: int

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"`function` must be callable as function(record), got {self.function!r}"
            )
        size: Any = arguments.integer("max_records", self.max_records, 1)
        object.__setattr__(self, "max_records", size)


@dataclass(frozen=True, slots=True)
class OfSource:
    """What a stream makes of each record that it read, before the loader's transforms."""

    function: Callable[[Any], Any]


def first_place(transforms: Sequence[Any]) -> int:
    """The place of the first transform, so that the loader's own are counted from 0."""
    return -sum(isinstance(one, OfSource) for one in transforms)
