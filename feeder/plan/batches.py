"""The plan of each local batch: which records this process reads for it, in which rows.

Guarantees:
    * Pure: the plans after a cursor depend on (schedule, order, rows) and the cursor alone.
    * Only the rows of this process are ever computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from feeder.errors import StateError
from feeder.plan.chunks import PlannedChunk
from feeder.plan.order import Indices, Order
from feeder.plan.schedule import MAX_POSITIONS, Cursor, Schedule, Span
from feeder.plan.spares import Spares
from feeder.plan.state import Saved

LocalRows: TypeAlias = Callable[[int], Indices]
"""Maps the number of rows of a global batch to the rows of this process.

It raises ValueError where a batch of so many rows cannot be split.
"""

_ROWS_AHEAD = 8192
"""Rows planned at once: NumPy's dispatch then costs a few ns per row, whatever the batch."""

_BATCHES_AHEAD = 256
"""Batches planned at once, at most: where each is small, their Python costs more than the rows."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """One local batch, before any record is read.

    Attributes:
        chunk: Its rows on this process.
        num_rows: Rows of the global batch.
        epoch: Epoch of its last real row.
        after: The cursor of the batch that follows.
    """

    chunk: PlannedChunk
    num_rows: int
    epoch: int
    after: Cursor


class Planner(Protocol):
    """Plans local batches."""

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start; None: no end, or none known."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ; None: no end, or none known."""
        ...

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began; for the state."""
        ...

    def batch(self, step: int) -> BatchPlan | None:
        """The plan of batch ``step`` of a run from the start; None: it has no such step."""
        ...

    def batches(self, start: Cursor, last_epoch: int | None = None) -> Iterator[BatchPlan]:
        """Yields the plan of each batch from ``start`` on; to the end of an epoch, or of the run.

        Nothing of the epoch that follows is asked for.
        """
        ...

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins in a run from the start; None: that is not known beforehand."""
        ...

    def resumed(self, saved: Saved) -> tuple[Planner, Cursor]:
        """The planner, and the place, that go on where a state was saved.

        Raises:
            StateError: The state contradicts itself.
        """
        ...


@dataclass(frozen=True, slots=True)
class PositionPlanner:
    """Plans batches of consecutive positions: a schedule cuts them, an order finds the records.

    Attributes:
        schedule: Cuts positions into global batches.
        order: Maps positions to record indices.
        local_rows: Maps the number of rows of a global batch to those of this process.
        rows_ahead: Rows planned at once.
        spares: Draws records that may replace bad ones; None: none may.
    """

    schedule: Schedule
    order: Order
    local_rows: LocalRows
    rows_ahead: int = _ROWS_AHEAD
    spares: Spares | None = None

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start."""
        return self.schedule.num_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ."""
        return None if self.schedule.endless else self.schedule.steps_per_epoch

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began."""
        return self.schedule.origin

    def batch(self, step: int) -> BatchPlan | None:
        """The plan of batch ``step`` of a run from the start."""
        cursor = self.schedule.cursor(step)
        if cursor.position > MAX_POSITIONS:
            return None
        return next(self.batches(cursor, at_once=1), None)

    def batches(
        self, start: Cursor, last_epoch: int | None = None, at_once: int = _BATCHES_AHEAD
    ) -> Iterator[BatchPlan]:
        """Yields the plan of each batch from ``start`` on, planned so many at once."""
        spans = self.schedule.spans(start)
        if last_epoch is not None:
            spans = itertools.takewhile(lambda pair: pair[0].epoch <= last_epoch, spans)
        local = max(1, len(self.local_rows(self.schedule.batch_size)))
        at_once = min(at_once, max(1, self.rows_ahead // local))
        while ahead := list(itertools.islice(spans, at_once)):
            for run in _runs_of_one_size(ahead):
                yield from self._plans(run)

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins in a run from the start."""
        return self.schedule.cursor(self.schedule.first_step(epoch))

    def resumed(self, saved: Saved) -> tuple[PositionPlanner, Cursor]:
        """The planner, and the place, that go on where a state was saved."""
        schedule = replace(self.schedule, batch_size=saved.batch_size or 0, origin=saved.origin)
        if saved.cursor.draws is not None:
            raise StateError("`state['draws']` must be None for this loader: it is damaged")
        expected = schedule.cursor(saved.cursor.step)
        if saved.cursor != expected:
            raise StateError(
                f"`state` must have the position of its step, {expected.position} of step "
                f"{expected.step}, got {saved.cursor.position}: it is damaged"
            )
        end = None if schedule.num_epochs is None else schedule.num_epochs * schedule.num_records
        if end is not None and saved.cursor.position > end:
            raise StateError(
                f"`state` must be of a place in the {schedule.num_epochs} epochs of this run, got "
                f"one in epoch {saved.cursor.position // schedule.num_records}; raise `num_epochs`"
            )
        if saved.batch_size == self.schedule.batch_size:
            return replace(self, schedule=schedule), saved.cursor
        schedule = schedule.resized(self.schedule.batch_size, saved.cursor)
        rest = (-schedule.origin.position % schedule.num_records) % schedule.batch_size
        if schedule.last_batch == "keep" and rest:
            try:
                self.local_rows(rest)
            except ValueError as error:
                raise StateError(
                    f"`state` goes on in mid-epoch, which would end with a batch of {rest} rows, "
                    f'but {error}; go on with another batch size, or with `last_batch="pad"`'
                ) from None
        return replace(self, schedule=schedule), schedule.origin

    def _plans(self, run: list[tuple[Span, Cursor]]) -> Iterator[BatchPlan]:
        """The plans of batches of one size."""
        num_rows = run[0][0].num_rows
        rows = self.local_rows(num_rows)
        starts = np.array([span.start for span, _ in run])[:, None]
        last_real = np.array([span.start + span.num_real - 1 for span, _ in run])[:, None]
        positions: Indices = np.minimum(starts + rows, last_real)
        indices = self.order(positions.reshape(-1)).reshape(positions.shape)
        indices.setflags(write=False)  # user code reads them, here as in a worker
        padded = self.schedule.last_batch == "pad"
        for (span, after), at, of in zip(run, positions, indices, strict=True):
            mask = rows < span.num_real if padded else None
            spares = self.spares(at) if self.spares else None
            yield BatchPlan(
                PlannedChunk(span.step, at, of, mask, spares), num_rows, span.epoch, after
            )


def _runs_of_one_size(
    spans: list[tuple[Span, Cursor]],
) -> Iterator[list[tuple[Span, Cursor]]]:
    """Splits spans where their number of rows changes; most often nowhere."""
    for _, run in itertools.groupby(spans, key=lambda pair: pair[0].num_rows):
        yield list(run)
