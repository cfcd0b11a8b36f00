"""Which lane of a stream gives the record in each row: a rotation that dry lanes leave. Pure.

A lane reads some of the shards, one after the other. Row *x* of an epoch, counted over its batches,
belongs to slot ``x // block_length % num_lanes``, which is served by the lane of that number; once
that lane is dry, by the lane alive that is nearest, as the bits of ``slot ^ lane`` count.

Guarantees:
    * Every lane gives its records in order, each once, whichever lanes run dry, and wherever.
    * A lane that runs dry moves no row but its own: those that others serve, they go on serving.
      Lanes of neighbouring rows stand in for each other first, so a process whose rows are
      neighbours needs no lane of another as long as one of its own is alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from feeder.plan.order import Indices


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """The rotation between two ends of lanes.

    Attributes:
        block_length: Records that a slot takes in a row.
        servers: Lane that serves each slot, shape (slots,).
    """

    block_length: int
    servers: Indices
    _before: Indices  # (slots,): blocks of the same lane in a cycle before this slot's
    _blocks: Indices  # (lanes,): blocks of each lane in a cycle
    _base: Indices  # (lanes,): what makes counts of rows offsets of records

    @classmethod
    def of(cls, num_lanes: int, block_length: int, row: int, taken: Mapping[int, int]) -> Phase:
        """The phase that begins at a row.

        Args:
            num_lanes: Slots of the rotation.
            block_length: Records that a slot takes in a row.
            row: Number of the row in its epoch.
            taken: Records that each lane alive has given before; at least one lane.
        """
        alive = np.array(sorted(taken), np.int64)
        slots = np.arange(num_lanes)
        servers = slots
        if len(alive) < num_lanes:
            servers = alive[np.argmin(slots[:, None] ^ alive[None, :], axis=1)]
        blocks = np.bincount(servers, minlength=num_lanes)
        order = np.argsort(servers, kind="stable")
        firsts = np.cumsum(blocks) - blocks
        before = np.empty(num_lanes, np.int64)
        before[order] = np.arange(num_lanes) - firsts[servers[order]]
        phase = cls(block_length, servers, before, blocks, np.zeros(num_lanes, np.int64))
        phase._base[alive] = [taken[lane] for lane in alive.tolist()]
        phase._base[alive] -= phase._counts(row)[alive]
        return phase

    @property
    def alive(self) -> list[int]:
        """The lanes that are not dry."""
        return np.flatnonzero(self._blocks).tolist()

    def find(self, rows: Indices) -> tuple[Indices, Indices]:
        """Lane of each row, and the number of its record in that lane."""
        cycles, rest = np.divmod(rows, self.block_length * len(self.servers))
        slots, within = np.divmod(rest, self.block_length)
        lanes = self.servers[slots]
        turns = cycles * self._blocks[lanes] + self._before[slots]
        return lanes, self._base[lanes] + turns * self.block_length + within

    def taken(self, row: int) -> dict[int, int]:
        """Records that each lane alive has given before a row."""
        counts = self._counts(row) + self._base
        return {lane: int(counts[lane]) for lane in self.alive}

    def row_of(self, lane: int, offset: int) -> int:
        """The row that takes a record of a lane alive."""
        turn, within = divmod(offset - int(self._base[lane]), self.block_length)
        cycle, block = divmod(turn, int(self._blocks[lane]))
        slot = int(np.flatnonzero(self.servers == lane)[block])
        return (cycle * len(self.servers) + slot) * self.block_length + within

    def without(self, lane: int, row: int) -> Phase | None:
        """The phase that begins at a row that a lane could not fill; None: it was the last."""
        taken = self.taken(row)
        del taken[lane]
        return Phase.of(len(self.servers), self.block_length, row, taken) if taken else None

    def _counts(self, row: int) -> Indices:
        """Rows of each lane before a row, if it had been like this from the epoch's first row."""
        num_slots = len(self.servers)
        cycle, rest = divmod(row, self.block_length * num_slots)
        slot, within = divmod(rest, self.block_length)
        blocks = cycle * self._blocks + np.bincount(self.servers[:slot], minlength=num_slots)
        counts: Indices = blocks * self.block_length
        counts[self.servers[slot]] += within
        return counts
