"""One run over a stream: chunks read from its lanes, and where these can be opened again.

Guarantees:
    * Each lane is opened once per run, and read in order; again only where user code raised in it.

Owner:
    A `StreamRun` owns its lanes; `close` closes them.
"""

from __future__ import annotations

import array
import contextlib
import functools
import pickle
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from feeder.plan.batches import Chunk, Name
from feeder.plan.stream import Total
from feeder.produce.bad import BadRecord
from feeder.produce.built import Ended, Report
from feeder.produce.clock import Clock
from feeder.produce.lane import Lane, LaneEnd, SettledError, Snapshot
from feeder.produce.recipe import Recipe
from feeder.produce.session import GivenUpError, Locate, from_the_beginning
from feeder.produce.stream_transforms import Expansion, split
from feeder.produce.turns import Turns
from feeder.sources import Stream

_SETTLED_AT_ONCE = 4
"""Chunks whose records are let go of together: it costs as much as for one."""


class StreamRun:
    """The lanes of one run.

    Args:
        number: Of the run.
        recipe: Whose source is a stream.
        turns: As of `Streams`.
        tell_busy: Called now and then while shards are read again.
        key_global: Keys the global generators for each record; None: they are left alone.
    """

    def __init__(
        self,
        number: int,
        recipe: Recipe,
        turns: Turns | None,
        tell_busy: Callable[[], None],
        key_global: Callable[[int], None] | None,
    ) -> None:
        assert isinstance(recipe.source, Stream)
        assert recipe.lanes is not None
        self._stream = recipe.source
        self._plan = recipe.lanes
        self._seed = recipe.seed
        self._skips = recipe.on_bad_record == "skip"
        self._early, _ = split(recipe.transforms, self._skips)
        self._number = number
        self._turns = turns
        self._tell_busy = tell_busy
        self._key_global = key_global
        self._lanes: dict[int, Lane] = {}
        # A snapshot may be asked for where the lane has been read on from.
        self._marks = bool(self._early) and recipe.lanes.window == 1
        self._read: list[tuple[int, dict[int, int]]] = []  # steps, and where they end in each lane
        self._settled = 0
        # Offset of the last snapshot of each lane, and the step with which it was first told.
        self._told: dict[int, tuple[int, int]] = {}
        self._opened: list[Lane] = []
        self._forsaken: list[Lane] = []  # in which threads are stuck
        self._untold = (0, 0.0)  # records read again, and seconds, of chunks that were given up
        self._lock = threading.Lock()

    def read(
        self, chunk: Chunk, locate: Locate, clock: Clock, bad: list[BadRecord]
    ) -> tuple[Chunk, list[Any], Report] | Ended:
        """The records of a chunk that are rows of this process, in order, with their names.

        Returns:
            The chunk of these rows, their records, and where the lanes are after the chunk.
        """
        if self._turns is None:
            return self._read_now(chunk, locate, clock, bad)
        try:
            self._turns.wait(chunk)
            self._tell_busy()  # only now: others may have taken long
            found = self._read_now(chunk, locate, clock, bad)
            return found if isinstance(found, Ended) else (_with_names(found[0]), *found[1:])
        finally:
            self._turns.end(chunk)

    def _read_now(
        self, chunk: Chunk, locate: Locate, clock: Clock, bad: list[BadRecord]
    ) -> tuple[Chunk, list[Any], Report] | Ended:
        reads = chunk.reads
        assert reads is not None
        lanes = self._open(chunk, locate)
        records: list[Any] = []
        totals: dict[int, Total] = {}
        left_out: list[BadRecord] = []
        ends: dict[int, int] = {}
        for entry, lane, first, count, per_cycle in reads.pattern.runs:
            number = lane + reads.first_lane
            first += reads.cycle * per_cycle
            stop = first + count
            try:
                try:
                    records += lanes[number].take(first, stop)
                except SettledError:
                    records += self._take_anew(chunk, lanes, number, first, stop, locate)
            except LaneEnd as end:
                if number not in totals:
                    totals[number] = end.total
                    at = entry + max(0, end.total.records - first)
                    self._tell_bad(end.bad, chunk, at, left_out)
                continue
            except GivenUpError:
                raise
            except BaseException:
                one = lanes[number]
                if one.where is not None:
                    at = entry + max(0, min(one.position, stop - 1) - first)
                    clock.fail(one.where[0], int(chunk.positions[at]), *one.where[1:])
                self._drop(number, one)
                raise
            if self._skips and (left := lanes[number].bad):
                for offset in range(first, stop):
                    self._tell_bad(left.get(offset, []), chunk, entry + offset - first, bad)
            ends[number] = stop
        if totals:
            return Ended(totals, left_out)
        try:
            report = self._report(chunk, ends, lanes)
        except BaseException:
            self._fail(chunk, ends, lanes, clock)
            raise
        return *_named(chunk, records, lanes), report

    def _fail(
        self, chunk: Chunk, ends: dict[int, int], lanes: dict[int, Lane], clock: Clock
    ) -> None:
        """Says where a state could not be saved, and closes that lane."""
        for number, stop in ends.items():
            lane = lanes[number]
            if lane.closed and lane.where is not None:
                assert chunk.reads is not None
                of = (chunk.reads.pattern.lanes + chunk.reads.first_lane == number) & (
                    chunk.indices == stop - 1
                )
                clock.fail("read", int(chunk.positions[of][0]), *lane.where[1:])
                self._drop(number, lane)

    def _take_anew(
        self,
        chunk: Chunk,
        lanes: dict[int, Lane],
        number: int,
        first: int,
        stop: int,
        locate: Locate,
    ) -> list[Any]:
        """Records of a lane that must be opened again before they can be read."""
        while True:
            lane = lanes[number]
            stale = chunk.step < self._settled
            if self._turns is not None and (stale or not self._turns.has(chunk)):
                raise GivenUpError  # other threads have read on, and go on with this lane
            # Another thread has closed it, or another process had come further than this one.
            again = locate if lane.closed else from_the_beginning
            self._drop(number, lane)
            lanes[number] = self._opened_at({number: first}, chunk, again)[number]
            with contextlib.suppress(SettledError):
                return lanes[number].take(first, stop)

    def _report(self, chunk: Chunk, ends: dict[int, int], lanes: dict[int, Lane]) -> Report:
        """Where the lanes can be opened after a chunk that was read."""
        reads, step = chunk.reads, chunk.step
        assert reads is not None
        self._settle(chunk, ends)
        replayed, replay_s = self._untold
        if replayed or self._opened:
            with self._lock:
                replayed, replay_s = self._untold
                self._untold = (0, 0.0)
                opened, self._opened = self._opened, []
            replayed += sum(lane.replayed for lane in opened)
            replay_s += sum(lane.replay_s for lane in opened)
        if not reads.snapshot:
            return Report(b"", b"", replayed, replay_s)
        told: list[tuple[Any, ...]] = []
        for number, stop in ends.items():
            snapshot = lanes[number].snapshot(stop)
            offset, before = self._told.get(number, (0, -1))
            if snapshot.offset > offset:
                self._told[number] = (snapshot.offset, step)
            elif before < reads.settled or snapshot.offset == 0:
                continue  # what was told with a batch that was given up must be told again
            told.append((number, *snapshot))
        if not told:
            return Report(b"", b"", replayed, replay_s)
        of = array.array("q", [one[0] for one in told]).tobytes()
        return Report(pickle.dumps(told, 5), of, replayed, replay_s)

    def take_back(self, report: Report) -> None:
        """The chunk of a report was given up: what was read again for it is told with another."""
        with self._lock:
            replayed, replay_s = self._untold
            self._untold = (replayed + report.replayed, replay_s + report.replay_s)

    def close(self) -> None:
        """Closes all lanes; they are opened again where they are asked for."""
        for number, lane in list(self._lanes.items()):
            self._drop(number, lane)
        for lane in self._forsaken:
            lane.close()

    def forsake(self, chunk: Chunk) -> None:
        """The thread that reads a chunk is stuck: others open its lanes again.

        It runs no code of the user's: the lanes are closed with the run.
        """
        assert chunk.reads is not None
        with self._lock:
            for lane in chunk.reads.pattern.lane_set:
                number = lane + chunk.reads.first_lane
                self._told.pop(number, None)
                if (forsaken := self._lanes.pop(number, None)) is not None:
                    forsaken.closed = True
                    self._forsaken.append(forsaken)

    def _open(self, chunk: Chunk, locate: Locate) -> dict[int, Lane]:
        """The lanes that are read, open."""
        reads = chunk.reads
        assert reads is not None
        if not self._marks and self._turns is None:
            wanted: AbstractSet[int] = reads.pattern.lane_set
            if reads.first_lane:
                wanted = {lane + reads.first_lane for lane in wanted}
            if wanted <= self._lanes.keys():
                return self._lanes
        firsts: dict[int, int] = {}
        for _, lane, first, _, per_cycle in reads.pattern.runs:
            firsts.setdefault(lane + reads.first_lane, first + reads.cycle * per_cycle)
        return self._opened_at(firsts, chunk, locate)

    def _opened_at(self, firsts: dict[int, int], chunk: Chunk, locate: Locate) -> dict[int, Lane]:
        """Opens the lanes that are not open, and closes those of epochs gone by.

        Args:
            firsts: Offset of the first record that is wanted of each.
            chunk: For which they are.
            locate: Says where they are to be opened.
        """
        lanes = self._lanes
        over: list[tuple[int, Lane]] = []
        with self._lock:
            oldest = min(firsts) // self._plan.num_lanes - 1
            for number in [old for old in list(lanes) if old // self._plan.num_lanes < oldest]:
                self._if_free(
                    number, chunk, functools.partial(over.append, (number, lanes[number]))
                )
            missing = [number for number in firsts if number not in lanes]
            unknown = [number for number in missing if firsts[number] > 0]
            begins = dict(zip(unknown, locate(unknown), strict=True)) if unknown else {}
            for number in missing:
                snapshot, settled = begins.get(number, (Snapshot(), 0))
                epoch, of = divmod(number, self._plan.num_lanes)
                lanes[number] = Lane(
                    self._stream,
                    self._plan,
                    epoch,
                    of,
                    Expansion(self._early, self._seed) if self._early else None,
                    self._skips,
                    snapshot,
                    settled,
                    self._tell_busy,
                    self._key_global,
                )
                self._told[number] = (snapshot.offset, -1)
                self._opened.append(lanes[number])
            found = {number: lanes[number] for number in firsts}
        for number, lane in over:
            self._drop(number, lane)
        if self._marks:
            for number, offset in firsts.items():
                found[number].mark(offset)
        return found

    def _drop(self, number: int, lane: Lane) -> None:
        """Closes a lane, which may have been opened anew meanwhile."""
        if self._lanes.get(number) is lane:
            del self._lanes[number]
            self._told.pop(number, None)
        lane.close()

    def _settle(self, chunk: Chunk, ends: dict[int, int]) -> None:
        """Lets go of what was read for batches that were delivered."""
        assert chunk.reads is not None
        settled = chunk.reads.settled
        with self._lock:
            self._read.append((chunk.step, ends))
            if settled < self._settled + _SETTLED_AT_ONCE:
                return
            self._settled = settled
            gone = [entry for entry in self._read if entry[0] < settled]
            self._read = [entry for entry in self._read if entry[0] >= settled]
            last: dict[int, int] = {}
            for _, offsets in sorted(gone, key=lambda entry: entry[0]):
                last.update(offsets)
            for number, stop in last.items():
                if number in self._lanes:
                    self._if_free(
                        number, chunk, functools.partial(self._lanes[number].settle, stop)
                    )

    def _if_free(self, number: int, chunk: Chunk, do: Callable[[], object]) -> None:
        """Does something with a lane, unless another thread than that of a chunk is at it."""
        if self._turns is None:
            do()
        else:
            self._turns.if_free(self._number, number, chunk, do)

    def _tell_bad(
        self, found: list[tuple[int, int, str]], chunk: Chunk, entry: int, bad: list[BadRecord]
    ) -> None:
        assert chunk.reads is not None
        if chunk.reads.pattern.rows[entry] >= 0 and (chunk.mask is None or chunk.mask[entry]):
            position = int(chunk.positions[entry])
            bad += [
                BadRecord(chunk.step, position, number, text, None, shard)
                for shard, number, text in found
            ]


def _named(chunk: Chunk, records: list[Any], lanes: dict[int, Lane]) -> tuple[Chunk, list[Any]]:
    """The rows of this process among what was read, and what says how they are called."""
    reads = chunk.reads
    assert reads is not None

    def names() -> list[Name]:
        found: list[Name] = []
        for _, lane, first, count, per_cycle in reads.pattern.runs:
            first += reads.cycle * per_cycle
            found += lanes[lane + reads.first_lane].names(first, first + count)
        return found

    own = reads.pattern.own
    if own is None:
        return replace(chunk, reads=replace(reads, names=names)), records
    kept = np.flatnonzero(reads.pattern.rows >= 0).tolist()

    def names_of_own() -> list[Name]:
        found = names()
        return [found[entry] for entry in kept]

    chunk = replace(reads, pattern=own, names=names_of_own).chunk(chunk.step, chunk.part_of)
    return chunk, [records[entry] for entry in kept]


def _with_names(chunk: Chunk) -> Chunk:
    """The chunk that remembers what its records are called, whoever reads on in their lanes."""
    assert chunk.reads is not None
    assert chunk.reads.names is not None
    names = chunk.reads.names()
    return replace(chunk, reads=replace(chunk.reads, names=lambda: names))


def unpickled(report: Report) -> dict[int, Snapshot]:
    """The snapshots of a report, by lane."""
    loaded: list[Any] = pickle.loads(report.snapshots)
    return {number: Snapshot(*fields) for number, *fields in loaded}
