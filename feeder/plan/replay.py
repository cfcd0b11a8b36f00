"""The user's own order, where it can only be read from its beginning: iterable samplers.

Guarantees:
    * The same batches as if the sampler were the list of its items, whatever the number of
      processes; each of them reads all of it.
    * An item that is no index is an error, at the batch that it belongs to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from feeder.errors import SamplerError, StateError
from feeder.plan.batches import BatchPlan, LocalRows
from feeder.plan.chunks import PlannedChunk
from feeder.plan.lookup import BATCH_POSITIONS, batch_plan
from feeder.plan.order import Indices
from feeder.plan.reader import Reader, check_draws
from feeder.plan.schedule import START, Cursor, LastBatch, Schedule
from feeder.plan.state import Saved


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """Plans batches of the indices that an iterable ``sampler`` gives.

    Attributes:
        sampler: Gives the record indices of an epoch each time it is iterated over.
        length: How many; None: unknown.
        num_records: Records of the source.
        batch_size: Rows of a global batch.
        num_epochs: Epochs in the run; None: for ever.
        last_batch: What becomes of an epoch's last records where they fill no batch.
        local_rows: Maps the number of rows of a global batch to those of this process.
    """

    sampler: Iterable[int]
    length: int | None
    num_records: int
    batch_size: int
    num_epochs: int | None
    last_batch: LastBatch
    local_rows: LocalRows

    @property
    def schedule(self) -> Schedule | None:
        """Steps and epochs; None: only reading can tell."""
        if self.length is None:
            return None
        return Schedule(self.length, self.batch_size, self.num_epochs, self.last_batch)

    @property
    def num_steps(self) -> int | None:
        """Batches of a run; None: no end, or none known."""
        return None if self.schedule is None else self.schedule.num_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ; None: unknown."""
        return None if self.schedule is None else self.schedule.steps_per_epoch

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began: where the run is says enough, without it."""
        return START

    def batch(self, step: int) -> BatchPlan | None:
        """The plan of batch ``step``, after reading all before it."""
        return next(itertools.islice(self.batches(START), step, None), None)

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins; None: only reading can tell."""
        if self.schedule is None or self.length is None:
            return START if epoch == 0 else None
        cursor = self.schedule.cursor(self.schedule.first_step(epoch))
        of, items = divmod(cursor.position, self.length)
        draws = {"epoch": of, "items": items, "crc": None, "snapshot": None}
        return Cursor(cursor.step, cursor.position, draws)

    def resumed(self, saved: Saved) -> tuple[ReplayedRows, Cursor]:
        """The planner, and the place, that go on where a state was saved."""
        cursor = saved.cursor
        _check(saved, cursor.position, self.length, self.num_epochs)
        if saved.batch_size == self.batch_size or cursor.draws is None or self.length is None:
            return self, cursor
        left = self.length - cursor.draws["items"]
        if self.last_batch == "drop" and left < (saved.batch_size or 0):
            # The epoch's rest was dropped, under the batch size that it had.
            draws = {**cursor.draws, "items": self.length, "crc": None}
            cursor = Cursor(cursor.step, cursor.position + left, draws)
        return self, cursor

    def batches(self, start: Cursor, last_epoch: int | None = None) -> Iterator[BatchPlan]:
        """Yields the plan of each batch from ``start`` on, to the end of an epoch.

        Raises:
            SamplerError: The sampler gave what is no order of records.
            Exception: Whatever its code raises.
        """
        reader = Reader("sampler", self.sampler, self.length, start.draws, start.position)
        step, position = start.step, start.position
        rollover = self.last_batch == "rollover"
        parts: list[Indices] = []
        missing = self.batch_size
        while True:
            parts.append(reader.indices(missing))
            missing -= len(parts[-1])
            over = missing > 0
            if over:
                self._check_epoch(reader)
            num_real = self.batch_size - missing
            if not over or (num_real and self.last_batch in ("keep", "pad")):
                indices = np.concatenate(parts)
                cursor = Cursor(step + 1, position + num_real, reader.draws)
                yield self._plan(step, reader.epoch, position, indices, cursor)
                step += 1
            if not (over and rollover):
                position += num_real
                parts, missing = [], self.batch_size
            if over:
                if _is_last(reader.epoch, self.num_epochs) or reader.epoch == last_epoch:
                    if start == START and step == 0:
                        raise SamplerError(
                            f"`sampler` must give at least one batch of {self.batch_size} indices "
                            "in all epochs, got fewer"
                        )
                    return
                reader.next_epoch()

    def _check_epoch(self, reader: Reader) -> None:
        """Refuses epochs without a batch: there could be no end of them."""
        fewest = self.batch_size if self.last_batch == "drop" else 1
        if reader.num_items < fewest:
            raise SamplerError(
                f"`sampler` must give at least {fewest} indices in each epoch, with "
                f"`batch_size` {self.batch_size} and `last_batch` {self.last_batch!r}, got "
                f"{reader.num_items} in epoch {reader.epoch}"
            )

    def _plan(self, step: int, epoch: int, start: int, given: Indices, after: Cursor) -> BatchPlan:
        wrong = np.flatnonzero((given < 0) | (given >= self.num_records))
        if len(wrong):
            raise SamplerError(
                f"`sampler` must give integers from 0 to {self.num_records - 1}, the records of "
                f"`source`, got {given[wrong[0]]} at {start + wrong[0]}",
                step=step,
                position=int(start + wrong[0]),
            )
        num_rows = len(given) if self.last_batch == "keep" else self.batch_size
        try:
            rows = self.local_rows(num_rows)
        except ValueError as error:
            raise SamplerError(
                f"`sampler` gave {num_rows} rows for step {step}, the last of an epoch: {error}",
                step=step,
            ) from None
        real = np.minimum(rows, len(given) - 1)
        indices = given[real]
        indices.setflags(write=False)  # user code reads them, here as in a worker
        mask = rows < len(given) if self.last_batch == "pad" else None
        return BatchPlan(PlannedChunk(step, start + real, indices, mask), num_rows, epoch, after)


@dataclass(frozen=True, slots=True)
class ReplayedBatches:
    """Plans the batches that an iterable ``batch_sampler`` gives.

    Attributes:
        sampler: Gives the record indices of each batch of an epoch, each time it is iterated over.
        length: How many batches; None: unknown.
        num_records: Records of the source.
        num_epochs: Epochs in the run; None: for ever.
        local_rows: Maps the number of rows of a global batch to those of this process.
    """

    sampler: Iterable[Iterable[int]]
    length: int | None
    num_records: int
    num_epochs: int | None
    local_rows: LocalRows

    @property
    def num_steps(self) -> int | None:
        """Batches of a run; None: no end, or none known."""
        if self.length is None or self.num_epochs is None:
            return None
        return self.num_epochs * self.length

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch; None: unknown."""
        return self.length

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began."""
        return START

    def batch(self, step: int) -> BatchPlan | None:
        """The plan of batch ``step``, after reading all before it."""
        return next(itertools.islice(self.batches(START), step, None), None)

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins; None: only reading can tell."""
        if self.length is None:
            return START if epoch == 0 else None
        step = epoch * self.length
        draws = {"epoch": epoch, "items": 0, "crc": None, "snapshot": None}
        return Cursor(step, step * BATCH_POSITIONS, draws)

    def resumed(self, saved: Saved) -> tuple[ReplayedBatches, Cursor]:
        """The planner, and the place, that go on where a state was saved."""
        _check(saved, saved.cursor.step, self.length, self.num_epochs)
        return self, saved.cursor

    def batches(self, start: Cursor, last_epoch: int | None = None) -> Iterator[BatchPlan]:
        """Yields the plan of each batch from ``start`` on, to the end of an epoch.

        Raises:
            SamplerError: The sampler gave what is no batch of records.
            Exception: Whatever its code raises.
        """
        reader = Reader("batch_sampler", self.sampler, self.length, start.draws, start.step)
        step = start.step
        while True:
            while (batch := reader.batch()) is not None:
                after = Cursor(step + 1, (step + 1) * BATCH_POSITIONS, reader.draws)
                yield batch_plan(
                    step, reader.epoch, batch, self.num_records, self.local_rows, after
                )
                step += 1
            if not reader.num_items:
                raise SamplerError(
                    "`batch_sampler` must give at least one batch in each epoch, got none in "
                    f"epoch {reader.epoch}"
                )
            if _is_last(reader.epoch, self.num_epochs) or reader.epoch == last_epoch:
                return
            reader.next_epoch()


def _is_last(epoch: int, num_epochs: int | None) -> bool:
    return num_epochs is not None and epoch + 1 >= num_epochs


def _check(saved: Saved, items_done: int, length: int | None, num_epochs: int | None) -> None:
    """Checks that a state agrees with itself, as far as this can be told without reading."""
    draws = saved.cursor.draws
    if draws is None:
        if saved.cursor != START:
            raise StateError(
                "`state['draws']` must say where the sampler is after the first step, got None: "
                "it is damaged"
            )
        return
    check_draws(draws)
    if num_epochs is not None and draws["epoch"] >= num_epochs:
        raise StateError(
            f"`state['draws']['epoch']` must be below `num_epochs` = {num_epochs}, got "
            f"{draws['epoch']}"
        )
    if length is not None and draws["epoch"] * length + draws["items"] != items_done:
        raise StateError(
            f"`state['draws']` must speak of {items_done} items read, in epochs of {length}, got "
            f"{draws['items']} of epoch {draws['epoch']}: it is damaged"
        )
