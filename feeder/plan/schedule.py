"""Which positions make up batch *k*, and where one epoch ends and the next begins.

Guarantees:
    * Pure, and O(1) in the step: step one million costs what step zero costs.
    * A `Cursor` holds all there is to know: the batches after it depend on it alone.
    * The real rows of all batches, in order, are positions that only ever grow; none is
      taken twice, and those left out are the tails that ``last_batch="drop"`` drops.
    * A run that goes on with another batch size goes on at the same position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

LastBatch: TypeAlias = Literal["drop", "keep", "pad", "rollover"]
LAST_BATCH: tuple[LastBatch, ...] = get_args(LastBatch)

MAX_POSITIONS = 2**62
"""Most positions of a run."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch.

    Attributes:
        step: Its step.
        position: Position of its first row.
        draws: Where a sampler that can only be read in order is: JSON-able values. None otherwise.
    """

    step: int
    position: int
    draws: dict[str, Any] | None = None


START = Cursor(0, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one global batch: positions ``start`` to ``start + num_real``, then padding.

    ``epoch`` is that of the last real row.
    """

    step: int
    epoch: int
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
        origin: Where batches of this size began; later than `START` in a run that goes on with
            another batch size.
        endless: Whether there is but one epoch, which nobody will see the end of.
    """

    num_records: int
    batch_size: int
    num_epochs: int | None
    last_batch: LastBatch
    origin: Cursor = START
    endless: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; with ``"rollover"`` the fewest: some epochs have one more."""
        return self._num_batches(self.num_records)

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start; None: no end."""
        if self.num_epochs is None or self.endless:
            return None
        return self.first_step(self.num_epochs)

    def first_step(self, epoch: int) -> int:
        """In a run from the start: step of the first batch whose last row lies in ``epoch``."""
        if self.last_batch == "rollover":
            return epoch * self.num_records // self.batch_size
        return epoch * self.steps_per_epoch

    def cursor(self, step: int) -> Cursor:
        """The cursor before batch ``step``, not before the origin."""
        done = step - self.origin.step
        if self.last_batch == "rollover":
            return Cursor(step, self.origin.position + done * self.batch_size)
        epoch, offset = divmod(self.origin.position, self.num_records)
        first = self._num_batches(self.num_records - offset)  # what its first epoch still has
        if done < first:
            return Cursor(step, self.origin.position + done * self.batch_size)
        epochs, batch = divmod(done - first, self.steps_per_epoch)
        return Cursor(step, (epoch + 1 + epochs) * self.num_records + batch * self.batch_size)

    def resized(self, batch_size: int, at: Cursor) -> Schedule:
        """The schedule that goes on at a cursor of this one with batches of another size."""
        new = replace(self, batch_size=batch_size)
        return replace(new, origin=Cursor(at.step, new._skip_dropped(at.position)))

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
            epoch = (position + num_real - 1) // self.num_records
            span = Span(step, epoch, position, num_real, num_rows)
            position = self._skip_dropped(position + num_real)
            yield span, Cursor(step + 1, position)

    def _num_batches(self, num_left: int) -> int:
        """Batches that the last ``num_left`` records of an epoch make up."""
        full, rest = divmod(num_left, self.batch_size)
        return full + (1 if rest and self.last_batch in ("keep", "pad") else 0)

    def _skip_dropped(self, position: int) -> int:
        """Moves over an epoch's tail that fills no batch, where such tails are dropped."""
        left = self.num_records - position % self.num_records
        return position + left if self.last_batch == "drop" and left < self.batch_size else position
