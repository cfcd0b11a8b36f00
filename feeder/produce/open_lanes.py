"""The lanes that one run has open.

Guarantees:
    * A lane is opened when it is first asked for, at the place that is known of it, and closed
      once its epoch is gone by.
    * Where threads share lanes, none is touched while another thread has its turn.

Owner:
    An `OpenLanes` owns its lanes; `close` closes them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from feeder.plan.chunks import StreamChunk
from feeder.plan.kept import KeptPatterns
from feeder.plan.patterns import Pattern
from feeder.produce.lane import Lane
from feeder.produce.lineup import Lineup
from feeder.produce.session import Locate
from feeder.produce.snapshot import Snapshot
from feeder.produce.turns import Turns


class OpenLanes:
    """Opens lanes, and closes them.

    Args:
        num_lanes: Lanes of an epoch.
        make: Makes a lane, given its number over all epochs, a snapshot, and the offset before
            which nothing will be asked for.
        turns: As of `Streams`.
        marks: Whether a snapshot may be asked for where the lane has been read on from.
    """

    def __init__(
        self,
        num_lanes: int,
        make: Callable[[int, Snapshot, int], Lane],
        turns: Turns | None,
        marks: bool,
    ) -> None:
        self._num_lanes = num_lanes
        self._make = make
        self._turns = turns
        self._marks = marks
        self._lanes: dict[int, Lane] = {}
        self._lineups: KeptPatterns[tuple[Pattern, int], Lineup] = KeptPatterns()
        self._opened: list[Lane] = []
        self._forsaken: list[Lane] = []  # in which threads are stuck
        self._lock = threading.Lock()

    def lineup(self, chunk: StreamChunk, locate: Locate) -> Lineup:
        """The lanes of a chunk, open, in the order in which it reads them."""
        pattern, first_lane = chunk.pattern, chunk.first_lane

        def make() -> Lineup:
            return Lineup(pattern, first_lane, self.of(chunk, locate))

        return self._lineups.get((pattern, first_lane), make, len(pattern))

    def of(self, chunk: StreamChunk, locate: Locate) -> dict[int, Lane]:
        """The lanes of a chunk, open."""
        firsts: dict[int, int] = {}
        for _, lane, first, _, per_cycle in chunk.pattern.runs:
            firsts.setdefault(lane + chunk.first_lane, first + chunk.cycle * per_cycle)
        return self.open(firsts, chunk, locate)

    def open(self, firsts: dict[int, int], chunk: StreamChunk, locate: Locate) -> dict[int, Lane]:
        """Opens the lanes that are not open, and closes those of epochs gone by.

        Args:
            firsts: Offset of the first record that is wanted of each.
            chunk: For which they are.
            locate: Says where they are to be opened.
        """
        lanes = self._lanes
        over: list[Lane] = []
        with self._lock:
            oldest = min(firsts) // self._num_lanes - 1
            for number in [old for old in lanes if old // self._num_lanes < oldest]:
                self._if_free(chunk, number, functools.partial(over.append, lanes[number]))
            missing = [number for number in firsts if number not in lanes]
            unknown = [number for number in missing if firsts[number] > 0]
            begins = dict(zip(unknown, locate(unknown), strict=True)) if unknown else {}
            for number in missing:
                lanes[number] = self._make(number, *begins.get(number, (Snapshot(), 0)))
                self._opened.append(lanes[number])
            found = {number: lanes[number] for number in firsts}
        for lane in over:
            self.drop(lane)
        if self._marks:
            for number, offset in firsts.items():
                found[number].mark(offset)
        return found

    def new(self) -> list[Lane]:
        """Those that were opened since the last call."""
        if not self._opened:
            return []
        with self._lock:
            opened, self._opened = self._opened, []
        return opened

    def settle(self, ends: dict[int, int], chunk: StreamChunk) -> None:
        """Nothing before these offsets of some lanes will be asked for again."""
        with self._lock:
            for number, stop in ends.items():
                if (lane := self._lanes.get(number)) is not None:
                    self._if_free(chunk, number, functools.partial(lane.settle, stop))

    def drop(self, lane: Lane) -> None:
        """Closes a lane, which may have been opened anew meanwhile."""
        if self._lanes.get(lane.number) is lane:
            del self._lanes[lane.number]
            self._lineups = KeptPatterns()
        lane.close()

    def forsake(self, chunk: StreamChunk) -> None:
        """The thread that reads a chunk is stuck: others open its lanes again.

        It runs no code of the user's: the lanes are closed with the run.
        """
        with self._lock:
            self._lineups = KeptPatterns()
            for lane in chunk.pattern.lane_set:
                if (forsaken := self._lanes.pop(lane + chunk.first_lane, None)) is not None:
                    forsaken.forsake()
                    self._forsaken.append(forsaken)

    def close(self) -> None:
        """Closes all; they are opened again where they are asked for."""
        for lane in list(self._lanes.values()):
            self.drop(lane)
        for lane in self._forsaken:
            lane.close()

    def _if_free(self, chunk: StreamChunk, number: int, do: Callable[[], object]) -> None:
        """Does something with a lane, unless another thread than that of a chunk is at it."""
        if self._turns is None:
            do()
        else:
            self._turns.if_free(chunk.run, number, chunk, do)
