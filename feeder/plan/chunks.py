"""Rows of a local batch, for a worker to build: by index in a source, or by lane of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices
from feeder.plan.patterns import Pattern

Name: TypeAlias = tuple[int, int, int]
"""How a record of a stream is called: its key, its shard, and its number in the shard."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedChunk:
    """Rows whose records are known beforehand.

    Attributes:
        step: Number of the global batch.
        positions: Position of each row, shape (rows,), int64. A padding row has the position
            of the batch's last real row, and holds that record again.
        indices: Index in the source of each row, shape (rows,), int64.
        mask: True for real rows, shape (rows,); None unless ``last_batch="pad"``.
        spares: Indices of records that may replace each row's, where it is bad, in the order in
            which they are tried, shape (rows, spares); None unless bad records are replaced.
        first_row: Row of the local batch that the first of these rows is.
        part_of: Rows of the local batch, where these are but some of them; else None.
        given: What a callable gave for it, perhaps pickled; None with other sources.
    """

    step: int
    positions: Indices
    indices: Indices
    mask: NDArray[np.bool_] | None
    spares: Indices | None = None
    first_row: int = 0
    part_of: int | None = None
    given: Any = None

    @property
    def is_part(self) -> bool:
        """Whether other chunks hold the other rows of the batch."""
        return self.part_of is not None

    @property
    def num_rows(self) -> int:
        """Rows of the chunk."""
        return len(self.indices)

    @property
    def batch_rows(self) -> int:
        """Rows of the local batch."""
        return len(self.indices) if self.part_of is None else self.part_of

    @property
    def num_real(self) -> int:
        """Rows of the whole local batch, of which this is the chunk, that are no padding."""
        return self.batch_rows if self.mask is None else int(np.count_nonzero(self.mask))

    def rows(self, first: int, stop: int) -> PlannedChunk:
        """A chunk of some of the rows of a whole local batch."""
        return PlannedChunk(
            self.step,
            self.positions[first:stop],
            self.indices[first:stop],
            None if self.mask is None else self.mask[first:stop],
            None if self.spares is None else self.spares[first:stop],
            first,
            None if stop - first == self.batch_rows else self.batch_rows,
        )

    def name(self, row: int) -> tuple[int, int | None]:
        """Index of a row's record in the source, and None, since it is in no shard."""
        return int(self.indices[row]), None

    def split(self, num_chunks: int) -> list[PlannedChunk]:
        """Chunks of about the same number of rows, which hold all rows of a local batch."""
        num_chunks = min(num_chunks, self.batch_rows)
        bounds = [self.batch_rows * number // num_chunks for number in range(num_chunks + 1)]
        return (
            [self.rows(*pair) for pair in itertools.pairwise(bounds)] if num_chunks > 1 else [self]
        )


@dataclass(slots=True, eq=False)
class StreamChunk:
    """Records that are read from the lanes of a stream.

    Attributes:
        step: Number of the global batch.
        pattern: Which records, one entry for each, in order.
        cycle: The cycle of the pattern that the chunk is in.
        first_lane: The lane that the pattern counts from.
        position: Position of the batch's first row.
        run: Number of the run that reads, which has lanes of its own.
        live: Numbers of all runs that still read; the lanes of others can be closed.
        settled: Step before which nothing will be asked for again.
        snapshot: Whether to say where the lanes can be opened after these records.
        is_part: Whether other chunks hold the other rows of the batch.
        names: What the records are called, where they were read; None: not yet.
    """

    step: int
    pattern: Pattern
    cycle: int
    first_lane: int
    position: int
    run: int
    live: tuple[int, ...]
    settled: int
    snapshot: bool
    is_part: bool = False
    names: Callable[[], Sequence[Name]] | None = None

    def of(self, pattern: Pattern, is_part: bool) -> StreamChunk:
        """The same for other entries of the batch."""
        return StreamChunk(
            self.step,
            pattern,
            self.cycle,
            self.first_lane,
            self.position,
            self.run,
            self.live,
            self.settled,
            self.snapshot,
            is_part,
        )

    def named(self, names: Callable[[], Sequence[Name]]) -> StreamChunk:
        """The same, once it is known what the records are called."""
        found = self.of(self.pattern, self.is_part)
        found.names = names
        return found

    @property
    def positions(self) -> Indices:
        """Position of each row, as of `PlannedChunk`."""
        return self.pattern.entries + self.position

    @property
    def indices(self) -> Indices:
        """Number of each row's record in its lane."""
        return self.pattern.at(self.cycle)

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """As of `PlannedChunk`."""
        return self.pattern.mask

    @property
    def first_row(self) -> int:
        """As of `PlannedChunk`."""
        return self.pattern.first_row if self.is_part else 0

    @property
    def num_rows(self) -> int:
        """Rows of the chunk, those of other processes among them."""
        return len(self.pattern)

    @property
    def batch_rows(self) -> int:
        """Rows of the local batch."""
        return self.pattern.num_rows

    @property
    def num_real(self) -> int:
        """Rows of the whole local batch, of which this is the chunk, that are no padding."""
        if self.pattern.mask is None:
            return self.pattern.num_rows
        return int(np.count_nonzero(self.pattern.mask & (self.pattern.rows >= 0)))

    def name(self, row: int) -> tuple[int, int | None]:
        """Number in its shard of a row's record, and the shard.

        Where it was not read yet, the number is that in the lane, and the shard None.
        """
        if self.names is None:
            return int(self.indices[row]), None
        _, shard, number = self.names()[row]
        return number, shard


Chunk: TypeAlias = PlannedChunk | StreamChunk
"""Rows of one local batch."""
