"""A lane of a stream as a worker reads it: shard after shard, each record at its offset.

Guarantees:
    * `take` gives the same record for an offset whenever it is asked, from whatever snapshot the
      lane was opened, until that offset is settled.
    * Records are read once, in order, as far as somebody asks; those that are settled are let go.
    * Threads may share a lane, one at a time.

Where nothing is done to records but to read them, whoever reads may take them from `iterator`
itself, move `position`, and see to what was read until it is settled, or `keep` it here.

Owner:
    The lane owns the shard that is open.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Any

from feeder.errors import StreamError
from feeder.plan.chunks import Name
from feeder.plan.stream import Total
from feeder.plan.windows import Lanes
from feeder.produce.maps import MAX_ERROR
from feeder.produce.names import Names
from feeder.produce.pace import Pace
from feeder.produce.shard import Shard
from feeder.produce.snapshot import Open, Snapshot
from feeder.produce.stream_transforms import Expansion, record_key, shard_key
from feeder.sources.stream import Stream


class LaneEnd(Exception):  # noqa: N818 - no error
    """The lane has no record at this offset, nor after it."""

    def __init__(self, total: Total, bad: list[tuple[int, int, str]]) -> None:
        super().__init__(total)
        self.total = total
        self.bad = bad


def _nobody() -> None:
    """There is nobody to tell."""


class SettledError(Exception):
    """The record at this offset was settled, and is gone."""


class Lane:
    """Reads the shards of a lane.

    Attributes:
        number: Its number, over all epochs.
        position: The offset up to which it has been read.
        iterator: Gives the record at that offset, and those after it while the shard lasts; None:
            only `take` does.
        save: Returns the state of what is open, pickled; None: there is none, or `snapshot` must be
            asked.
        told: Offset of the last snapshot that was told of it, and the step with which it was first.
        closed: Whether it was closed.
        where: Stage, shard and number of the record at which user code raised.
        replayed: Records read again, for want of a state, to come to where it was opened.
        replay_s: Seconds that this took.

    Args:
        stream: The source.
        lanes: Which shards it reads, and how they are shuffled.
        epoch: Number of the epoch.
        number: Number of the lane.
        expansion: What becomes of a record before it has a place; None: itself.
        skips: Whether a record that raises there is left out.
        snapshot: Where to begin.
        settled: Offset before which nothing will be asked for.
        tell_busy: Called now and then while it reads again what was read before.
        key_global: Keys the global generators for a record; None: they are left alone.
    """

    def __init__(
        self,
        stream: Stream,
        lanes: Lanes,
        epoch: int,
        number: int,
        expansion: Expansion | None,
        skips: bool,
        snapshot: Snapshot,
        settled: int,
        tell_busy: Callable[[], None] = _nobody,
        key_global: Callable[[int], None] | None = None,
    ) -> None:
        self.position = snapshot.offset
        self.told = (snapshot.offset, -1)
        self.iterator: Iterator[Any] | None = None
        self.save: Callable[[], bytes | None] | None = None
        self.where: tuple[str, int, int] | None = None
        self.closed = False
        self.replayed = 0
        self.replay_s = 0.0
        self._stream = stream
        self._lanes = lanes
        self._epoch = epoch
        self.number = epoch * lanes.num_lanes + number
        self._number = number
        self._shards = lanes.shards(epoch, number).tolist()
        self._window = lanes.window
        self._expansion = expansion
        self._skips = skips
        self._tell_busy = tell_busy
        self._key_global = key_global
        # Without a state, where its shard began says as much as where it is, and costs nothing.
        self._marks_shards = False
        self._begin = snapshot
        self._item = snapshot.item
        self._read_before = snapshot.read_before
        self._settled = settled
        self._first = snapshot.offset  # of the oldest record kept
        self._records: list[Any] = []
        self._as_read = self._window == 1 and expansion is None
        self._names = Names(self._as_read, snapshot.offset)
        self._marks = [snapshot]
        self._bad: dict[int, list[tuple[int, int, str]]] = {}
        self._shard: Shard | None = None
        self._is_stateful = False  # whether the last shard that was opened is
        self._key = 0
        self._base = 0  # records that it had given before the shard that is open, where as read
        self._due: list[int] = []

    def take(self, first: int, stop: int) -> list[Any]:
        """The records from an offset up to another.

        Raises:
            LaneEnd: There are not as many.
            SettledError: The first of them is gone, or the lane is closed.
            Exception: Whatever user code raises.
        """
        self._count()
        if self._first + len(self._records) != self.position:  # all before it is settled
            self._records.clear()
            self._first = self.position
        if self.closed or first < self._first:
            raise SettledError
        if self.position < stop:
            try:
                self._read_to(stop)
            except LaneEnd:
                raise
            except BaseException:
                self._fail()
                raise
        return self._records[first - self._first : stop - self._first]

    def remember(self, snapshot: Snapshot) -> None:
        """It could be opened there, as was told."""
        if snapshot.offset > self._marks[-1].offset:
            self._marks.append(snapshot)

    def open_at(self, first: int, per_cycle: int) -> Open:
        """Where it is, as long as the shard lasts that is open.

        Args:
            first: Records that it has given before some batch.
            per_cycle: Records that it gives until the batch that lies a cycle later.
        """
        return Open(self.number, first, per_cycle, self._item, self._base, self._read_before)

    def keep(self, first: int, records: list[Any]) -> None:
        """Keeps records that were read from `iterator`, from an offset on: `take` gives them."""
        if first != self._first + len(self._records):
            self._records.clear()  # settled: what lay between is
            self._first = first
        self._records += records

    def read_on(self, records: list[Any], count: int) -> None:
        """Reads so many more records, once `iterator` gives no more, of the shards that follow.

        Raises:
            LaneEnd: There are not as many.
            Exception: Whatever user code raises; the lane has failed.
        """
        self._count()
        if self._shard is not None:
            self._next_shard(self._shard)
        try:
            while count:
                before = len(records)
                try:
                    self._read_shard(records, count)
                finally:
                    found = len(records) - before
                    self.position += found
                    count -= found
        except LaneEnd:
            raise
        except BaseException:
            self._fail()
            raise

    def fail(self, num_read: int) -> None:
        """`iterator` raised, after it gave so many records from `position` on."""
        self.position += num_read
        self._count()
        if self._shard is not None:
            self.where = ("read", self._shard.number, self._shard.num_read)
        self._fail()

    def forsake(self) -> None:
        """A thread is stuck in it: when that wakes up, it reads nothing more."""
        self.closed = True
        self.iterator = self.save = None

    def _fail(self) -> None:
        self.closed = True  # at once: an iterator that raised may say that it is over
        self.iterator = self.save = None

    def _count(self) -> None:
        """Takes note of how much was read from `iterator`."""
        if self._shard is not None and self._as_read:
            self._shard.num_read = self.position - self._base

    def names(self, first: int, stop: int) -> list[Name]:
        """What the records that were taken are called."""
        return self._names.of(first, stop)

    @property
    def bad(self) -> dict[int, list[tuple[int, int, str]]]:
        """Shard, number and error of the records left out, by the offset just before which."""
        return self._bad

    def mark(self, offset: int) -> None:
        """A snapshot at an offset will be asked for once the lane has been read beyond it."""
        bisect.insort(self._due, offset)

    def snapshot(self, offset: int) -> Snapshot:
        """The last place at or before an offset where the lane can be opened."""
        if offset == self.position and not self._marks_shards:
            here = self._marks[-1]
            if here.offset < offset:
                here = self._here()
                self._marks.append(here)
            return here
        for mark in reversed(self._marks):
            # Whether the next shard is open, once one is over, depends on who has read on.
            if mark.offset < offset or (mark.offset == offset and not self._marks_shards):
                return mark
        return self._marks[0]

    def settle(self, offset: int) -> None:
        """Nothing before an offset will be asked for again."""
        if offset <= self._settled:
            return
        self._settled = offset
        self._let_go()
        if self._as_read:
            self._names.settle(offset)
        while len(self._marks) > 1 and self._marks[1].offset <= offset:
            del self._marks[0]
        for at in [at for at in self._bad if at < offset]:
            del self._bad[at]

    def close(self) -> None:
        """Closes the shard that is open; nothing can be read any more. Any thread may."""
        self.closed = True
        self.iterator = self.save = None
        if self._shard is not None:
            shard, self._shard = self._shard, None
            shard.close()

    def _read_to(self, stop: int) -> None:
        if self.position < self._settled:
            self._replay()
        while (missing := stop - self.position) > 0:
            self._read(missing)

    def _replay(self) -> None:
        """Reads again what is settled, on the way to what is not."""
        pace = Pace(self._tell_busy)
        while (missing := self._settled - self.position) > 0:
            self._read(min(missing, pace.count))
            gone = self._let_go()
            self.replayed += 0 if self._is_stateful else gone
            pace.tick()
        self.replay_s += pace.spent_s

    def _let_go(self) -> int:
        """Forgets the records that are settled, and returns how many there were."""
        gone = max(0, min(self._settled - self._first, len(self._records)))
        if gone:
            del self._records[:gone]
            self._first += gone
            self._names.settle(self._first)
        return gone

    def _read(self, count: int) -> None:
        """Reads on, by up to so many records or by a window of them."""
        if self._window > 1 or self._due:
            count = self._note(count)
        try:
            if self._as_read:
                self._read_shard(self._records, count)
            else:
                self._read_window()
        finally:
            self.position = self._first + len(self._records)

    def _note(self, count: int) -> int:
        """Notes where the lane is, if it will be asked for; how many records may be read then."""
        offset = self.position
        due = self._window > 1
        while self._due and self._due[0] <= offset:
            self._due.pop(0)
            due = True
        if due and offset > self._marks[-1].offset and not self._marks_shards:
            self._marks.append(self._here())
        return min(count, self._due[0] - offset) if self._due else count

    def _read_window(self) -> None:
        """Reads so many records as are shuffled together, or what one of them becomes."""
        window: list[tuple[Any, Name]] = []
        try:
            window += self._next(self._window)
            while len(window) < self._window > 1:
                window += self._next(self._window - len(window))
        except LaneEnd:
            if not window:
                raise
        if self._window > 1:
            order = self._lanes.order(self._epoch, self._number, self.position, len(window))
            window = [window[number] for number in order]
        self._records += [record for record, _ in window]
        self._names.add([name for _, name in window])

    def _read_shard(self, records: list[Any], count: int) -> tuple[int, int]:
        """Reads on in the shard that is open; its number, and that of the first record."""
        shard = self._shard or self._open()
        number, before = shard.num_read, len(records)
        try:
            if self._key_global is not None:
                self._key_global(record_key(self._key, number))
                count = 1
            over = shard.read(records, count)
        except BaseException:
            self.where = ("read", shard.number, number + len(records) - before)
            raise
        if over:
            self._next_shard(shard)
        return shard.number, number

    def _next_shard(self, shard: Shard) -> None:
        self._read_before += shard.num_read
        self._item += 1
        self._shard = self.iterator = self.save = None
        shard.close()

    def _next(self, count: int) -> list[tuple[Any, Name]]:
        """Reads some records, and makes of them what has a place; none at the end of a shard."""
        records: list[Any] = []
        shard, number = self._read_shard(records, count if self._expansion is None else 1)
        key = record_key(self._key, number)
        if self._expansion is None:
            return [(one, (key + i, shard, number + i)) for i, one in enumerate(records)]
        return [item for record in records for item in self._made(record, shard, number)]

    def _made(self, record: Any, shard: int, number: int) -> list[tuple[Any, Name]]:
        """What a record becomes; none where it is left out."""
        assert self._expansion is not None
        try:
            made = self._expansion(record, record_key(self._key, number))
        except Exception as error:
            if not self._skips:
                self.where = ("transform", shard, number)
                raise
            text = f"{type(error).__name__}: {error}"[:MAX_ERROR]
            self._bad.setdefault(self.position, []).append((shard, number, text))
            return []
        except BaseException:
            self.where = ("transform", shard, number)
            raise
        return [(one, (key, shard, number)) for one, key in made]

    def _open(self) -> Shard:
        """Opens the next shard."""
        if self.closed:
            raise SettledError
        if self._item == len(self._shards):
            total = Total(self.position, self._read_before)
            raise LaneEnd(total, self._bad.get(self.position, []))
        number = self._shards[self._item]
        self._key = shard_key(self._epoch, number)
        resumed = self._begin.item == self._item and self._begin.num_read > 0
        begin = self._begin if resumed else Snapshot()
        try:
            if self._key_global is not None:
                self._key_global(self._key)
            shard = Shard(self._stream, number, self._epoch, begin.num_read, begin.state)
            if shard.num_read < begin.num_read:  # it has no state
                self._skip(shard, begin.num_read)
                self.replayed += begin.num_read
        except BaseException:
            self.where = ("read", number, begin.num_read)
            raise
        self._shard = shard
        self._is_stateful = shard.is_stateful
        self._marks_shards = self._window == 1 and self._expansion is None and not shard.is_stateful
        offset = self.position
        self._base = offset - shard.num_read
        if self._as_read and self._key_global is None:
            self.iterator = shard.iterator
            self.save = shard.state if shard.is_stateful else None
        self._names.begin(offset, (record_key(self._key, shard.num_read), number, shard.num_read))
        if self._marks_shards and offset > self._marks[-1].offset:
            self._marks.append(Snapshot(offset, self._item, 0, self._read_before))
        return shard

    def _skip(self, shard: Shard, num_read: int) -> None:
        """Reads a shard again up to where it was."""
        pace = Pace(self._tell_busy)
        while shard.num_read < num_read:
            count = min(num_read - shard.num_read, pace.count)
            if self._key_global is not None:
                self._key_global(record_key(self._key, shard.num_read))
                count = 1
            if shard.read([], count):
                raise StreamError(
                    f"shard {shard.number} must give the same records each time it is opened, got "
                    f"only {shard.num_read} of the {num_read} that were read of it before; seed it",
                    epoch=self._epoch,
                )
            pace.tick()
        self.replay_s += pace.spent_s

    def _here(self) -> Snapshot:
        self._count()
        offset, shard = self.position, self._shard
        if shard is not None:
            try:
                state = shard.state()
            except BaseException:
                self.where = ("read", shard.number, shard.num_read)
                self._fail()
                raise
            return Snapshot(offset, self._item, shard.num_read, self._read_before, state)
        if self._item == self._begin.item:
            return self._begin  # nothing was read yet
        return Snapshot(offset, self._item, 0, self._read_before)
