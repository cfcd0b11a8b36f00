"""Where lanes of a stream can be opened again, and how workers tell it: in columns, one a batch.

Guarantees:
    * What an iterator said of itself is pickled when it says it: it may change what it returned.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


class Snapshot(NamedTuple):
    """Where a lane can be opened.

    Attributes:
        offset: Records that it has given before.
        item: Which of its shards it reads, from 0.
        num_read: Records read of that shard.
        read_before: Records read of the shards before it.
        state: What the shard's iterator said of itself, pickled; None: it is to be read again.
    """

    offset: int = 0
    item: int = 0
    num_read: int = 0
    read_before: int = 0
    state: bytes | None = None


class Open(NamedTuple):
    """A lane with a shard open, of whose iterator the state is told again and again.

    Attributes:
        lane: Its number.
        first: Records that it has given before some batch.
        per_cycle: Records that it gives until the batch that lies a cycle later.
        item: As of `Snapshot`.
        base: Records that it has given before the shard was opened.
        read_before: As of `Snapshot`.
    """

    lane: int
    first: int
    per_cycle: int
    item: int
    base: int
    read_before: int


class Report(NamedTuple):
    """What reading a stream for a chunk says beside its records.

    Attributes:
        lanes: Which lanes it tells of, as bytes; empty where there are none.
        places: Where they are: pickled list of `Open`; the same bytes as long as shards go on.
        cycle: How many cycles later than those say.
        states: Pickled list of what the iterators said, each pickled by itself; None: nothing.
        replayed: Records that were read again to come to where a lane had to be opened.
        replay_s: Seconds that this took.
    """

    lanes: bytes = b""
    places: bytes = b""
    cycle: int = 0
    states: bytes = b""
    replayed: int = 0
    replay_s: float = 0.0


def report_of(told: Sequence[tuple[int, Snapshot]]) -> Report:
    """A report of snapshots, by lane."""
    places = [
        Open(lane, one.offset, 0, one.item, one.offset - one.num_read, one.read_before)
        for lane, one in told
    ]
    lanes = pickle.dumps([lane for lane, _ in told], 5)
    states = pickle.dumps([one.state for _, one in told], 5)
    return Report(lanes, pickle.dumps(list(map(tuple, places)), 5), 0, states)


Places: TypeAlias = Sequence[tuple[int, int, int, int, int, int]]
"""`Open` lanes, as plain tuples."""


def places_of(report: Report) -> Places:
    """Where the lanes of a report are."""
    places: Places = pickle.loads(report.places)
    return places


def rows_of(report: Report, places: Places) -> list[tuple[int, int, int, int, int, bytes | None]]:
    """Lane, offset, item, num_read, read_before and state of each lane of a report.

    Args:
        report: It.
        places: What `places_of` says of it, and of others with the same bytes.
    """
    cycle = report.cycle
    return [
        (lane, at := first + cycle * per_cycle, item, at - base, read_before, state)
        for (lane, first, per_cycle, item, base, read_before), state in zip(
            places, pickle.loads(report.states), strict=True
        )
    ]


def snapshots_of(report: Report) -> dict[int, Snapshot]:
    """The snapshots of a report, by lane."""
    return {
        lane: Snapshot(offset, item, num_read, read_before, state)
        for lane, offset, item, num_read, read_before, state in rows_of(report, places_of(report))
    }
