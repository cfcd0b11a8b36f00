"""Where the lanes of a stream can be opened: what workers said, up to the last batch delivered.

Guarantees:
    * A snapshot counts once its batch is delivered: none is ever beyond the state.
    * May be used by any thread.
"""

from __future__ import annotations

import operator
import pickle
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from feeder.errors import StateError
from feeder.plan.schedule import MAX_POSITIONS
from feeder.produce.snapshot import (
    Places,
    Report,
    Snapshot,
    places_of,
    rows_of,
    snapshots_of,
)

_MOST_PACKED = 32
"""Reports kept packed; most of them are overtaken by later ones, and never unpacked."""


class Snapshots:
    """The snapshots of one run.

    Args:
        known: Those that it begins with, by lane.
    """

    def __init__(self, known: Mapping[int, Snapshot]) -> None:
        self._known = dict(known)
        self._pending: deque[tuple[int, Report]] = deque()  # of batches not delivered
        self._packed: dict[bytes, Report] = {}  # the last of those delivered, by its lanes
        self._places: dict[bytes, Places] = {}  # as they are packed in reports
        self._first_lane = 0
        self._lock = threading.Lock()

    def add(self, step: int, reports: Sequence[Report]) -> None:
        """Takes what workers said after a step."""
        with self._lock:
            self._pending.extend((step, report) for report in reports if report.lanes)

    def commit(self, step: int, first_lane: int) -> None:
        """A step is delivered.

        Args:
            step: Its number.
            first_lane: Number of the first lane of its epoch: those before it are over.
        """
        with self._lock:
            while self._pending and self._pending[0][0] <= step:
                report = self._pending.popleft()[1]
                self._packed[report.lanes] = report
            if first_lane > self._first_lane or len(self._packed) > _MOST_PACKED:
                self._first_lane = first_lane
                self._unpack()
                self._known = {at: one for at, one in self._known.items() if at >= first_lane}

    def learn(self, known: Mapping[int, Snapshot]) -> None:
        """Takes what another process knows."""
        with self._lock:
            self._unpack()
            self._update(known)

    def forget_after(self, step: int) -> None:
        """Steps from this one on are built again."""
        with self._lock:
            self._pending = deque(entry for entry in self._pending if entry[0] < step)

    def of(self, lane: int) -> Snapshot:
        """Where a lane can be opened."""
        with self._lock:
            self._unpack()
            return self._known.get(lane, Snapshot())

    def to_json(self, lanes: list[int]) -> list[list[Any]]:
        """The snapshots of some lanes, for a state: JSON-able where the user's own states are."""
        with self._lock:
            known, packed = self._known, list(self._packed.values())
        rows = [row for report in packed for row in rows_of(report, self._places_of(report))]
        rows.sort(key=operator.itemgetter(0))
        if [row[0] for row in rows] != lanes:  # most often, all is told with every batch
            found = {lane: (lane, *one) for lane, one in known.items()}
            for row in rows:
                if row[1] >= found.get(row[0], row)[1]:
                    found[row[0]] = row
            rows = [found[lane] for lane in lanes if lane in found]
        return [[*place, None if state is None else pickle.loads(state)] for *place, state in rows]

    def _places_of(self, report: Report) -> Places:
        """Where the lanes of a report are: the same again and again, as long as shards go on."""
        places = self._places.get(report.places)
        if places is None:
            if len(self._places) > _MOST_PACKED:
                self._places.clear()
            places = self._places[report.places] = places_of(report)
        return places

    def _unpack(self) -> None:
        packed, self._packed = self._packed, {}
        for report in packed.values():
            self._update(snapshots_of(report))

    def _update(self, known: Mapping[int, Snapshot]) -> None:
        for lane, snapshot in known.items():
            if snapshot.offset >= self._known.get(lane, snapshot).offset:
                self._known[lane] = snapshot


def from_json(entries: object, offsets: Mapping[int, int]) -> dict[int, Snapshot]:
    """The snapshots that `Snapshots.to_json` listed, by lane.

    Args:
        entries: The list.
        offsets: Records that each lane alive has given.

    Raises:
        StateError: It is damaged.
    """
    found: dict[int, Snapshot] = {}
    if not isinstance(entries, list):
        raise _damaged(entries)
    for entry in entries:
        if not isinstance(entry, list | tuple) or len(entry) != 1 + len(Snapshot._fields):
            raise _damaged(entry)
        lane, offset, item, num_read, read_before, state = entry
        numbers = (lane, offset, item, num_read, read_before)
        if not all(
            isinstance(number, int)
            and not isinstance(number, bool)
            and 0 <= number <= MAX_POSITIONS
            for number in numbers
        ):
            raise _damaged(entry)
        if lane not in offsets or offset > offsets[lane]:
            raise _damaged(entry)
        saved = None if state is None else pickle.dumps(state, 5)
        found[lane] = Snapshot(offset, item, num_read, read_before, saved)
    return found


def _damaged(entry: object) -> StateError:
    return StateError(
        "`state['draws']['shards']` must list where the lanes of the stream can be opened, got "
        f"{str(entry)[:80]}: it is damaged"
    )
