"""What the last batches took: a row of numbers for each.

Guarantees:
    * A batch costs an append to a list; arrays are made of many of them at once.
    * Memory does not grow: totals are of all batches, everything else of the last `STEPS_KEPT`.
    * Any thread may ask while another one adds.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
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
    CALLED = auto()  # a callable took so long, in this process
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
Row: TypeAlias = tuple[int, ...]
"""One number for each `Column`."""


class Ring:
    """Numbers of batches.

    Attributes:
        new: Rows of batches to which others are appended; `read` is due at `STEPS_KEPT` of them.
        parts: Step and times of chunks, where batches were cut into several.
        calls: Step, beginning and end of calls of a callable.
        first: The row of the first batch; None: it was not read.
    """

    def __init__(self) -> None:
        self.parts: deque[tuple[int, StageTimes]] = deque(maxlen=_PARTS_PER_STEP * STEPS_KEPT)
        self.calls: deque[tuple[int, int, int]] = deque(maxlen=STEPS_KEPT)
        self.new: list[Row] = []
        self.first: Row | None = None
        self._rows: Numbers = np.empty((0, len(Column)), np.int64)
        self._sums: Numbers = np.zeros(len(Column), np.int64)
        self._count = 0
        self._lock = threading.RLock()  # a signal handler may ask too

    def read(self) -> tuple[int, Numbers, Numbers]:
        """Batches so far; their sums, by column of `durations`; the rows of the last, in order."""
        with self._lock:
            rows = self.new.copy()
            del self.new[: len(rows)]  # others may have been added meanwhile
            if rows:
                self.first = self.first or rows[0]
                flat = itertools.chain.from_iterable(rows)
                new = np.fromiter(flat, np.int64, len(rows) * len(Column)).reshape(len(rows), -1)
                self._count += len(rows)
                self._sums = self._sums + durations(new).sum(axis=0)
                self._rows = np.concatenate([self._rows, new])[-STEPS_KEPT:]
            return self._count, self._sums, self._rows


def durations(rows: Numbers) -> Numbers:
    """Rows in which the beginning of what has an end is replaced by how long it took."""
    found = rows.copy()
    for began, ended in (
        (Column.ENTERED, Column.LEFT),
        (Column.PLACE_BEGAN, Column.PLACE_ENDED),
        (Column.BEGAN, Column.ENDED),
    ):
        found[:, began] = rows[:, ended] - rows[:, began]
        found[:, ended] = 0  # a sum of them would be too large
    return found
