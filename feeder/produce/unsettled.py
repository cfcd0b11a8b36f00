"""What was read of a stream and may be asked for again: batches that were not delivered yet.

Guarantees:
    * Lanes get back what was read straight from their shards in the order in which it was read.

Whoever reads in order never asks again; so all that is done for it is to keep the list.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from feeder.produce.columns import Stacked
from feeder.produce.lineup import Lineup
from feeder.produce.snapshot import Report, snapshots_of


@dataclass(slots=True, eq=False)
class Taken:
    """What was read for a chunk.

    Attributes:
        step: Its step.
        ends: Up to where each lane was read, where the lanes keep something of it themselves.
        lineup: The lanes that do not keep the records; None: they do.
        cycle: The cycle of the pattern.
        records: What they do not keep, in the order of the pattern; perhaps stacked, which takes
            less memory, and lets go of the user's objects while the processor still has them.
        report: Where they could be opened afterwards, as far as they do not know it themselves.
    """

    step: int
    ends: dict[int, int]
    lineup: Lineup | None = None
    cycle: int = 0
    records: list[Any] | Stacked = field(default_factory=list)
    report: Report | None = None


class Unsettled:
    """The chunks that were read and are not settled."""

    def __init__(self) -> None:
        self._taken: deque[Taken] = deque()

    def add(self, taken: Taken) -> None:
        """A chunk was read."""
        self._taken.append(taken)

    def hand_over(self) -> None:
        """Lets all lanes keep what was read straight from their shards."""
        for taken in self._taken:
            lineup = taken.lineup
            if lineup is None:
                continue
            taken.lineup, taken.ends = None, lineup.ends(taken.cycle)
            records = taken.records
            lineup.hand_over(
                taken.cycle, records if isinstance(records, list) else records.records()
            )
            if taken.report is not None:
                for number, snapshot in snapshots_of(taken.report).items():
                    lineup.lanes[number].remember(snapshot)
            taken.records = []

    def settle(self, step: int) -> dict[int, int]:
        """Nothing before a step will be asked for again.

        Returns:
            The offset before which that is so, of lanes that keep something themselves.
        """
        ends: dict[int, int] = {}
        while self._taken and self._taken[0].step < step:
            ends.update(self._taken.popleft().ends)
        return ends
