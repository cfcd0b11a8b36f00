"""Which lane of a stream gives the record in each row: a rotation that dry lanes leave. Pure.

A lane reads some of the shards, one after the other. The rows of an epoch, counted over its
batches, go through a cycle of slots, one for each lane. A slot is served by the lane of its number;
once that lane is dry, by the lane alive that is nearest, as the bits of ``slot ^ lane`` count.

Guarantees:
    * Every lane gives its records in order, each once, whichever lanes run dry, and wherever.
    * A lane that runs dry moves no row but its own: those that others serve, they go on serving.
      Lanes of neighbouring rows stand in for each other first, so a process whose rows are
      neighbours needs no lane of another as long as one of its own is alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from feeder.plan.kept import KeptPatterns
from feeder.plan.order import Indices
from feeder.plan.patterns import Pattern, of_rows


def cycle_of(num_lanes: int, block_length: int | None, batch_size: int) -> Indices:
    """The slot of each row of a cycle, after which the next one begins.

    Args:
        num_lanes: Slots.
        block_length: Rows that a slot takes in a row; None: neighbours share every batch evenly,
            each with the same rows of all batches, where there are no more slots than rows.
        batch_size: Rows of a batch.
    """
    if block_length is None and num_lanes <= batch_size:
        return np.arange(batch_size) * num_lanes // batch_size
    return np.arange(num_lanes).repeat(block_length or 1)


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """The rotation between two ends of lanes.

    Attributes:
        cycle: Slot of each row of a cycle, shape (rows,).
    """

    cycle: Indices
    _of_slot: Indices  # (lanes,): lane that serves each slot
    _servers: Indices  # (rows,): lane that serves each row of a cycle
    _before: Indices  # (rows,): rows of the same lane in the cycle before this one
    _per_cycle: Indices  # (lanes,): rows of each lane in a cycle
    _base: Indices  # (lanes,): what makes counts of rows offsets of records
    # By row in a cycle, and rows.
    _patterns: KeptPatterns[tuple[int, int], Pattern] = field(default_factory=KeptPatterns)

    @classmethod
    def of(cls, cycle: Indices, row: int, taken: Mapping[int, int]) -> Phase:
        """The phase that begins at a row.

        Args:
            cycle: Slot of each row of a cycle.
            row: Number of the row in its epoch.
            taken: Records that each lane alive has given before; at least one lane.
        """
        slots = np.arange(int(cycle[-1]) + 1)
        return cls._of(cycle, row, taken, _nearest(slots, np.array(sorted(taken), np.int64)))

    @classmethod
    def _of(cls, cycle: Indices, row: int, taken: Mapping[int, int], of_slot: Indices) -> Phase:
        servers = of_slot[cycle]
        per_cycle = np.bincount(servers, minlength=len(of_slot))
        order = np.argsort(servers, kind="stable")
        before = np.empty(len(cycle), np.int64)
        before[order] = np.arange(len(cycle)) - (np.cumsum(per_cycle) - per_cycle)[servers[order]]
        phase = cls(cycle, of_slot, servers, before, per_cycle, np.zeros(len(of_slot), np.int64))
        alive = np.fromiter(taken, np.int64, len(taken))
        phase._base[alive] = np.fromiter(taken.values(), np.int64, len(taken))
        phase._base[alive] -= phase._counts(row)[alive]
        return phase

    @property
    def alive(self) -> list[int]:
        """The lanes that are not dry."""
        return np.flatnonzero(self._per_cycle).tolist()

    def pattern(self, row: int, count: int) -> tuple[Pattern, int]:
        """What some rows take, and the number of the cycle that they begin in."""
        cycle, within = divmod(row, len(self.cycle))

        def make() -> Pattern:
            return of_rows(*self._find(np.arange(within, within + count)))

        return self._patterns.get((within, count), make, count), cycle

    def _find(self, rows: Indices) -> tuple[Indices, Indices, Indices]:
        """Lane of each row, its record's number in that lane, and what a cycle adds to it."""
        cycles, within = np.divmod(rows, len(self.cycle))
        lanes = self._servers[within]
        per_cycle = self._per_cycle[lanes]
        return lanes, cycles * per_cycle + self._base[lanes] + self._before[within], per_cycle

    def taken(self, row: int) -> dict[int, int]:
        """Records that each lane alive has given before a row."""
        counts = (self._counts(row) + self._base).tolist()
        return {lane: counts[lane] for lane in self.alive}

    def first_end(self, totals: Mapping[int, int]) -> tuple[int, int] | None:
        """The first row that its lane cannot fill, and that lane.

        Args:
            totals: Records that lanes give in all. None: all of these are dry.
        """
        first: tuple[int, int] | None = None
        for lane, records in totals.items():
            if per_cycle := int(self._per_cycle[lane]):
                cycle, number = divmod(records - int(self._base[lane]), per_cycle)
                within = int(np.flatnonzero(self._servers == lane)[number])
                row = cycle * len(self.cycle) + within
                if first is None or row < first[0]:
                    first = row, lane
        return first

    def without(self, lane: int, row: int) -> Phase | None:
        """The phase that begins at a row that a lane could not fill; None: it was the last."""
        taken = self.taken(row)
        del taken[lane]
        if not taken:
            return None
        moved = np.flatnonzero(self._of_slot == lane)
        of_slot = self._of_slot.copy()
        of_slot[moved] = _nearest(moved, np.fromiter(taken, np.int64, len(taken)))
        return Phase._of(self.cycle, row, taken, of_slot)

    def _counts(self, row: int) -> Indices:
        """Rows of each lane before a row, if it had been like this from the epoch's first row."""
        cycle, within = divmod(row, len(self.cycle))
        counts: Indices = cycle * self._per_cycle
        return counts + np.bincount(self._servers[:within], minlength=len(counts))


def _nearest(slots: Indices, alive: Indices) -> Indices:
    """The lane alive that serves each slot: its own, or the one that is nearest."""
    found: Indices = alive[np.argmin(slots[:, None] ^ alive[None, :], axis=1)]
    return found
