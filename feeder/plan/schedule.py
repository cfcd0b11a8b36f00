"""Which positions make up batch *k*, and where one epoch ends and the next begins.

Guarantees:
    * Pure, and O(1) in the step: step one million costs what step zero costs.
    * A `Cursor` holds all there is to know: the batches after it depend on it alone.
    * The real rows of all batches, in order, are positions that only ever grow; none is
      taken twice, and those left out are the tails that ``last_batch="drop"`` drops.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

LastBatch: TypeAlias = Literal["drop", "keep", "pad", "rollover"]
LAST_BATCH: tuple[LastBatch, ...] = get_args(LastBatch)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch: its step, and the position of its first row."""

    step: int
    position: int


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one global batch: positions ``start`` to ``start + num_real``, then padding."""

    step: int
    start: int
    num_real: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cuts the run's positions into global batches.

    Attributes:
        num_records: Positions in an epoch, at least 1.
        batch_size: Rows of a global batch, over all processes.
        num_epochs: Epochs in the run; None: for ever.
        last_batch: What becomes of an epoch's last records where they fill no batch.
    """

    num_records: int
    batch_size: int
    num_epochs: int | None
    last_batch: LastBatch

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; with ``"rollover"`` the fewest: some epochs have one more."""
        full, rest = divmod(self.num_records, self.batch_size)
        return full + (1 if rest and self.last_batch in ("keep", "pad") else 0)

    @property
    def num_steps(self) -> int | None:
        """Batches of the whole run; None: no end."""
        if self.num_epochs is None:
            return None
        return self.first_step(self.num_epochs)

    def first_step(self, epoch: int) -> int:
        """Step of the first batch whose last row lies in ``epoch``."""
        if self.last_batch == "rollover":
            return epoch * self.num_records // self.batch_size
        return epoch * self.steps_per_epoch

    def cursor(self, step: int) -> Cursor:
        """The cursor before batch ``step`` of an unbroken run."""
        if self.last_batch == "rollover":
            return Cursor(step, step * self.batch_size)
        epoch, batch = divmod(step, self.steps_per_epoch)
        return Cursor(step, epoch * self.num_records + batch * self.batch_size)

    def spans(self, cursor: Cursor) -> Iterator[tuple[Span, Cursor]]:
        """Yields each batch from ``cursor`` on, with the cursor that follows it."""
        position = cursor.position
        end = None if self.num_epochs is None else self.num_epochs * self.num_records
        for step in itertools.count(cursor.step):
            if self.last_batch == "rollover":
                left = self.batch_size if end is None else end - position
                num_real = min(self.batch_size, max(left, 0))
                if num_real < self.batch_size:
                    return
            else:
                if end is not None and position >= end:
                    return
                num_real = min(self.batch_size, self.num_records - position % self.num_records)
            num_rows = num_real if self.last_batch == "keep" else self.batch_size
            span = Span(step, position, num_real, num_rows)
            position = self._skip_dropped(position + num_real)
            yield span, Cursor(step + 1, position)

    def _skip_dropped(self, position: int) -> int:
        """Moves over an epoch's tail that fills no batch, where such tails are dropped."""
        left = self.num_records - position % self.num_records
        return position + left if self.last_batch == "drop" and left < self.batch_size else position
