"""The records of one chunk of a stream, once they are read: what is left to do to each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feeder.plan.chunks import StreamChunk
from feeder.produce.ambient import Ambient, Scope
from feeder.produce.clock import Clock
from feeder.produce.maps import Maps, own
from feeder.produce.recipe import Recipe
from feeder.produce.stream_transforms import split
from feeder.produce.transforms import first_place


class StreamRecords:
    """Applies the transforms that come when a record's place is known.

    Args:
        recipe: Whose source is a stream.
        ambient: The global generators; None: left alone.
    """

    def __init__(self, recipe: Recipe, ambient: Ambient | None) -> None:
        early, late = split(recipe.transforms, recipe.on_bad_record == "skip")
        first = first_place(recipe.transforms) + len(early)
        self._maps = Maps(late, recipe.seed, first)
        self._ambient = ambient
        # A record stays where it was read until its batch is settled, and may be asked for again.
        self._owned = bool(late or recipe.collate)

    @property
    def as_read(self) -> bool:
        """Whether records are those that were read, all of them objects of their own."""
        return not self._owned

    def rows(
        self, chunk: StreamChunk, records: list[Any], clock: Clock
    ) -> Iterator[tuple[int, Any]]:
        """Yields row and record, in order; the clock then runs for the collation.

        Args:
            chunk: Which records; it knows their names.
            records: As they were read.
            clock: Told what is being done.
        """
        assert chunk.names is not None
        named = zip(records, chunk.names(), strict=True)
        for row, (record, (key, shard, number)) in enumerate(named):
            clock.enter("transform", row)
            try:
                record = self._transformed(own(record), key)
            except BaseException:
                clock.fail("transform", int(chunk.positions[row]), shard, number)
                raise
            clock.enter("collate", row)
            yield row, record

    def _transformed(self, record: Any, key: int) -> Any:
        if self._ambient is not None and self._ambient.keyed:
            self._ambient.key(Scope.STREAM, key)
        return self._maps(record, key)
