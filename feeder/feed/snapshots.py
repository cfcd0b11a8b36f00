"""Where the lanes of a stream can be opened: what workers said, up to the last batch delivered.

Guarantees:
    * A snapshot counts once its batch is delivered: none is ever beyond the state.
    * May be used by any thread.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from feeder.errors import StateError
from feeder.plan.schedule import MAX_POSITIONS
from feeder.produce.built import Report
from feeder.produce.lane import Snapshot
from feeder.produce.streams import unpickled

_MOST_PENDING = 32
"""Reports kept packed; most of them are overtaken by later ones, and never unpacked."""


class Snapshots:
    """The snapshots of one run.

    Args:
        known: Those that it begins with, by lane.
    """

    def __init__(self, known: Mapping[int, Snapshot]) -> None:
        self._known = dict(known)
        self._pending: deque[tuple[int, Report]] = deque()
        self._delivered = -1
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
            self._delivered = step
            if len(self._pending) > _MOST_PENDING:
                self._unpack()
                for lane in [lane for lane in self._known if lane < first_lane]:
                    del self._known[lane]

    def learn(self, known: Mapping[int, Snapshot]) -> None:
        """Takes what another process knows."""
        with self._lock:
            self._unpack()
            for lane, snapshot in known.items():
                if snapshot.offset > self._known.get(lane, Snapshot()).offset:
                    self._known[lane] = snapshot

    def forget_after(self, step: int) -> None:
        """Steps from this one on are built again."""
        with self._lock:
            self._pending = deque(entry for entry in self._pending if entry[0] < step)

    def of(self, lane: int) -> Snapshot:
        """Where a lane can be opened."""
        with self._lock:
            self._unpack()
            return self._known.get(lane, Snapshot())

    def to_json(self, lanes: Sequence[int]) -> list[list[Any]]:
        """The snapshots of some lanes, for a state: JSON-able where the user's own states are."""
        with self._lock:
            self._unpack()
            found = [(lane, self._known[lane]) for lane in lanes if lane in self._known]
            return [[lane, *snapshot[:-1], _copied(snapshot.state)] for lane, snapshot in found]

    def _unpack(self) -> None:
        """Reads what is delivered, but for what was said again later."""
        reports: list[Report] = []
        while self._pending and self._pending[0][0] <= self._delivered:
            reports.append(self._pending.popleft()[1])
        latest = {report.lanes: report for report in reports}
        for report in reports:
            if latest[report.lanes] is report:
                for lane, snapshot in unpickled(report).items():
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
        found[lane] = Snapshot(offset, item, num_read, read_before, copy.deepcopy(state))
    return found


def _damaged(entry: object) -> StateError:
    return StateError(
        "`state['draws']['shards']` must list where the lanes of the stream can be opened, got "
        f"{str(entry)[:80]}: it is damaged"
    )


def _copied(state: Any) -> Any:
    """A state of its own; most are a few numbers, for which copy.deepcopy takes its time."""
    if state is None or type(state) in (bool, int, float, str):
        return state
    if type(state) is dict:
        return {key: _copied(value) for key, value in state.items()}
    return copy.deepcopy(state)
