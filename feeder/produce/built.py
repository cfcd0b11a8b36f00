"""A batch, or a chunk of it, once it lies in its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from feeder.produce.bad import BadRecord
from feeder.produce.clock import StageTimes
from feeder.produce.layout import Layout


class Built(NamedTuple):
    """A batch, or a chunk of it, that lies in its slot.

    Attributes:
        layout: Where the leaves of the batch are.
        objects: Its leaves that are no arrays of numbers, in order; pickled, or empty, where they
            come from a worker; a tuple of such where they come from several.
        times: What it took.
        bad: Records that were left out or replaced.
    """

    layout: Layout
    objects: list[Any] | bytes | tuple[bytes, ...]
    times: StageTimes
    bad: Sequence[BadRecord] = ()

    @classmethod
    def joined(cls, chunks: Sequence[Built]) -> Built:
        """A batch of its chunks, in order, which have one layout."""
        objects = tuple(chunk.objects for chunk in chunks if isinstance(chunk.objects, bytes))
        return cls(
            chunks[0].layout,
            objects if any(objects) else b"",
            StageTimes(*map(sum, zip(*(chunk.times for chunk in chunks), strict=True))),
            [record for chunk in chunks for record in chunk.bad],
        )
