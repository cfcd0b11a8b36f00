"""A lane of a stream as a worker reads it: shard after shard, each record at its offset.

Guarantees:
    * `get` gives the same record for an offset whenever it is asked, from whatever snapshot the
      lane was opened, until that offset is settled.
    * Records are read once, in order, as far as somebody asks; those that are settled are let go.
    * Threads may share a lane: one of them reads at a time.

Owner:
    The lane owns the shard that is open.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from feeder.errors import StreamError
from feeder.plan.stream import Total
from feeder.plan.windows import Lanes
from feeder.produce.shard import Shard
from feeder.produce.stream_transforms import Expansion, record_key, shard_key
from feeder.sources.stream import Stream

Item: TypeAlias = tuple[Any, int, int, int]
"""A record, its key, its shard, and its number in the shard."""

_BAD_TEXT = 300
"""Characters of an error that are kept of a bad record."""


class Snapshot(NamedTuple):
    """Where a lane can be opened.

    Attributes:
        offset: Records that it has given before.
        item: Which of its shards it reads, from 0.
        num_read: Records read of that shard.
        read_before: Records read of the shards before it.
        state: What the shard's iterator said of itself; None: it is to be read again.
    """

    offset: int = 0
    item: int = 0
    num_read: int = 0
    read_before: int = 0
    state: Any = None


class LaneEnd(Exception):  # noqa: N818 - no error
    """The lane has no record at this offset, nor after it."""

    def __init__(self, total: Total, bad: list[tuple[int, int, str]]) -> None:
        super().__init__(total)
        self.total = total
        self.bad = bad


class _Over(Exception):  # noqa: N818 - no error
    """There is no shard left."""


class SettledError(Exception):
    """The record at this offset was settled, and is gone."""


class Lane:
    """Reads the shards of a lane.

    Attributes:
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
        key_global: Callable[[int], None] | None = None,
    ) -> None:
        self.where: tuple[str, int, int] | None = None
        self.replayed = 0
        self.replay_s = 0.0
        self._stream = stream
        self._lanes = lanes
        self._epoch = epoch
        self._number = number
        self._shards = lanes.shards(epoch, number).tolist()
        self._window = lanes.window
        self._expansion = expansion
        self._skips = skips
        self._key_global = key_global
        # Without a state, where its shard began says as much as where it is, and costs nothing.
        self._marks_shards = False
        self._begin = snapshot
        self._item = snapshot.item
        self._read_before = snapshot.read_before
        self._settled = settled
        self._first = snapshot.offset  # of the oldest item kept
        self._items: list[Item] = []
        self._marks: list[Snapshot] = [snapshot]
        self._bad: dict[int, list[tuple[int, int, str]]] = {}
        self._shard: Shard | None = None
        self._key = 0
        self._due: list[int] = []
        self._lock = threading.Lock()

    def get(self, offset: int) -> Item:
        """The record at an offset.

        Raises:
            LaneEnd: There is none.
            SettledError: It is gone.
            Exception: Whatever user code raises.
        """
        with self._lock:
            at = offset - self._first
            while at >= len(self._items):
                self._read()
                at = offset - self._first
            if at < 0:
                raise SettledError
            return self._items[at]

    def bad(self, offset: int) -> list[tuple[int, int, str]]:
        """Shard, number and error of the records left out just before an offset."""
        return self._bad.get(offset, []) if self._bad else []

    def mark(self, offset: int) -> None:
        """A snapshot at an offset will be asked for once the lane has been read beyond it."""
        with self._lock:
            bisect.insort(self._due, offset)

    def snapshot(self, offset: int) -> Snapshot:
        """The last place at or before an offset where the lane can be opened."""
        with self._lock:
            position = self._first + len(self._items)
            if offset == position > self._marks[-1].offset and not self._marks_shards:
                self._marks.append(self._here())
            found: Snapshot = self._marks[0]
            for mark in self._marks:
                # Whether the next shard is open, once one is over, depends on who has read on.
                if mark.offset < offset or (mark.offset == offset and not self._marks_shards):
                    found = mark
            return found

    def settle(self, offset: int) -> None:
        """Nothing before an offset will be asked for again."""
        with self._lock:
            if offset > self._settled:
                self._settled = offset
                gone = min(offset - self._first, len(self._items))
                if gone > 0:
                    del self._items[:gone]
                    self._first += gone
                while len(self._marks) > 1 and self._marks[1].offset <= offset:
                    del self._marks[0]
                for at in [at for at in self._bad if at < offset]:
                    del self._bad[at]

    def close(self) -> None:
        """Closes the shard that is open."""
        if self._shard is not None:
            shard, self._shard = self._shard, None
            shard.close()

    def _read(self) -> None:
        """Reads on, by a record or by a window of them."""
        offset = self._first + len(self._items)
        if self._window > 1 or (self._due and self._due[0] <= offset):
            while self._due and self._due[0] <= offset:
                self._due.pop(0)
            if offset > self._marks[-1].offset and not self._marks_shards:
                self._marks.append(self._here())
        window: list[Item] = []
        try:
            if self._window == 1:
                self._keep(self._next())
                return
            while len(window) < self._window:
                window += self._next()
        except _Over:
            if not window:
                total = Total(offset, self._read_before)
                raise LaneEnd(total, self._bad.get(offset, [])) from None
        order = self._lanes.order(self._epoch, self._number, offset, len(window))
        self._keep([window[number] for number in order])

    def _keep(self, items: list[Item]) -> None:
        for item in items:
            if not self._items and self._first < self._settled:
                self._first += 1  # read again on the way to where it was
                self.replayed += not self.is_stateful
            else:
                self._items.append(item)

    def _next(self) -> list[Item]:
        """What the next record that is read becomes."""
        shard = self._shard or self._open()
        number = shard.num_read
        key = record_key(self._key, number)
        while True:
            try:
                if self._key_global is not None:
                    self._key_global(key)
                record = shard.read()
                break
            except StopIteration:
                self._read_before += shard.num_read
                self._item += 1
                self._shard = None
                shard.close()
                shard = self._open()
                number, key = 0, self._key
            except BaseException:
                self.where = ("read", shard.number, number)
                raise
        if self._expansion is None:
            return [(record, key, shard.number, number)]
        try:
            made = self._expansion(record, key)
        except Exception as error:
            if not self._skips:
                self.where = ("transform", shard.number, number)
                raise
            text = f"{type(error).__name__}: {error}"[:_BAD_TEXT]
            offset = self._first + len(self._items)
            self._bad.setdefault(offset, []).append((shard.number, number, text))
            return []
        except BaseException:
            self.where = ("transform", shard.number, number)
            raise
        return [(one, key, shard.number, number) for one, key in made]

    def _open(self) -> Shard:
        """Opens the next shard."""
        if self._item == len(self._shards):
            raise _Over
        number = self._shards[self._item]
        self._key = shard_key(self._epoch, number)
        resumed = self._begin.item == self._item and self._begin.num_read > 0
        begin = self._begin if resumed else Snapshot()
        began = time.perf_counter()
        try:
            if self._key_global is not None:
                self._key_global(self._key)
            shard = Shard(self._stream, number, self._epoch, begin.num_read, begin.state)
            while shard.num_read < begin.num_read:  # it has no state
                if self._key_global is not None:
                    self._key_global(record_key(self._key, shard.num_read))
                shard.read()
                self.replayed += 1
        except StopIteration:
            self.where = ("read", number, begin.num_read)
            raise StreamError(
                f"shard {number} must give the same records each time it is opened, got only "
                f"{shard.num_read} of the {begin.num_read} that were read of it before; seed it",
                epoch=self._epoch,
            ) from None
        except BaseException:
            self.where = ("read", number, begin.num_read)
            raise
        if resumed and begin.state is None:
            self.replay_s += time.perf_counter() - began
        self._shard = shard
        self._marks_shards = self._window == 1 and self._expansion is None and not shard.is_stateful
        offset = self._first + len(self._items)
        if self._marks_shards and offset > self._marks[-1].offset:
            self._marks.append(Snapshot(offset, self._item, 0, self._read_before))
        return shard

    @property
    def is_stateful(self) -> bool:
        """Whether the iterator of its shard has a state."""
        return self._shard is not None and self._shard.is_stateful

    def _here(self) -> Snapshot:
        offset = self._first + len(self._items)
        shard = self._shard
        if shard is not None:
            return Snapshot(offset, self._item, shard.num_read, self._read_before, shard.state())
        if self._item == self._begin.item:
            return self._begin  # nothing was read yet
        return Snapshot(offset, self._item, 0, self._read_before)
