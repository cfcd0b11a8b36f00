"""Transforms of the records of a stream, up to the last one that changes how many there are.

What a filter leaves out, and what a flat-map makes of a record, says which record has which place.
So these transforms, and those before them, are part of reading; the others come when the place of a
record is known. Either way a record's random draws depend on its key alone: on (epoch, shard,
number in the shard), and, of what a flat-map made, on its number among its siblings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from feeder.produce.maps import Maps, own
from feeder.produce.transforms import Filter, FlatMap, first_place

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def shard_key(epoch: int, shard: int) -> int:
    """The key of the first record of a shard; those of the others follow it."""
    return _mixed(_mixed(epoch + 1) ^ shard) >> 1  # so that no sum passes 64 bits


def record_key(key_of_shard: int, number: int) -> int:
    """The key of a record of a shard."""
    return key_of_shard + number


def split(transforms: Sequence[Any], skips: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The transforms that are part of reading, and the others.

    Args:
        transforms: All of them.
        skips: Whether records that raise are left out: any transform may then be a filter.
    """
    last = max(
        (place + 1 for place, one in enumerate(transforms) if isinstance(one, Filter | FlatMap)),
        default=0,
    )
    if skips:
        last = len(transforms)
    return tuple(transforms[:last]), tuple(transforms[last:])


class Expansion:
    """What a record that was read becomes before it has a place: none, one or several records.

    Args:
        transforms: The transforms that are part of reading.
        seed: Key of all randomness.
    """

    def __init__(self, transforms: Sequence[Any], seed: int) -> None:
        self._steps: list[Filter | FlatMap | Maps] = [
            one if isinstance(one, Filter | FlatMap) else Maps([one], seed, first=place)
            for place, one in enumerate(transforms, start=first_place(transforms))
        ]

    def __call__(self, record: Any, key: int) -> list[tuple[Any, int]]:
        """The records, each with its key."""
        records, owned = [(record, key)], False
        for step in self._steps:
            if isinstance(step, Filter):
                records = [pair for pair in records if _stays(step, pair[0])]
                continue
            if not owned:  # it is the source's, or one that a flat-map may have returned twice
                records, owned = [(own(one), of) for one, of in records], True
            if isinstance(step, FlatMap):
                records, owned = [made for pair in records for made in _made(step, *pair)], False
            else:
                records = [(step(one, of), of) for one, of in records]
        return records


def _stays(transform: Filter, record: Any) -> bool:
    stays = transform.predicate(record)
    if stays is None:
        raise TypeError(
            "a Filter's predicate must return whether the record stays, got None; does it end "
            "without a return?"
        )
    return bool(stays)


def _made(transform: FlatMap, record: Any, key: int) -> list[tuple[Any, int]]:
    most = transform.max_records
    records = transform.function(record)
    if records is None:
        raise TypeError(
            "a FlatMap's function must return an iterable of records, got None; does it end "
            "without a return?"
        )
    made = list(itertools.islice(records, most + 1))
    if len(made) > most:
        raise ValueError(
            f"a FlatMap must return at most `max_records` = {most} records for one, got more; "
            "raise `max_records`, or return fewer"
        )
    return [(one, _mixed(key ^ _mixed(number + 1))) for number, one in enumerate(made)]


def _mixed(value: int) -> int:
    """SplitMix64's step, as in `feeder.plan.mix`, of one number."""
    value = (value + 1) * _GOLDEN & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
