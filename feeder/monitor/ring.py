"""What the last batches took: a ring of numbers, written once for each batch.

Guarantees:
    * `Ring.add` takes less than a microsecond, and memory does not grow.
    * Totals are of all batches, everything else of the last `STEPS_KEPT`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from enum import IntEnum, auto
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.monitor.timeline import STEPS_KEPT
from feeder.produce.clock import StageTimes

_PARTS_PER_STEP = 4
"""Chunks of batches cut in several that are kept, on average."""


class Column(IntEnum):
    """What is noted of a batch; times are nanoseconds of `time.perf_counter_ns`."""

    STEP = 0
    ENTERED = auto()  # next() was called
    LEFT = auto()  # and returned the batch
    SLEPT = auto()  # in between, it waited so long for workers
    PLACE_BEGAN = auto()
    PLACE_ENDED = auto()
    CALL_BEGAN = auto()  # of a callable, in this process
    CALL_ENDED = auto()
    RECORDS = auto()
    BYTES = auto()
    # As of `StageTimes`.
    READ = auto()
    TRANSFORM = auto()
    COLLATE = auto()
    BATCH_TRANSFORM = auto()
    BEGAN = auto()
    ENDED = auto()
    WORKER = auto()


Numbers: TypeAlias = NDArray[np.int64]

_ROW = struct.Struct(f"={len(Column)}q")


class Ring:
    """Numbers of batches.

    Attributes:
        count: Batches added.
        parts: Step and times of chunks, where batches were cut into several.
    """

    def __init__(self) -> None:
        self.count = 0
        self.parts: deque[tuple[int, StageTimes]] = deque(maxlen=_PARTS_PER_STEP * STEPS_KEPT)
        self._bytes = bytearray(_ROW.size * STEPS_KEPT)
        self._rows: Numbers = np.frombuffer(self._bytes, np.int64).reshape(STEPS_KEPT, len(Column))
        self._next = 0  # row to write
        self._sums = np.zeros(len(Column), np.int64)  # of the rounds that are over

    def add(self, numbers: Sequence[int], times: StageTimes) -> None:
        """Takes note of a batch.

        Args:
            numbers: One for each `Column` before those of `StageTimes`.
            times: Those.
        """
        _ROW.pack_into(self._bytes, self._next * _ROW.size, *numbers, *times)
        self.count += 1
        self._next += 1
        if self._next == STEPS_KEPT:
            self._sums += durations(self._rows).sum(axis=0)
            self._next = 0

    def totals(self) -> Numbers:
        """Sums over all batches, by column of `durations`."""
        totals: Numbers = self._sums + durations(self._rows[: self._next]).sum(axis=0)
        return totals

    def last(self) -> Numbers:
        """The last batches, oldest first, shape (batches, columns)."""
        if self.count < STEPS_KEPT:
            return self._rows[: self._next].copy()
        return np.roll(self._rows, -self._next, axis=0)


def durations(rows: Numbers) -> Numbers:
    """Rows in which the beginning of what has an end is replaced by how long it took."""
    found = rows.copy()
    for began, ended in (
        (Column.ENTERED, Column.LEFT),
        (Column.PLACE_BEGAN, Column.PLACE_ENDED),
        (Column.CALL_BEGAN, Column.CALL_ENDED),
        (Column.BEGAN, Column.ENDED),
    ):
        found[:, began] = rows[:, ended] - rows[:, began]
        found[:, ended] = 0  # a sum of them would be too large
    return found
