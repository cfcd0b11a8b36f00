"""A batch, or a chunk of it, once it lies in its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from feeder.plan.order import Indices
from feeder.plan.stream import Total
from feeder.produce.bad import BadRecord
from feeder.produce.clock import StageTimes
from feeder.produce.layout import Layout
from feeder.produce.snapshot import Report


class Ended(NamedTuple):
    """There is no such chunk: lanes of the stream end before it.

    Attributes:
        totals: What these lanes gave, by lane.
        bad: Records left out after the last that they gave.
    """

    totals: dict[int, Total]
    bad: Sequence[BadRecord] = ()


class Passed(NamedTuple):
    """A chunk without a row of this process: it was read, for what comes after it.

    Attributes:
        reports: What reading it said.
    """

    reports: Sequence[Report]


class Built(NamedTuple):
    """A batch, or a chunk of it, that lies in its slot.

    Attributes:
        layout: Where the leaves of the batch are.
        objects: Its leaves that are no arrays of numbers, in order; pickled, or empty, where they
            come from a worker; a tuple of such where they come from several.
        times: What it took; a plain tuple of the same items, where it comes from a worker.
        bad: Records that were left out or replaced.
        reports: Of each chunk, where they come from a stream.
        rows: Rows of the batch that the objects of each chunk belong to, where it is not a run.
        parts: What each of its chunks took, where there are several.
    """

    layout: Layout
    objects: list[Any] | bytes | tuple[bytes, ...]
    times: StageTimes
    bad: Sequence[BadRecord] = ()
    reports: Sequence[Report] = ()
    rows: tuple[Indices, ...] = ()
    parts: tuple[StageTimes, ...] = ()

    @classmethod
    def joined(cls, chunks: Sequence[Built]) -> Built:
        """A batch of its chunks, in order, which have one layout."""
        parts = tuple(chunk.times for chunk in chunks)
        objects = tuple(chunk.objects for chunk in chunks if isinstance(chunk.objects, bytes))
        return cls(
            chunks[0].layout,
            objects if any(objects) else b"",
            StageTimes.joined(parts),
            [record for chunk in chunks for record in chunk.bad],
            tuple(report for chunk in chunks for report in chunk.reports),
            tuple(rows for chunk in chunks for rows in chunk.rows),
            parts,
        )
