"""What a process has open of a stream: the lanes of every run that reads.

Guarantees:
    * Each lane is opened once per run, and read in order; again only where user code raised in it.
    * The lanes of a run that is over are closed with the next chunk of any run, or at the end.

Owner:
    A `Streams` owns its runs, and a run its lanes; `close` closes all.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from feeder.plan.batches import Chunk
from feeder.plan.stream import Total
from feeder.produce.bad import BadRecord
from feeder.produce.built import Ended, Report
from feeder.produce.clock import Clock
from feeder.produce.lane import Item, Lane, LaneEnd, SettledError, Snapshot
from feeder.produce.recipe import Recipe
from feeder.produce.session import Locate, from_the_beginning
from feeder.produce.stream_transforms import Expansion, split
from feeder.sources import Stream

_SETTLED_AT_ONCE = 4
"""Chunks whose records are let go of together: it costs as much as for one."""


class Streams:
    """The runs of one process.

    Attributes:
        tell_busy: Called now and then while shards are read again; None: nobody asks.

    Args:
        recipe: Whose source is a stream.
        shared: Whether several threads read the same lanes.
    """

    def __init__(self, recipe: Recipe, shared: bool = False) -> None:
        self.tell_busy: Callable[[], None] | None = None
        self._recipe = recipe
        self._shared = shared
        self._key_global: Callable[[int], None] | None = None
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()

    def of(self, chunk: Chunk) -> _Run:
        """The run that a chunk belongs to; those that are over are closed."""
        assert chunk.reads is not None
        with self._lock:
            if chunk.reads.live != tuple(self._runs):
                over = self._runs.keys() - set(chunk.reads.live)
                # A later one began after this chunk was asked for.
                for number in [number for number in over if number < max(chunk.reads.live)]:
                    self._runs.pop(number).close()
            run = self._runs.get(chunk.reads.run)
            if run is None:
                run = _Run(self._recipe, self._shared, self._tell_busy, self._key_global)
                self._runs[chunk.reads.run] = run
            return run

    def _tell_busy(self) -> None:
        if self.tell_busy is not None:
            self.tell_busy()

    def key_global(self, key: Callable[[int], None]) -> None:
        """From now on the global generators are keyed for each record; all is opened again."""
        self._key_global = key
        self.close()

    def close(self) -> None:
        """Closes all."""
        with self._lock:
            for run in self._runs.values():
                run.close()
            self._runs.clear()


class _Run:
    def __init__(
        self,
        recipe: Recipe,
        shared: bool,
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
        self._shared = shared
        self._tell_busy = tell_busy
        self._key_global = key_global
        self._lanes: dict[int, Lane] = {}
        self._read: list[tuple[int, dict[int, int]]] = []  # steps, and where they end in each lane
        # Offset of the last snapshot of each lane, and the step with which it was first told.
        self._told: dict[int, tuple[int, int]] = {}
        self._opened: list[Lane] = []
        self._untold = (0, 0.0)  # records read again, and seconds, of chunks that were given up
        self._lock = threading.Lock()

    def read(
        self, chunk: Chunk, locate: Locate, clock: Clock, bad: list[BadRecord]
    ) -> tuple[list[Item], Report] | Ended:
        """The records of a chunk, in the order of its entries, and where its lanes are then."""
        runs = _runs_of(chunk)
        lanes = self._open(runs, locate)
        items: list[Item] = []
        totals: dict[int, Total] = {}
        left_out: list[BadRecord] = []
        for run in runs:
            entry, number, first, stop = run
            try:
                items += self._take(lanes, run, locate)
            except LaneEnd as end:
                if number not in totals:
                    totals[number] = end.total
                    at = entry + max(0, end.total.records - first)
                    self._tell_bad(end.bad, chunk, at, left_out)
                continue
            except BaseException:
                lane = lanes[number]
                if lane.where is not None:
                    at = entry + max(0, min(lane.position, stop - 1) - first)
                    clock.fail(lane.where[0], int(chunk.positions[at]), *lane.where[1:])
                self._drop(number, lane)
                raise
            if lanes[number].has_bad:
                for offset in range(first, stop):
                    found = lanes[number].bad(offset)
                    self._tell_bad(found, chunk, entry + offset - first, bad)
        if totals:
            return Ended(totals, left_out)
        try:
            return items, self._report(chunk, runs, lanes)
        except BaseException:
            self._fail(chunk, runs, lanes, clock)
            raise

    def _fail(
        self, chunk: Chunk, runs: list[_Entries], lanes: dict[int, Lane], clock: Clock
    ) -> None:
        """Says where a state could not be saved, and closes that lane."""
        for entry, number, first, stop in runs:
            lane = lanes[number]
            if lane.closed and lane.where is not None:
                clock.fail("read", int(chunk.positions[entry + stop - first - 1]), *lane.where[1:])
                self._drop(number, lane)

    def _take(self, lanes: dict[int, Lane], run: _Entries, locate: Locate) -> list[Item]:
        """The records of neighbouring entries, from a lane that may have to be opened again."""
        _, number, first, stop = run
        while True:
            lane = lanes[number]
            try:
                return lane.take(first, stop)
            except SettledError:
                # Another thread has closed it, or another process had come further than this one.
                again = locate if lane.closed else from_the_beginning
                self._drop(number, lane)
                lanes[number] = self._open([run], again)[number]

    def _report(self, chunk: Chunk, runs: list[_Entries], lanes: dict[int, Lane]) -> Report:
        """Where the lanes can be opened after a chunk that was read."""
        assert chunk.reads is not None
        ends = {number: stop for _, number, _, stop in runs}
        self._settle(chunk.reads.settled, chunk.step, ends)
        with self._lock:
            opened, self._opened = self._opened, []
            replayed, replay_s = self._untold
            self._untold = (0, 0.0)
        for lane in opened:
            replayed += lane.replayed
            replay_s += lane.replay_s
        if not chunk.reads.snapshot:
            return Report(b"", b"", replayed, replay_s)
        told: list[tuple[int, Snapshot]] = []
        for number, stop in ends.items():
            snapshot = lanes[number].snapshot(stop)
            offset, step = self._told.get(number, (0, -1))
            if snapshot.offset > offset:
                self._told[number] = (snapshot.offset, chunk.step)
            elif step < chunk.reads.settled or snapshot.offset == 0:
                continue  # what was told with a batch that was given up must be told again
            told.append((number, snapshot))
        if not told:
            return Report(b"", b"", replayed, replay_s)
        of = np.array([number for number, _ in told]).tobytes()
        return Report(
            pickle.dumps([(number, *snapshot) for number, snapshot in told], 5),
            of,
            replayed,
            replay_s,
        )

    def take_back(self, report: Report) -> None:
        """The chunk of a report was given up: what was read again for it is told with another."""
        with self._lock:
            replayed, replay_s = self._untold
            self._untold = (replayed + report.replayed, replay_s + report.replay_s)

    def reset(self) -> None:
        """Closes all lanes; they are opened again where they are asked for."""
        for number, lane in list(self._lanes.items()):
            self._drop(number, lane)

    close = reset

    def _open(self, runs: list[_Entries], locate: Locate) -> dict[int, Lane]:
        """Opens the lanes that are not open, and closes those of epochs gone by."""
        lanes = self._lanes
        firsts: dict[int, int] = {}
        for _, number, first, _ in runs:
            firsts.setdefault(number, first)
        marks = self._shared or (self._early and self._plan.window == 1)
        if firsts.keys() <= lanes.keys() and not marks:
            return lanes
        with self._lock:
            oldest = min(firsts) // self._plan.num_lanes - 1
            for number in [old for old in lanes if old // self._plan.num_lanes < oldest]:
                self._drop(number, lanes[number])
            missing = [number for number in firsts if number not in lanes]
            unknown = [number for number in missing if firsts[number] > 0]
            begins = dict(zip(unknown, locate(unknown), strict=True)) if unknown else {}
            for number in missing:
                snapshot, settled = begins.get(number, (Snapshot(), 0))
                epoch, lane = divmod(number, self._plan.num_lanes)
                lanes[number] = Lane(
                    self._stream,
                    self._plan,
                    epoch,
                    lane,
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
        if marks:
            for number, offset in firsts.items():
                found[number].mark(offset)
        return found

    def _drop(self, number: int, lane: Lane) -> None:
        """Closes a lane, which may have been opened anew meanwhile."""
        if self._lanes.get(number) is lane:
            del self._lanes[number]
            self._told.pop(number, None)
        lane.close()

    def _settle(self, settled: int, step: int, ends: dict[int, int]) -> None:
        """Lets go of what was read before a step."""
        with self._lock:
            self._read.append((step, ends))
            gone = [entry for entry in self._read if entry[0] < settled]
            if len(gone) < _SETTLED_AT_ONCE:
                return
            self._read = [entry for entry in self._read if entry[0] >= settled]
            last: dict[int, int] = {}
            for _, offsets in sorted(gone, key=lambda entry: entry[0]):
                last.update(offsets)
            for number, stop in last.items():
                if number in self._lanes:
                    self._lanes[number].settle(stop)

    def _tell_bad(
        self, found: list[tuple[int, int, str]], chunk: Chunk, entry: int, bad: list[BadRecord]
    ) -> None:
        assert chunk.reads is not None
        if chunk.reads.rows[entry] >= 0 and (chunk.mask is None or chunk.mask[entry]):
            position = int(chunk.positions[entry])
            bad += [
                BadRecord(chunk.step, position, number, text, None, shard)
                for shard, number, text in found
            ]


_Entries: TypeAlias = tuple[int, int, int, int]
"""Entries of a chunk that follow each other in one lane: first entry, lane, first offset, stop."""


def _runs_of(chunk: Chunk) -> list[_Entries]:
    assert chunk.reads is not None
    lanes, offsets = chunk.reads.lanes, chunk.indices
    same = (lanes[1:] == lanes[:-1]) & (offsets[1:] == offsets[:-1] + 1)
    begins = np.concatenate([[0], np.flatnonzero(~same) + 1])
    lengths = np.diff(begins, append=len(lanes))
    columns = (begins, lanes[begins], offsets[begins], offsets[begins] + lengths)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def resolved(chunk: Chunk, items: list[Item]) -> tuple[Chunk, list[Item]]:
    """The rows of this process among what was read, named by shard and number in it."""
    assert chunk.reads is not None
    kept = np.flatnonzero(chunk.reads.rows >= 0)
    items = [items[entry] for entry in kept.tolist()]
    reads = replace(
        chunk.reads,
        lanes=chunk.reads.lanes[kept],
        rows=chunk.reads.rows[kept],
        shards=np.array([item[2] for item in items], np.int64),
    )
    return replace(
        chunk,
        positions=chunk.positions[kept],
        indices=np.array([item[3] for item in items], np.int64),
        mask=None if chunk.mask is None else chunk.mask[kept],
        reads=reads,
    ), items


def unpickled(report: Report) -> dict[int, Snapshot]:
    """The snapshots of a report, by lane."""
    loaded: list[Any] = pickle.loads(report.snapshots)
    return {number: Snapshot(*fields) for number, *fields in loaded}
