"""What a batch takes from the lanes of a stream, again and again, as long as none ends. Pure.

A pattern says of each entry of a batch which lane gives it, and which of its records in the first
cycle; a cycle later that lane has given so many more. So batches that lie a cycle apart share one
pattern, and what is derived from it: which rows are whose, and which worker reads what.
"""

from __future__ import annotations

import functools
import pickle
import zlib
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices

Packed: TypeAlias = bytes
"""A pattern on its way to a worker."""


class Run(NamedTuple):
    """Entries that follow each other in one lane.

    Attributes:
        entry: The first of them.
        lane: Their lane.
        first: Number of its first record in the lane, in cycle 0.
        num_records: How many.
        per_cycle: Records that the lane gives in each cycle.
    """

    entry: int
    lane: int
    first: int
    num_records: int
    per_cycle: int


class Pattern:
    """The entries of a batch, or of a chunk of it, in order.

    Attributes:
        entries: Real row of the global batch that each is, shape (entries,), int64; padding is the
            last one again.
        lanes: Lane of each, counted from the first lane of the batch's first epoch.
        offsets: Number of its record in that lane, in cycle 0.
        per_cycle: Records that the lane gives in each cycle.
        rows: Row of the local batch that each is for; -1: it is read, and belongs to another
            process.
        num_rows: Rows of the local batch.
        mask: True for real rows; None unless ``last_batch="pad"``.
    """

    def __init__(
        self,
        entries: Indices,
        lanes: Indices,
        offsets: Indices,
        per_cycle: Indices,
        rows: Indices,
        num_rows: int,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.entries = entries
        self.lanes = lanes
        self.offsets = offsets
        self.per_cycle = per_cycle
        self.rows = rows
        self.num_rows = num_rows
        self.mask = mask

    def __len__(self) -> int:
        return len(self.entries)

    def at(self, cycle: int) -> Indices:
        """Number of each entry's record in its lane, so many cycles later."""
        return self.offsets + cycle * self.per_cycle if cycle else self.offsets

    def of(self, chosen: Any) -> Pattern:
        """Some of the entries, chosen by an index of NumPy's."""
        mask = None if self.mask is None else self.mask[chosen]
        return Pattern(
            self.entries[chosen],
            self.lanes[chosen],
            self.offsets[chosen],
            self.per_cycle[chosen],
            self.rows[chosen],
            self.num_rows,
            mask,
        )

    @functools.cached_property
    def runs(self) -> list[Run]:
        """The entries of each lane, where they follow each other."""
        lanes, offsets, per_cycle = self.lanes, self.offsets, self.per_cycle
        same = (lanes[1:] == lanes[:-1]) & (offsets[1:] == offsets[:-1] + 1)
        begins = np.concatenate([[0], np.flatnonzero(~same) + 1])
        counts = np.diff(begins, append=len(lanes))
        columns = (begins, lanes[begins], offsets[begins], counts, per_cycle[begins])
        return [Run(*run) for run in zip(*(column.tolist() for column in columns), strict=True)]

    @functools.cached_property
    def lane_set(self) -> frozenset[int]:
        """The lanes."""
        return frozenset(self.lanes.tolist())

    @functools.cached_property
    def own(self) -> Pattern | None:
        """The entries that are rows of this process; None: all are."""
        return None if (self.rows >= 0).all() else self.of(self.rows >= 0)

    @functools.cached_property
    def places(self) -> slice | Indices:
        """The rows, as the index that NumPy is fastest with."""
        rows = self.rows
        if len(rows) and (np.diff(rows) == 1).all():
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return rows

    @functools.cached_property
    def first_row(self) -> int:
        """The first of the rows; where there are none, as many as the batch has."""
        own = self.rows[self.rows >= 0]
        return int(own[0]) if len(own) else self.num_rows

    @functools.cached_property
    def packed(self) -> Packed:
        """What `unpacked` makes a pattern of."""
        columns = [self.entries, self.lanes, self.offsets, self.per_cycle, self.rows]
        table = zlib.compress(np.stack(columns).tobytes(), 1)
        mask = None if self.mask is None else self.mask.tobytes()
        return pickle.dumps((table, self.num_rows, mask), 5)


def unpacked(packed: Packed) -> Pattern:
    """The pattern that was packed."""
    table, num_rows, mask = pickle.loads(packed)
    entries, lanes, offsets, per_cycle, rows = np.frombuffer(
        zlib.decompress(table), np.int64
    ).reshape(5, -1)
    real = None if mask is None else np.frombuffer(mask, bool)
    return Pattern(entries, lanes, offsets, per_cycle, rows, num_rows, real)


def joined(parts: list[tuple[Pattern, int, int]]) -> Pattern:
    """Patterns of one batch, one after the other, each at a cycle and with lanes moved up."""
    lanes = np.concatenate([one.lanes + moved for one, _, moved in parts])
    offsets = np.concatenate([one.at(cycle) for one, cycle, _ in parts])
    return of_rows(lanes, offsets, np.zeros(len(lanes), np.int64))


def of_rows(lanes: Indices, offsets: Indices, per_cycle: Indices) -> Pattern:
    """The pattern of the real rows of a global batch, all of them one's own."""
    rows = np.arange(len(lanes))
    return Pattern(rows, lanes, offsets, per_cycle, rows, len(lanes))
