"""The plan of each local batch: which records this process reads for it, in which rows.

Guarantees:
    * Pure: the plans after a cursor depend on (schedule, order, rows) and the cursor alone.
    * Only the rows of this process are ever computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices, Order
from feeder.plan.schedule import Cursor, Schedule, Span

_ROWS_AHEAD = 8192
"""Rows planned at once: NumPy's dispatch then costs a few ns per row, whatever the batch."""

_BATCHES_AHEAD = 256
"""Batches planned at once, at most: where each is small, their Python costs more than the rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows of one local batch, for one worker to build.

    Attributes:
        step: Number of the global batch.
        positions: Position of each row, shape (rows,), int64. A padding row has the position
            of the batch's last real row, and holds that record again.
        indices: Index in the source of each row, shape (rows,), int64.
        mask: True for real rows, shape (rows,); None unless ``last_batch="pad"``.
    """

    step: int
    positions: Indices
    indices: Indices
    mask: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """One local batch, before any record is read.

    Attributes:
        chunk: Its rows on this process.
        num_rows: Rows of the global batch.
        after: The cursor of the batch that follows.
    """

    chunk: Chunk
    num_rows: int
    after: Cursor


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans local batches.

    Attributes:
        schedule: Cuts positions into global batches.
        order: Maps positions to record indices.
        local_rows: Maps the number of rows of a global batch to those of this process.
    """

    schedule: Schedule
    order: Order
    local_rows: Callable[[int], Indices]

    def batch(self, step: int) -> BatchPlan:
        """The plan of batch ``step`` of an unbroken run."""
        span, after = next(self.schedule.spans(self.schedule.cursor(step)))
        positions = self._positions([span])[0]
        return self._plan(span, after, positions, self.order(positions))

    def batches(self, cursor: Cursor) -> Iterator[BatchPlan]:
        """Yields the plan of each batch from ``cursor`` on."""
        spans = self.schedule.spans(cursor)
        local = max(1, len(self.local_rows(self.schedule.batch_size)))
        at_once = min(_BATCHES_AHEAD, max(1, _ROWS_AHEAD // local))
        while ahead := list(itertools.islice(spans, at_once)):
            for run in _runs_of_one_size(ahead):
                positions = self._positions([span for span, _ in run])
                indices = self.order(positions.reshape(-1)).reshape(positions.shape)
                indices.setflags(write=False)  # user code reads them, here as in a worker
                for (span, after), at, of in zip(run, positions, indices, strict=True):
                    yield self._plan(span, after, at, of)

    def _positions(self, run: list[Span]) -> Indices:
        """Positions of the local rows of batches of one size, shape (batches, local rows)."""
        starts = np.array([span.start for span in run])[:, None]
        last_real = np.array([span.start + span.num_real - 1 for span in run])[:, None]
        rows = self.local_rows(run[0].num_rows)
        positions: Indices = np.minimum(starts + rows, last_real)
        return positions

    def _plan(self, span: Span, after: Cursor, positions: Indices, indices: Indices) -> BatchPlan:
        mask = None
        if self.schedule.last_batch == "pad":
            mask = self.local_rows(span.num_rows) < span.num_real
        chunk = Chunk(span.step, positions, indices, mask)
        return BatchPlan(chunk, span.num_rows, after)


def _runs_of_one_size(
    spans: list[tuple[Span, Cursor]],
) -> Iterator[list[tuple[Span, Cursor]]]:
    """Splits spans where their number of rows changes; most often nowhere."""
    for _, run in itertools.groupby(spans, key=lambda pair: pair[0].num_rows):
        yield list(run)
