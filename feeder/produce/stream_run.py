"""One run over a stream: chunks read from its lanes, and where these can be opened again.

Guarantees:
    * Each lane is opened once per run, and read in order; again only where user code raised in it.

Owner:
    A `StreamRun` owns its lanes; `close` closes them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from feeder.plan.chunks import Name, StreamChunk
from feeder.plan.patterns import Run
from feeder.plan.stream import Total
from feeder.produce.bad import BadRecord
from feeder.produce.built import Ended
from feeder.produce.clock import Clock
from feeder.produce.lane import Lane, LaneEnd, SettledError
from feeder.produce.lineup import Lineup
from feeder.produce.open_lanes import OpenLanes
from feeder.produce.recipe import Recipe
from feeder.produce.session import GivenUpError, Locate, from_the_beginning
from feeder.produce.snapshot import Report, Snapshot, report_of
from feeder.produce.stream_transforms import Expansion, split
from feeder.produce.turns import Turns
from feeder.produce.unsettled import Taken, Unsettled
from feeder.sources.stream import Stream

_SETTLED_AT_ONCE = 4
"""Chunks of which lanes let go together: it costs as much as for one."""


class Found(NamedTuple):
    """What was read for a chunk.

    Attributes:
        chunk: The chunk of the rows of this process, which knows what the records are called.
        records: Its records, in order.
        report: Where the lanes are after the chunk.
        taken: What is remembered of it until it is settled.
    """

    chunk: StreamChunk
    records: list[Any]
    report: Report
    taken: Taken


class StreamRun:
    """The lanes of one run.

    Args:
        recipe: Whose source is a stream.
        turns: As of `Streams`.
        tell_busy: Called now and then while shards are read again.
        key_global: Keys the global generators for each record; None: they are left alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        turns: Turns | None,
        tell_busy: Callable[[], None],
        key_global: Callable[[int], None] | None,
    ) -> None:
        assert isinstance(recipe.source, Stream)
        assert recipe.lanes is not None
        self._skips = recipe.on_bad_record == "skip"
        self._turns = turns
        self._tell_busy = tell_busy
        stream, plan, seed, skips = recipe.source, recipe.lanes, recipe.seed, self._skips
        early, _ = split(recipe.transforms, skips)

        def make(number: int, snapshot: Snapshot, settled: int) -> Lane:
            expansion = Expansion(early, seed) if early else None
            place = divmod(number, plan.num_lanes)
            told = (tell_busy, key_global)
            return Lane(stream, plan, *place, expansion, skips, snapshot, settled, *told)

        in_order = plan.window == 1
        self._lanes = OpenLanes(plan.num_lanes, make, turns, marks=bool(early) and in_order)
        # Whether batches have the records as the shards give them.
        self._straight = not early and in_order and key_global is None
        self._changes = 0  # how often lanes have gone on to other shards
        self._reading: Lineup | None = None
        self._unsettled = Unsettled()
        self._settled = 0
        self._ended: dict[int, int] = {}  # up to where the lanes were settled since then
        self._untold = (0, 0.0)  # records read again, and seconds, of chunks that were given up
        self._lock = threading.Lock()

    def read(
        self, chunk: StreamChunk, locate: Locate, clock: Clock, bad: list[BadRecord]
    ) -> Found | Ended:
        """The records of a chunk that are rows of this process; or where lanes end before it."""
        if self._turns is None:
            return self._read_now(chunk, locate, clock, bad)
        try:
            self._turns.wait(chunk)
            self._tell_busy()  # only now: others may have taken long
            found = self._read_now(chunk, locate, clock, bad)
            if isinstance(found, Ended):
                return found
            return found._replace(chunk=_with_names(found.chunk))
        finally:
            self._turns.end(chunk)

    def _read_now(
        self, chunk: StreamChunk, locate: Locate, clock: Clock, bad: list[BadRecord]
    ) -> Found | Ended:
        records: list[Any] = []
        taken, begin = Taken(chunk.step, {}), 0
        if self._straight:
            lineup = self._lineup(chunk, locate)
            lanes = lineup.lanes
            if self._read_straight(chunk, lineup, records, clock):
                taken = Taken(chunk.step, lineup.switched, lineup, chunk.cycle, records)
            else:
                begin = lineup.reached
        else:
            lanes = self._lanes.of(chunk, locate)
        if taken.lineup is None:
            ended = self._take(chunk, lanes, begin, records, locate, clock, bad)
            if ended is not None:
                return ended
            taken.ends = _ends(chunk)
        with self._lock:
            self._unsettled.add(taken)
        self._reading = None
        try:
            report = self._report(chunk, taken, lanes)
        except BaseException:
            self._tell_unsaved(chunk, lanes, clock)
            raise
        return Found(*_named(chunk, records, lanes), report, taken)

    def _lineup(self, chunk: StreamChunk, locate: Locate) -> Lineup:
        """The lanes that are read, open."""
        if self._reading is not None:  # Ctrl-C came, and nobody knows how far it was read
            for lane in self._reading.lanes.values():
                self._lanes.drop(lane)
            self._reading = None
        return self._lanes.lineup(chunk, locate)

    def _read_straight(
        self, chunk: StreamChunk, lineup: Lineup, records: list[Any], clock: Clock
    ) -> bool:
        """Reads straight from the shards; False: from the run reached on, `take` is needed."""
        cycle = chunk.cycle
        if self._turns is None:
            self._reading = lineup
        try:
            if lineup.read(cycle, records):
                self._changes += bool(lineup.switched)
                return True
        except BaseException:
            self._let_keep(lineup, cycle, records)
            run = chunk.pattern.runs[lineup.reached]
            self._tell_failed(chunk, run, lineup.lanes, clock)
            raise
        self._let_keep(lineup, cycle, records)
        return False

    def _let_keep(self, lineup: Lineup, cycle: int, records: list[Any]) -> None:
        """Lets the lanes of a lineup keep what was read straight from their shards."""
        with self._lock:
            self._unsettled.hand_over()
            lineup.stop(cycle, records)
            self._changes += 1
        self._reading = None

    def _take(
        self,
        chunk: StreamChunk,
        lanes: dict[int, Lane],
        begin: int,
        records: list[Any],
        locate: Locate,
        clock: Clock,
        bad: list[BadRecord],
    ) -> Ended | None:
        """Takes the records of the runs of a chunk, from one on; or says where lanes end."""
        totals: dict[int, Total] = {}
        left_out: list[BadRecord] = []
        for run in chunk.pattern.runs[begin:]:
            number = run.lane + chunk.first_lane
            first = run.first + chunk.cycle * run.per_cycle
            stop = first + run.num_records
            try:
                try:
                    records += lanes[number].take(first, stop)
                except SettledError:
                    records += self._take_anew(chunk, lanes, number, first, stop, locate)
            except LaneEnd as end:
                if number not in totals:
                    totals[number] = end.total
                    at = run.entry + max(0, end.total.records - first)
                    self._tell_bad(end.bad, chunk, at, left_out)
                continue
            except GivenUpError:
                raise
            except BaseException:
                self._tell_failed(chunk, run, lanes, clock)
                raise
            if self._skips and (left := lanes[number].bad):
                for offset in range(first, stop):
                    self._tell_bad(left.get(offset, []), chunk, run.entry + offset - first, bad)
        return Ended(totals, left_out) if totals else None

    def _take_anew(
        self,
        chunk: StreamChunk,
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
            self._lanes.drop(lane)
            lanes[number] = self._lanes.open({number: first}, chunk, again)[number]
            with contextlib.suppress(SettledError):
                return lanes[number].take(first, stop)

    def _tell_failed(
        self, chunk: StreamChunk, run: Run, lanes: dict[int, Lane], clock: Clock
    ) -> None:
        """Says at which record of a run user code raised, and closes its lane."""
        number = run.lane + chunk.first_lane
        first = run.first + chunk.cycle * run.per_cycle
        lane = lanes[number]
        if lane.where is not None:
            at = run.entry + max(0, min(lane.position - first, run.num_records - 1))
            clock.fail(lane.where[0], int(chunk.positions[at]), *lane.where[1:])
        self._lanes.drop(lane)

    def _tell_unsaved(self, chunk: StreamChunk, lanes: dict[int, Lane], clock: Clock) -> None:
        """Says after which record a state could not be saved, and closes that lane."""
        for number, stop in _ends(chunk).items():
            lane = lanes[number]
            if lane.closed and lane.where is not None:
                lanes_read = chunk.pattern.lanes + chunk.first_lane
                of = (lanes_read == number) & (chunk.indices == stop - 1)
                clock.fail("read", int(chunk.positions[of][0]), *lane.where[1:])
                self._lanes.drop(lane)

    def _report(self, chunk: StreamChunk, taken: Taken, lanes: dict[int, Lane]) -> Report:
        """Where the lanes can be opened after a chunk that was read."""
        self._settle(chunk)
        report = Report()
        if chunk.snapshot:
            report = self._snapshots(chunk, taken, lanes)
        opened = self._lanes.new()
        if opened or self._untold[0]:
            with self._lock:
                replayed, replay_s = self._untold
                self._untold = (0, 0.0)
            replayed += sum(lane.replayed for lane in opened)
            replay_s += sum(lane.replay_s for lane in opened)
            report = report._replace(replayed=replayed, replay_s=replay_s)
        return report

    def _snapshots(self, chunk: StreamChunk, taken: Taken, lanes: dict[int, Lane]) -> Report:
        lineup = taken.lineup
        if lineup is not None:
            if lineup.quiet == self._changes:
                return Report()
            taken.report = lineup.report(taken.cycle, self._changes)
            if taken.report is not None:
                return taken.report
            taken.ends = _ends(chunk)
        told: list[tuple[int, Snapshot]] = []
        for number, stop in taken.ends.items():
            snapshot = lanes[number].snapshot(stop)
            offset, before = lanes[number].told
            if snapshot.offset > offset:
                lanes[number].told = (snapshot.offset, chunk.step)
            elif before < chunk.settled or snapshot.offset == 0:
                continue  # what was told with a batch that was given up must be told again
            told.append((number, snapshot))
        if lineup is not None:
            lineup.quiet = -1 if told else self._changes
        return report_of(told) if told else Report()

    def take_back(self, report: Report) -> None:
        """The chunk of a report was given up: what was read again for it is told with another."""
        with self._lock:
            replayed, replay_s = self._untold
            self._untold = (replayed + report.replayed, replay_s + report.replay_s)

    def close(self) -> None:
        """Closes all lanes; they are opened again where they are asked for."""
        self._lanes.close()

    def forsake(self, chunk: StreamChunk) -> None:
        """The thread that reads a chunk is stuck: others open its lanes again."""
        self._lanes.forsake(chunk)

    def _settle(self, chunk: StreamChunk) -> None:
        """Lets go of what was read for batches that were delivered."""
        with self._lock:
            self._ended.update(self._unsettled.settle(chunk.settled))
            if chunk.settled < self._settled + _SETTLED_AT_ONCE:
                return
            self._settled = chunk.settled
            ended, self._ended = self._ended, {}
        self._lanes.settle(ended, chunk)

    def _tell_bad(
        self,
        found: list[tuple[int, int, str]],
        chunk: StreamChunk,
        entry: int,
        bad: list[BadRecord],
    ) -> None:
        if chunk.pattern.rows[entry] >= 0 and (chunk.mask is None or chunk.mask[entry]):
            position = int(chunk.positions[entry])
            bad += [
                BadRecord(chunk.step, position, number, text, None, shard)
                for shard, number, text in found
            ]


def _ends(chunk: StreamChunk) -> dict[int, int]:
    """Up to where a chunk reads each of its lanes."""
    return {
        lane + chunk.first_lane: first + chunk.cycle * per_cycle + count
        for _, lane, first, count, per_cycle in chunk.pattern.runs
    }


def _named(
    chunk: StreamChunk, records: list[Any], lanes: dict[int, Lane]
) -> tuple[StreamChunk, list[Any]]:
    """The rows of this process among what was read, and what says how they are called."""

    def names() -> list[Name]:
        found: list[Name] = []
        for _, lane, first, count, per_cycle in chunk.pattern.runs:
            first += chunk.cycle * per_cycle
            found += lanes[lane + chunk.first_lane].names(first, first + count)
        return found

    own = chunk.pattern.own
    if own is None:
        return chunk.named(names), records
    kept = np.flatnonzero(chunk.pattern.rows >= 0).tolist()

    def names_of_own() -> list[Name]:
        found = names()
        return [found[entry] for entry in kept]

    return chunk.of(own, chunk.is_part).named(names_of_own), [records[entry] for entry in kept]


def _with_names(chunk: StreamChunk) -> StreamChunk:
    """The chunk that remembers what its records are called, whoever reads on in their lanes."""
    assert chunk.names is not None
    names = chunk.names()
    return chunk.named(lambda: names)
