"""Applies the transforms of records, one after the other.

Guarantees:
    * A transform's random draws depend on (seed, key of the record, place among the transforms).
    * User code gets a record of its own, where `own` was called on it: changing containers and
      arrays in place changes no source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from feeder import tensors
from feeder.plan.rng import RecordRng
from feeder.produce.transforms import OfSource, RandomMap

MAX_ERROR = 300
"""Characters of an error that are kept of a bad record."""


class Maps:
    """Some of a loader's transforms, each of which makes one record of one.

    Args:
        transforms: Callables, `RandomMap` or `OfSource`.
        seed: Key of all randomness.
        first: Place of the first of them among the loader's transforms.
    """

    def __init__(self, transforms: Sequence[Any], seed: int, first: int = 0) -> None:
        self._rng = RecordRng(seed)
        self._transforms: list[tuple[int, Any, bool]] = [
            (place, one.function, isinstance(one, RandomMap))
            if isinstance(one, RandomMap | OfSource)
            else (place, one, False)
            for place, one in enumerate(transforms, start=first)
        ]

    def __bool__(self) -> bool:
        return bool(self._transforms)

    def __call__(self, record: Any, key: int) -> Any:
        """What becomes of a record.

        Args:
            record: The record.
            key: Its position, or what else names it, below 2**64.

        Raises:
            TypeError: A transform returned nothing.
            Exception: Whatever a transform raises.
        """
        for place, function, random in self._transforms:
            record = function(record, self._rng.at(key, place)) if random else function(record)
            if record is None:
                raise TypeError(
                    f"`transforms[{place}]` must return the new record, got None; "
                    "does it end without a return?"
                )
        return record


def own(record: Any) -> Any:
    """The record with containers and arrays of its own.

    A source may hand out what it holds. User code that then changes a record in place would
    change the source, and with it every batch to come that holds this record.
    """
    return optree.tree_map(_own_leaf, record)


def _own_leaf(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.clone() if tensors.is_tensor(leaf) else leaf
