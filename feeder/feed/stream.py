"""Feeds of streams: batches are planned as if shards had no end, and again where one is found.

A worker that reads to the end of a lane tells how many records it had. All batches from that one on
are then planned anew; what was read for them is still there, and is not read again.

Guarantees:
    * Batches leave in step order, each once, and are those of the plan that knows all ends: what
      was built before an end was known never leaves.
    * The state speaks of the batches delivered: not of ends that were found, nor of records that
      were read, beyond them.

Owner:
    A feed owns its session at the producer, and its run: the lanes that workers have open for it.
"""

from __future__ import annotations

import itertools
import logging
import warnings
import weakref
from collections import deque
from dataclasses import dataclass, field

from feeder.collect.collector import Collector
from feeder.feed.protocol import Fed
from feeder.feed.reading import Reading
from feeder.feed.snapshots import Snapshots
from feeder.place.ends import Ends
from feeder.plan import stream
from feeder.plan.chunks import Chunk
from feeder.plan.schedule import Cursor
from feeder.plan.stream import Place, StreamPlan, StreamPlanner, Total
from feeder.produce.bad import BadRecord
from feeder.produce.built import Ended, Passed
from feeder.produce.failures import Failure
from feeder.produce.session import Outcome, Producer
from feeder.produce.snapshot import Snapshot

_LEAST_AHEAD, _MOST_AHEAD = 2, 2**20
"""Fewest batches asked for ahead while lanes end, and most of them where none does."""

_log = logging.getLogger("feeder")


class Runs:
    """Numbers the runs that read a stream, and knows which of them still do."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: weakref.WeakSet[StreamFeed] = weakref.WeakSet()

    def add(self, feed: StreamFeed) -> int:
        """The number of a new run."""
        self._open.add(feed)
        return next(self._numbers)

    def live(self) -> tuple[int, ...]:
        """Numbers of the runs that still read, in rising order."""
        return tuple(sorted(feed.run for feed in self._open if not feed.closed))


@dataclass(frozen=True, slots=True, eq=False)
class StreamStages:
    """What the feeds of one stream have in common.

    Attributes:
        reading: Says what this process reads.
        producer: Builds batches of it.
        snapshot_every: Steps between snapshots of the shards' states.
        runs: All that read.
    """

    reading: Reading
    producer: Producer
    snapshot_every: int
    runs: Runs = field(default_factory=Runs)

    @property
    def planner(self) -> StreamPlanner:
        """Plans global batches."""
        return self.reading.planner


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    plan: StreamPlan
    chunk: Chunk
    place: Place


class StreamFeed:
    """The batches of one run.

    Attributes:
        alone: Whether memory is so short that nothing is asked for ahead.
        error: Why the batch after those under way cannot be planned.
        run: Number of the run.
        closed: Whether it is over.

    Args:
        stages: Who plans, reads and builds.
        start: Where to begin.
        known: Where lanes can be opened.
        last_epoch: The epoch to end with; None: the run's last.
        resumed: Whether it goes on where a state says.
    """

    _held: tuple[_Asked, Outcome] | None
    _found: dict[int, Total] | None

    def __init__(
        self,
        stages: StreamStages,
        start: Place,
        known: dict[int, Snapshot],
        last_epoch: int | None,
        resumed: bool = False,
    ) -> None:
        self.alone = False
        self.closed = False
        self.run = stages.runs.add(self)
        self._stages = stages
        self._last_epoch = last_epoch
        self._delivered = start
        self._snapshots = Snapshots(known)
        self._totals: dict[int, Total] = {}
        self._left_out: dict[int, list[BadRecord]] = {}  # by step before which they were
        self._resumed = resumed
        self._replayed, self._replay_s = 0, 0.0
        job = stages.reading.job
        self._ends = None if job is None else Ends(job.service)
        self._agreed = start.step  # all processes know where lanes end in the steps before
        self._attempt = 0
        self._found = None  # what they told of the step that follows; a restart keeps it
        self._most = _MOST_AHEAD  # batches asked for
        self._session = stages.producer.session(self._locate)
        self._begin(start)

    def __len__(self) -> int:
        """Batches asked for and not given out."""
        return len(self._collector) + (self._held is not None)

    @property
    def step(self) -> int:
        """Step of the batch that is to be delivered next."""
        return self._delivered.step

    def cursor(self) -> Cursor:
        """Where that batch begins."""
        place = self._delivered
        draws = {
            **stream.to_json(self._stages.planner, place),
            "shards": self._snapshots.to_json(self._lanes_alive()),
        }
        return Cursor(place.step, place.position, draws)

    def submit(self, _ahead: bool = False, /) -> bool:
        """Asks for more, once half of the window is free; False: nothing is under way."""
        window = 1 if self.alone else min(self._stages.producer.window, self._most)
        if 2 * len(self._collector) <= window and self.error is None:
            live = self._stages.runs.live()
            while len(self._collector) < window and self._plan(live):
                pass
        return len(self) > 0

    def next(self) -> Fed | None:
        """The next batch; None where it has not come, or other processes have not told of it."""
        if self._held is None and not self._take():
            return None
        assert self._held is not None
        asked, outcome = self._held
        if isinstance(outcome, Failure):
            # Nothing is told of it: the step may hide an end, and is agreed on once it is built.
            self._held = None
            return Fed(asked.chunk, asked.plan.num_rows, outcome, asked.plan.after)
        found = outcome.totals if isinstance(outcome, Ended) else {}
        if self._ends is not None and asked.plan.step >= self._agreed:
            agreed = self._hear(self._ends)
            if agreed is None:
                return None
            found = agreed
        self._held = None
        if found:
            self._totals.update(found)
            if isinstance(outcome, Ended):
                self._left_out.setdefault(asked.plan.step, []).extend(outcome.bad)
            self._attempt += 1
            self._most = max(_LEAST_AHEAD, min(self._most, self._stages.producer.window) // 2)
            self._rewind(asked.place)
            return None
        assert not isinstance(outcome, Ended | Passed)
        if asked.plan.step >= self._agreed:
            self._agreed, self._attempt = asked.plan.step + 1, 0
        self._snapshots.add(asked.plan.step, outcome.reports)
        for report in outcome.reports:
            self._replayed += report.replayed
            self._replay_s += report.replay_s
        left_out = self._left_out.get(asked.plan.step, ())
        return Fed(asked.chunk, asked.plan.num_rows, outcome, asked.plan.after, left_out)

    def _take(self) -> bool:
        """Takes the next outcome from the workers, and tells the other processes of it."""
        if not self._collector.ready:
            for step, outcome in self._session.take():
                self._collector.arrive(step, outcome)
            if not self._collector.ready:
                return False
        _, outcome = self._collector.pop()
        asked = self._asked.popleft()
        self._held = (asked, outcome)
        if isinstance(outcome, Failure) or self._ends is None:
            return True
        if asked.plan.step >= self._agreed and self._found is None:
            totals = outcome.totals if isinstance(outcome, Ended) else {}
            self._ends.tell(asked.plan.step, self._attempt, totals)
        return True

    def _hear(self, ends: Ends) -> dict[int, Total] | None:
        """What all processes found in this step; None: some have not told yet.

        Where some found ends, all tell where lanes can be opened: others may need them from now on.
        """
        if self._found is None:
            self._found = ends.heard()
            if self._found:
                own = self._stages.reading.leads(self._lanes_alive())
                ends.share({lane: self._snapshots.of(lane) for lane in own})
        if self._found:
            shared = ends.shared()
            if shared is None:
                return None
            for known in shared:
                self._snapshots.learn(known)
        found, self._found = self._found, None
        return found

    def _lanes_alive(self) -> list[int]:
        first = self._delivered.epoch * self._stages.planner.num_lanes
        return [first + lane for lane in self._delivered.phase.alive]

    def poll(self) -> None:
        """Moves things on, without waiting."""
        self._session.poll()

    def wait(self) -> None:
        """Waits until something has come."""
        if self._held is None:
            self._session.wait()
        elif self._ends is not None:
            self._ends.wait()

    def commit(self, fed: Fed) -> None:
        """A batch is delivered."""
        if self._replayed:
            self._tell_replay()  # first: a warning may be an error
        place: Place = fed.after
        if place.epoch > self._delivered.epoch:
            first = place.epoch * self._stages.planner.num_lanes
            self._totals = {lane: of for lane, of in self._totals.items() if lane >= first}
        self._delivered = place
        self._most = min(self._most + 1, _MOST_AHEAD)
        self._left_out.pop(fed.chunk.step, None)
        self._snapshots.commit(fed.chunk.step, place.epoch * self._stages.planner.num_lanes)

    def restart(self) -> None:
        """Gives up whatever is under way, and begins anew with the batch to be delivered next."""
        self.alone = False
        self._snapshots.forget_after(self._delivered.step)
        self._rewind(self._delivered)

    def left_out(self) -> list[BadRecord]:
        """Records left out after the last batch."""
        left, self._left_out = self._left_out, {}
        return [record for _, bad in sorted(left.items()) for record in bad]

    def close(self) -> None:
        """Gives up whatever is under way; workers close its lanes."""
        self.closed = True
        self._session.close()

    def _begin(self, place: Place) -> None:
        self._head = place
        self.error: BaseException | None = None
        self._asked: deque[_Asked] = deque()
        self._held = None  # until other processes have told
        self._collector: Collector[Outcome] = Collector()

    def _rewind(self, place: Place) -> None:
        self._begin(place)
        self._session.renew()

    def _plan(self, live: tuple[int, ...]) -> bool:
        """Asks for one more batch; False where there is none."""
        place = self._head
        try:
            plan = self._stages.planner.plan(place, self._totals, self._last_epoch)
            if plan is None:
                return False
            due = (plan.step + 1) % self._stages.snapshot_every == 0
            chunk = self._stages.reading.chunk(plan, self.run, live, self._delivered.step, due)
        except Exception as error:  # raised once the batches before it are gone
            self.error = error
            return False
        self._asked.append(_Asked(plan, chunk, place))
        self._collector.expect(plan.step)
        self._session.submit(chunk)
        self._head = plan.after
        return True

    def _locate(self, lanes: list[int]) -> list[tuple[Snapshot, int]]:
        """Where lanes are to be opened, and the offset before which nothing is asked for."""
        place = self._delivered
        first = place.epoch * self._stages.planner.num_lanes
        taken = place.phase.taken(place.row)
        found = [(self._snapshots.of(lane), taken.get(lane - first, 0)) for lane in lanes]
        # That of another process may be ahead of what was delivered here.
        return [(snapshot, max(settled, snapshot.offset)) for snapshot, settled in found]

    def _tell_replay(self) -> None:
        text = (
            f"{self._replayed} records of the stream were read again, in {self._replay_s:.2g} s, "
            "to come to where its shards had been read to: their iterators have no state; give "
            "them state_dict(), and let open(shard, epoch, state) begin there"
        )
        self._replayed, self._replay_s = 0, 0.0
        if self._resumed:
            self._resumed = False
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        else:  # a worker died, or an iterator raised
            _log.info("%s", text)
