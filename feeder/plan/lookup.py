"""The user's own order, where any part of it can be looked up: samplers with ``len()`` and ``[]``.

Guarantees:
    * O(1) resume: nothing is read but what the batches at hand need.
    * An index that is none is an error, at the batch that it belongs to.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feeder.errors import SamplerError, StateError
from feeder.plan.batches import BatchPlan, LocalRows
from feeder.plan.chunks import PlannedChunk
from feeder.plan.order import Indices
from feeder.plan.schedule import START, Cursor
from feeder.plan.state import Saved

BATCH_POSITIONS = 2**31
"""Positions of each batch of a ``batch_sampler``, whose rows take the first of them.

How many rows the batches before it have, only reading them all could tell.
"""

_PROBES = 32
_HASHED_AT_ONCE = 2**20


class Table:
    """The order of a ``sampler`` that is an array or list of indices.

    Args:
        indices: Record index at each position of an epoch, shape (positions,), checked.
    """

    def __init__(self, indices: np.ndarray[Any, Any]) -> None:
        self._indices = indices

    def __call__(self, positions: Indices) -> Indices:
        """Returns the record index at each position."""
        return self._indices[positions % len(self._indices)].astype(np.int64)

    def describe(self) -> dict[str, Any]:
        """What tells it from other samplers, JSON-able."""
        crc = 0
        for start in range(0, len(self._indices), _HASHED_AT_ONCE):
            crc = crc_of(self._indices[start : start + _HASHED_AT_ONCE], crc)
        return {"kind": "indices", "length": len(self._indices), "crc": crc}


class Lookup:
    """The order of a ``sampler`` that is any object with ``len()`` and ``[]``."""

    def __init__(self, sampler: Sequence[int], num_records: int) -> None:
        self._sampler = sampler
        self._num_records = num_records
        self._length = len(sampler)
        self._told = threading.Lock()  # iterators may be at different epochs, in several threads

    def __call__(self, positions: Indices) -> Indices:
        """Returns the record index at each position.

        Raises:
            SamplerError: The sampler gave something else.
            Exception: Whatever its code raises.
        """
        offsets = (positions % self._length).tolist()
        values = self._values(offsets, (positions // self._length).tolist())
        indices = as_indices(values)
        if indices is None or len(_out_of_range(indices, self._num_records)):
            row = next((row for row, value in enumerate(values) if not self._is_record(value)), 0)
            raise SamplerError(
                f"`sampler` must give integers from 0 to {self._num_records - 1}, the records of "
                f"`source`, got {values[row]!r} at {offsets[row]}",
                position=int(positions[row]),
            )
        return indices

    def describe(self) -> dict[str, Any]:
        """What tells it from other samplers, JSON-able: a few of its indices stand for all."""
        return {
            "kind": type(self._sampler).__qualname__,
            "length": self._length,
            "crc": crc_of(self(_probes(self._length))),
        }

    def _values(self, offsets: list[int], epochs: list[int]) -> list[Any]:
        """What the sampler gives; told the epoch, where it wants to know."""
        if not hasattr(self._sampler, "set_epoch"):
            return [self._sampler[offset] for offset in offsets]
        values = []
        with self._told:
            told = None
            for offset, epoch in zip(offsets, epochs, strict=True):
                if epoch != told:
                    self._sampler.set_epoch(epoch)
                    told = epoch
                values.append(self._sampler[offset])
        return values

    def _is_record(self, value: Any) -> bool:
        indices = as_indices([value])
        return indices is not None and not len(_out_of_range(indices, self._num_records))


@dataclass(frozen=True, slots=True)
class BatchLookup:
    """Plans the batches of a ``batch_sampler`` with ``len()`` and ``[]``.

    Attributes:
        sampler: Its item *k* holds the record indices of batch *k* of an epoch.
        num_records: Records of the source.
        num_epochs: Epochs in the run; None: for ever.
        local_rows: Maps the number of rows of a global batch to those of this process.
        told: Held while the sampler is told the epoch and asked.
    """

    sampler: Sequence[Sequence[int]]
    num_records: int
    num_epochs: int | None
    local_rows: LocalRows
    told: threading.Lock = field(default_factory=threading.Lock)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return len(self.sampler)

    @property
    def num_steps(self) -> int | None:
        """Batches of a run."""
        return None if self.num_epochs is None else self.num_epochs * len(self.sampler)

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began."""
        return START

    def batch(self, step: int) -> BatchPlan | None:
        """The plan of batch ``step``."""
        return next(self.batches(self._cursor(step)), None)

    def batches(self, start: Cursor, last_epoch: int | None = None) -> Iterator[BatchPlan]:
        """Yields the plan of each batch from ``start`` on, to the end of an epoch."""
        for step in itertools.count(start.step):
            if self.num_steps is not None and step >= self.num_steps:
                return
            epoch, number = divmod(step, len(self.sampler))
            if last_epoch is not None and epoch > last_epoch:
                return
            batch = self._item(epoch, number)
            yield batch_plan(
                step, epoch, batch, self.num_records, self.local_rows, self._cursor(step + 1)
            )

    def epoch(self, epoch: int) -> Cursor:
        """Where an epoch begins."""
        return self._cursor(epoch * len(self.sampler))

    def resumed(self, saved: Saved) -> tuple[BatchLookup, Cursor]:
        """The planner, and the place, that go on where a state was saved."""
        expected = self._cursor(saved.cursor.step)
        if saved.cursor != expected:
            raise StateError(
                f"`state` must have the position of its step, {expected.position} of step "
                f"{expected.step}, got {saved.cursor.position}: it is damaged"
            )
        return self, expected

    def describe(self) -> dict[str, Any]:
        """What tells it from other samplers, JSON-able: a few of its batches stand for all."""
        crc = 0
        for number in _probes(len(self.sampler)).tolist():
            indices = as_indices(self._item(0, number))
            if indices is not None:
                crc = crc_of(np.array([len(indices), *indices]), crc)
        kind = type(self.sampler).__qualname__
        return {"kind": f"batches of {kind}", "length": len(self.sampler), "crc": crc}

    def _item(self, epoch: int, number: int) -> Any:
        if hasattr(self.sampler, "set_epoch"):
            with self.told:
                self.sampler.set_epoch(epoch)
                return self.sampler[number]
        return self.sampler[number]

    def _cursor(self, step: int) -> Cursor:
        return Cursor(step, step * BATCH_POSITIONS)


def batch_plan(
    step: int,
    epoch: int,
    batch: Any,
    num_records: int,
    local_rows: LocalRows,
    after: Cursor,
) -> BatchPlan:
    """The plan of a batch that a ``batch_sampler`` gave.

    Raises:
        SamplerError: It is no batch.
    """
    indices = as_indices(batch)
    if indices is None or not len(indices):
        raise SamplerError(
            f"`batch_sampler` must give batches of record indices, at least one in each, got "
            f"{batch!r} for step {step}",
            step=step,
        )
    wrong = _out_of_range(indices, num_records)
    if len(wrong):
        raise SamplerError(
            f"`batch_sampler` must give integers from 0 to {num_records - 1}, the records of "
            f"`source`, got {indices[wrong[0]]} in row {wrong[0]} of step {step}",
            step=step,
        )
    try:
        rows = local_rows(len(indices))
    except ValueError as error:
        raise SamplerError(
            f"`batch_sampler` gave {len(indices)} rows for step {step}: {error}", step=step
        ) from None
    positions = step * BATCH_POSITIONS + rows
    indices = indices[rows]
    indices.setflags(write=False)  # user code reads them, here as in a worker
    chunk = PlannedChunk(step, positions, indices, None)
    return BatchPlan(chunk, len(batch), epoch, after)


def as_indices(values: Any) -> Indices | None:
    """The values as indices; None where they are no integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        return None
    return array.astype(np.int64)


def crc_of(indices: np.ndarray[Any, Any], crc: int = 0) -> int:
    """Checksum of indices that follow those of ``crc``; the same on every platform."""
    return zlib.crc32(indices.astype("<i8").tobytes(), crc)


def _probes(length: int) -> Indices:
    return np.linspace(0, length - 1, min(_PROBES, length)).astype(np.int64)


def _out_of_range(indices: Indices, num_records: int) -> Indices:
    return np.flatnonzero((indices < 0) | (indices >= num_records))
