"""The first records of a stream, as a source of their own: to learn what they look like."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from feeder.errors import StreamError
from feeder.produce.lane import Lane, LaneEnd
from feeder.produce.recipe import Recipe
from feeder.produce.snapshot import Snapshot
from feeder.produce.stream_transforms import Expansion, split
from feeder.sources.stream import Stream


class FirstRecords:
    """Opens the stream, reads as many records as it is asked for, and closes it again.

    Args:
        recipe: Whose source is a stream.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        records = list(itertools.islice(self._records(), len(indices)))
        if not records:
            raise StreamError("`source` must give at least one record, got none", epoch=0)
        return list(itertools.islice(itertools.cycle(records), len(indices)))

    def _records(self) -> Iterator[Any]:
        recipe = self._recipe
        assert isinstance(recipe.source, Stream)
        assert recipe.lanes is not None
        skips = recipe.on_bad_record == "skip"
        early, _ = split(recipe.transforms, skips)
        lanes = replace(recipe.lanes, shuffle=None)  # no more than one record is read for one
        for number in range(lanes.num_lanes):
            expansion = Expansion(early, recipe.seed) if early else None
            lane = Lane(recipe.source, lanes, 0, number, expansion, skips, Snapshot(), 0)
            try:
                for offset in itertools.count():
                    yield lane.take(offset, offset + 1)[0]
                    lane.settle(offset + 1)
            except LaneEnd:
                continue
            finally:
                lane.close()


def sampled(recipe: Recipe) -> Recipe:
    """A recipe of random access whose records are the first of the stream."""
    _, late = split(recipe.transforms, recipe.on_bad_record == "skip")
    return replace(
        recipe,
        source=FirstRecords(recipe),
        transforms=late,
        lanes=None,
        on_bad_record="raise",
    )
