"""The lanes that a pattern reads from, in the order in which it does: read straight through.

That is how nearly all records of nearly all streams are read: a run of each lane, from the user's
iterator into the list of the batch's records, with as little Python in between as can be. It ends
at a lane that was read on before, or that has no more.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

from feeder.plan.patterns import Pattern
from feeder.produce.lane import Lane, LaneEnd, SettledError
from feeder.produce.snapshot import Report


class Lineup:
    """The lanes of a pattern; made anew whenever one of them is opened anew.

    Attributes:
        lanes: By number.
        reached: The run at which `read` stopped, or an iterator raised.
        switched: Of the lanes that went on to another shard when they were read last, up to where
            they were read.
        quiet: After how many changes, as of `report`, its lanes had nothing to tell of where they
            can be opened; -1: never.

    Args:
        pattern: What is read.
        first_lane: The lane that it counts from.
        lanes: All that are open, by number.
    """

    def __init__(self, pattern: Pattern, first_lane: int, lanes: dict[int, Lane]) -> None:
        self.lanes = {lane + first_lane: lanes[lane + first_lane] for lane in pattern.lane_set}
        self.reached = 0
        self.switched: dict[int, int] = {}
        self.quiet = -1
        self._runs = [
            (lanes[run.lane + first_lane], run.first, run.num_records, run.per_cycle)
            for run in pattern.runs
        ]
        self._ends = {
            run.lane + first_lane: (run.first + run.num_records, run.per_cycle)
            for run in pattern.runs
        }
        self._changes = -1  # when what follows was found out
        self._saves: list[Callable[[], bytes | None]] = []
        self._told = (b"", b"")

    def read(self, cycle: int, records: list[Any]) -> bool:
        """Reads the runs in order, as far as they can be read straight from iterators.

        Args:
            cycle: The cycle of the pattern.
            records: Gets the records: those of all runs before `reached`, and then those that its
                lane still had.

        Returns:
            Whether these were all.

        Raises:
            Exception: Whatever an iterator raises; its lane has failed.
        """
        extend, slices = records.extend, itertools.islice
        number = wanted = 0
        lane = self._runs[0][0]
        self.switched = {}
        try:
            for number, (lane, first, count, per_cycle) in enumerate(self._runs):  # noqa: B007
                first += cycle * per_cycle
                if lane.position != first:
                    break
                if lane.iterator is not None:
                    extend(slices(lane.iterator, count))
                if len(records) == wanted + count:
                    lane.position = first + count
                elif not self._read_on(lane, first + count, records, wanted + count):
                    break
                wanted += count
            else:
                return True
        except BaseException:
            if not lane.closed:
                lane.fail(len(records) - wanted)
            raise
        finally:
            self.reached = number
        return False

    def _read_on(self, lane: Lane, stop: int, records: list[Any], wanted: int) -> bool:
        """Reads what a lane has of its next shards; False: it has no more, or is closed."""
        if lane.closed:
            return False
        missing = wanted - len(records)
        lane.position = stop - missing
        try:
            lane.read_on(records, missing)
        except (LaneEnd, SettledError):  # or another thread has closed it meanwhile
            return False
        self.switched[lane.number] = stop
        return True

    def hand_over(self, cycle: int, records: list[Any], stop: int | None = None) -> int:
        """Lets the lanes keep what was read straight from them.

        Args:
            cycle: The cycle of the pattern.
            records: Those of the runs.
            stop: The run before which to stop; None: all are handed over.

        Returns:
            How many records that were.
        """
        at = 0
        for lane, first, count, per_cycle in self._runs[:stop]:
            lane.keep(first + cycle * per_cycle, records[at : at + count])
            at += count
        return at

    def stop(self, cycle: int, records: list[Any]) -> None:
        """Lets the lanes keep what was read, where `read` did not come to the end.

        Args:
            cycle: The cycle of the pattern.
            records: What was read; left are those of the runs before `reached`.
        """
        done = self.hand_over(cycle, records, self.reached)
        lane, first, _, per_cycle = self._runs[self.reached]
        if records[done:]:
            lane.keep(first + cycle * per_cycle, records[done:])
            del records[done:]

    def ends(self, cycle: int) -> dict[int, int]:
        """The offset in each lane that follows what is read."""
        return {lane: stop + cycle * per_cycle for lane, (stop, per_cycle) in self._ends.items()}

    def report(self, cycle: int, changes: int) -> Report | None:
        """Where the lanes can be opened after these records; None: some must be asked one by one.

        Args:
            cycle: The cycle of the pattern.
            changes: How often lanes of the run have gone on to other shards.

        Raises:
            Exception: Whatever saving a state raises, or pickling it; its lane has failed.
        """
        if changes != self._changes:
            self._changes = changes
            saves = [lane.save for lane in self.lanes.values()]
            self._saves = [] if None in saves else [save for save in saves if save is not None]
            places = [
                tuple(lane.open_at(*self._ends[number])) for number, lane in self.lanes.items()
            ]
            self._told = (pickle.dumps(list(self.lanes), 5), pickle.dumps(places, 5))
        if not self._saves:
            return None
        states: list[bytes | None] = []
        try:
            for save in self._saves:
                states.append(save())  # noqa: PERF401 - that of which lane raises?
        except BaseException:
            list(self.lanes.values())[len(states)].fail(0)
            raise
        return Report(*self._told, cycle, pickle.dumps(states, 5))
