"""Feeds of a callable: it is asked for each batch, in this process and in step order.

Guarantees:
    * The callable is called once for each step, in order; what it gave is kept until its batch is
      delivered, so that functions are run again where a worker dies, and a batch that failed is
      tried again with the same records.
    * With ``num_workers=0`` and without a sharding it is called when its batch is asked for, not
      before; else so many batches ahead of the one delivered, whenever that is built: the calls
      and the deliveries take turns in the same way in every run.

Owner:
    A feed owns its session at the producer.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feeder import stateful
from feeder.collect.collector import Collector
from feeder.errors import StateError, StreamError
from feeder.feed.protocol import Fed
from feeder.plan.batches import LocalRows
from feeder.plan.chunks import PlannedChunk
from feeder.plan.schedule import MAX_POSITIONS, START, Cursor
from feeder.plan.state import Saved
from feeder.produce import given
from feeder.produce.built import Ended, Passed
from feeder.produce.failures import Failure
from feeder.produce.session import Outcome, Producer
from feeder.sources.callable import FromCallable


@dataclass(frozen=True, slots=True)
class CalledFeeds:
    """Makes feeds of a callable.

    Attributes:
        source: The callable.
        batch_size: Rows of a global batch.
        local_rows: Maps the number of rows of a global batch to those of this process.
        producer: Builds batches.
        keep: Keeps what it gives as it is now, until its batch is built.
        ahead: Whether it is called before its batch is asked for.
    """

    source: FromCallable
    batch_size: int
    local_rows: LocalRows
    producer: Producer
    keep: Callable[[Any], Any]
    ahead: bool

    num_steps = None
    steps_per_epoch = None
    origin = START

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins: there is but one."""
        return START if epoch == 0 else None

    def open(self, start: Cursor, _last_epoch: int | None = None, /) -> CalledFeed:
        """A feed from a place on."""
        return CalledFeed(self, start)

    def resumed(self, saved: Saved, _epoch: int | None = None, /) -> tuple[CalledFeeds, Cursor]:
        """What makes feeds, and the place, that go on where a state was saved."""
        draws = saved.cursor.draws
        if draws is not None and draws.keys() != {"state"}:
            raise StateError(
                "`state['draws']` must hold the state of the callable, or be None, got the fields "
                f"{sorted(map(str, draws))[:8]}: it is damaged"
            )
        if draws is not None and stateful.loader(self.source.owner) is None:
            raise StateError(
                "`source` must have load_state_dict() or set_state(), since the state has one of "
                f"it, got {self.source!r}"
            )
        return self, saved.cursor

    def batch(self, step: int) -> Any:
        """Refused: it would call the callable, out of order.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"batch({step}) of a loader needs records that can be read again, and a FromCallable "
            "gives each batch once; take it from iter(loader)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    chunk: PlannedChunk
    after: Cursor
    called: tuple[int, int]


class CalledFeed:
    """The batches of one run.

    Attributes:
        alone: Whether memory is so short that nothing is asked for ahead.
        error: What the callable raised, once the batches before it are gone.

    Args:
        feeds: What it is made by.
        start: Where to begin.
    """

    def __init__(self, feeds: CalledFeeds, start: Cursor) -> None:
        self.alone = False
        self.error: BaseException | None = None
        self._feeds = feeds
        self._cursor = start
        self._session = feeds.producer.session()
        self._given: deque[_Given] = deque()  # not delivered, in step order
        self._num_asked = 0  # of these, how many have been given to workers
        self._num_out = 0  # and how many have come out
        self._over = False
        self._collector: Collector[Outcome] = Collector()
        load = stateful.loader(feeds.source.owner)
        if start.draws is None:
            self._cursor = replace(start, draws=self._state())
        elif load is not None:
            load(copy.deepcopy(start.draws["state"]))

    def __len__(self) -> int:
        """Batches asked for and not given out."""
        return len(self._collector)

    @property
    def step(self) -> int:
        """Step of the batch that is to be delivered next."""
        return self._cursor.step

    def cursor(self) -> Cursor:
        """Where that batch begins."""
        return copy.deepcopy(self._cursor)

    def submit(self, ahead: bool = False, /) -> bool:
        """Asks for as many as are given ahead; False: nothing is under way."""
        window = 1 if self.alone else self._feeds.producer.window
        if self._feeds.ahead or not ahead:
            while self._num_asked < window + ahead and self._ask():
                pass
        return bool(self._collector)

    def next(self) -> Fed | None:
        """The next batch; None where it has not come."""
        if not self._collector.ready:
            for step, outcome in self._session.take():
                self._collector.arrive(step, outcome)
            if not self._collector.ready:
                return None
        _, outcome = self._collector.pop()
        given = self._given[self._num_out]
        self._num_out += 1
        assert not isinstance(outcome, Ended | Passed)  # there is no stream
        rows = self._feeds.batch_size
        return Fed(given.chunk, rows, outcome, given.after, called=given.called)

    def poll(self) -> None:
        """Moves things on, without waiting."""
        self._session.poll()

    def wait(self) -> None:
        """Waits until something has come."""
        self._session.wait()

    def commit(self, fed: Fed) -> None:
        """A batch is delivered."""
        self._cursor = fed.after
        self._given.popleft()
        self._num_asked -= 1
        self._num_out -= 1

    def restart(self) -> None:
        """Gives up whatever is under way; what was given for it is built again."""
        self.alone = False
        self.error = None
        self._num_asked = self._num_out = 0
        self._collector = Collector()
        self._session.renew()

    def left_out(self) -> tuple[()]:
        """Nothing: every record has its place in a batch."""
        return ()

    def close(self) -> None:
        """Gives up whatever is under way."""
        self._session.close()

    def _ask(self) -> bool:
        """Asks for one more batch; False where there is none."""
        if self._num_asked == len(self._given) and not self._call():
            return False
        chunk = self._given[self._num_asked].chunk
        self._num_asked += 1
        self._collector.expect(chunk.step)
        self._session.submit(chunk)
        return True

    def _call(self) -> bool:
        """Calls the callable for the next batch; False where the run is over."""
        if self._over or self.error is not None:
            return False
        feeds, began = self._feeds, time.perf_counter_ns()
        before = self._given[-1].after if self._given else self._cursor
        rows = feeds.local_rows(feeds.batch_size)
        chunk = PlannedChunk(before.step, before.position + rows, np.arange(len(rows)), None)
        try:
            found = feeds.source.function(len(rows))
            if found is not None:
                found = given.checked(found, len(rows), chunk.step)
                chunk = replace(chunk, given=feeds.keep(found))
            draws = self._state()
        except StopIteration:
            found = None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # raised once the batches before it are gone
            self.error = Failure.of(error, "read", None).to_raise(chunk)
            return False
        if found is None and chunk.step == 0:
            self.error = StreamError(
                f"`source` must give at least one batch, got None at the first call of "
                f"{feeds.source!r}; does it end without a return?",
                step=0,
            )
        if found is None:
            self._over = True
            return False
        position = min(before.position + feeds.batch_size, MAX_POSITIONS)
        called = (began, time.perf_counter_ns())
        self._given.append(_Given(chunk, Cursor(chunk.step + 1, position, draws), called))
        return True

    def _state(self) -> dict[str, Any] | None:
        save = stateful.saver(self._feeds.source.owner)
        return None if save is None else {"state": copy.deepcopy(save())}
