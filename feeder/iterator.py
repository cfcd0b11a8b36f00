"""The way of a batch: plan → produce → collect → place, pumped by ``next()``.

Guarantees:
    * Batches leave in step order, each once. An iterator that raised goes on exactly where the
      batch is missing: the next ``next()`` builds that very batch again.
    * State speaks of the batches that the user got, not of those built or placed ahead.
    * ``next()`` waits for nothing but the batch that comes next, and for it only together with
      the end of whoever builds it.

Owner:
    The iterator owns its feed; ``close`` gives it up. The producer, with its workers, is the
    loader's.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from feeder import arguments
from feeder.errors import ClosedError, MemoryLimitError
from feeder.feed import Fed
from feeder.monitor import BadRecords, Meter, Stats, Timeline, named
from feeder.plan import state
from feeder.plan.schedule import Cursor
from feeder.produce.bad import BadRecord
from feeder.produce.failures import Failure
from feeder.stages import Stages


class _Ready(NamedTuple):
    """A batch ready for the user, or what to raise in its place."""

    batch: Any
    error: BaseException | None
    fed: Fed
    bad: Sequence[BadRecord] = ()
    fingerprint: dict[str, Any] | None = None
    placed: tuple[int, int] = (0, 0)  # from when to when, by time.perf_counter_ns()


class Owner(Protocol):
    """The loader of an iterator."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...


class BatchIterator(Iterator[Any]):
    """Delivers batches in step order; made by ``iter(loader)``.

    A context manager, whose end closes it.
    """

    def __init__(
        self, stages: Stages, start: Cursor, owner: Owner, epoch: int | None = None
    ) -> None:
        self._stages = stages
        self._feeds = stages.feeds  # or like them, that go on with another batch size
        self._epoch = epoch  # after which it ends; None: at the end of the run
        self._owner = owner  # the loader, and with it the workers, live as long as this
        self._closed = False
        self._pid = os.getpid()
        self._slept_ns = 0  # for workers, in this next()
        self._replicas = None if stages.replicas is None else stages.replicas()
        stages.producer.start()
        self._meter = Meter(stages.producer.workforce)
        self._named = named()
        self._builds_here = stages.producer.workforce().num_workers == 0
        self._bad = BadRecords(stages.max_bad_records)
        self._ready: deque[_Ready] = deque()
        self._feed = self._feeds.open(start, epoch)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        """The next batch: a pytree of `jax.Array`, or of NumPy arrays without a sharding.

        The batch is the caller's: its memory is not used again while any array on it lives,
        and NumPy arrays may be written to.

        Raises:
            StopIteration: All epochs are over.
            ClosedError: The iterator or its loader was closed.
            WorkerDiedError: Workers kept dying.
            BadRecordsError: More records were bad than ``max_bad_records``.
            ProcessMismatchError: Another process of the job is at another step, or has other
                leaves; with ``debug_checks``, other rows.
            StreamError: A stream holds other records than it says.
            MemoryLimitError: The batches kept by the caller fill ``max_memory_bytes``.
            RecordMismatchError: Records of one batch differ in shape, dtype or structure.
            Exception: Whatever user code raised, caused by a `RecordError` that says where.
        """
        self._check_open()
        entered = time.perf_counter_ns()
        if entered >= self._meter.due:
            self._meter.tick(entered)
        self._slept_ns = 0
        try:
            while self._await_next():
                ready = self._ready.popleft()
                if isinstance(ready.error, MemoryLimitError) and self._make_room():
                    continue
                if ready.error is not None:
                    raise ready.error
                if ready.bad:
                    self._bad.check(ready.bad)
                if self._replicas is not None and ready.fingerprint is not None:
                    self._replicas.compare(self._feed.step, ready.fingerprint)
                self._feed.alone = False
                self._go_ahead()
                self._meter.delivered(ready.fed, ready.bad, ready.placed, entered, self._slept_ns)
                self._feed.commit(ready.fed)
                if ready.bad:
                    self._bad.add(ready.bad)
                return ready.batch
        except BaseException as error:
            self._meter.failed(entered)
            self._restart()
            if self._replicas is not None:
                self._replicas.fail(error)
            raise
        self._meter.failed(entered)
        if bad := self._feed.left_out():
            self._bad.check(bad)
            self._bad.add(bad)
        raise StopIteration

    def next(self) -> Any:
        """The next batch, as ``next(batches)``."""
        return self.__next__()

    def __length_hint__(self) -> int:
        """Batches left, where that is known; what `operator.length_hint` asks for."""
        end = self._feeds.num_steps
        if self._epoch is not None:
            after = self._feeds.epoch(self._epoch + 1)
            end = None if after is None else after.step
        return NotImplemented if end is None else max(0, end - self._feed.step)

    def get_state(self) -> dict[str, Any]:
        """The place after the last batch delivered: a small JSON-able dict.

        It is the same on every process, and holds for any number of workers and processes.
        """
        return state.save(self._feed.cursor(), self._feeds.origin, self._stages.identity)

    def set_state(self, saved: object, *, allow_new_batch_size: bool = False) -> None:
        """Goes on with the batch that follows the one after which ``saved`` was taken.

        Args:
            saved: What `get_state` returned, perhaps through JSON. With a stream that several
                processes read, a list of what it returned on each of them: then none of them has
                to read again what another one had read.
            allow_new_batch_size: Whether ``saved`` may be of another batch size: the run then goes
                on at the same record, and counts its steps on.

        Raises:
            StateError: It is damaged, or belongs to another sequence of batches: another
                source length, batch size, seed, shuffle, sampler or last_batch.
            ClosedError: The iterator was closed.
        """
        self._check_open()
        if isinstance(saved, list | tuple):
            saved = state.merged(saved)
        restored = state.restore(saved, self._stages.identity, allow_new_batch_size)
        same_size = restored.batch_size == self._stages.identity.batch_size
        epoch = self._epoch if same_size else None
        feeds, cursor = self._stages.feeds.resumed(restored, epoch)
        self._bad = BadRecords(self._stages.max_bad_records)
        if self._replicas is not None:
            self._replicas.restored()
        given_up, ready = self._feed, self._ready
        # First: an interrupt while the other is closed then finds all in place.
        self._feed, self._feeds, self._ready = feeds.open(cursor, self._epoch), feeds, deque()
        given_up.close()
        ready.clear()

    def stats(self) -> Stats:
        """What was measured since the first ``next()``: totals, percentiles, the bottleneck."""
        return self._meter.stats(
            num_bad_records=self._bad.count,
            bad_records=tuple(self._bad.last),
            placed=self._stages.placer is not None,
        )

    def timeline(self) -> Timeline:
        """What the last 1 000 steps went through, when and where; to be drawn."""
        return self._meter.timeline()

    def log_every(self, seconds: float | None) -> Self:
        """Logs a line at an interval: rate, wait share, bottleneck.

        From within `next()`, at level INFO of the logger ``feeder``; Python shows it after
        ``logging.basicConfig(level=logging.INFO)``.

        Args:
            seconds: Least time between two lines; None: no more lines.

        Returns:
            The iterator.

        Raises:
            TypeError: ``seconds`` is no number.
            ValueError: It is not above 0.
        """
        self._meter.log_every(arguments.optional_seconds("seconds", seconds))
        return self

    def close(self) -> None:
        """Gives up what was built ahead. Batches delivered stay valid. Idempotent."""
        self._closed = True
        self._feed.close()
        self._ready.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the iterator was closed; make a new one with iter(loader)")
        if self._owner.closed:
            raise ClosedError
        if os.getpid() != self._pid:
            raise ClosedError(
                "the iterator was made before this process was forked, and is its parent's; make "
                "a new loader here"
            )

    def _restart(self) -> None:
        """Gives up whatever is under way, and begins anew with the batch to be delivered next."""
        self._ready.clear()
        self._feed.restart()

    def _make_room(self) -> bool:
        """Gives up what was built ahead, for the next batch alone; False where nothing was."""
        if not len(self._feed) and not self._ready:
            return False
        self._restart()
        self._feed.alone = True
        return True

    def _await_next(self) -> bool:
        """Waits until the next batch is ready; False where there is none."""
        while not self._ready:
            if (fed := self._feed.next()) is not None:
                self._place(fed)
            elif self._feed.submit():
                self._wait()
            elif self._feed.error is not None:
                raise self._feed.error
            else:
                return False
        return True

    def _go_ahead(self) -> None:
        """Keeps workers and transfers busy while the caller computes."""
        feed = self._feed
        under_way = len(feed)
        feed.submit(True)
        for _ in range(self._stages.batches_ahead - len(self._ready)):
            fed = feed.next()
            if fed is None:
                self._poll()
                fed = feed.next()
                if fed is None:
                    return
            self._place(fed)
        if len(feed) > under_way:
            self._poll()

    def _wait(self) -> None:
        """Waits for what has been asked for; without workers, builds it."""
        if self._builds_here:
            self._named("feeder: build", self._feed.step, self._feed.wait)
            return
        began = time.perf_counter_ns()
        self._named("feeder: wait", self._feed.step, self._feed.wait)
        self._slept_ns += time.perf_counter_ns() - began

    def _poll(self) -> None:
        """Moves things on; without workers, may build a batch ahead."""
        if self._builds_here:
            self._named("feeder: build", self._feed.step + 1, self._feed.poll)
        else:
            self._feed.poll()

    def _place(self, fed: Fed) -> None:
        outcome = fed.outcome
        if isinstance(outcome, Failure):
            self._ready.append(_Ready(None, outcome.to_raise(fed.chunk), fed))
            return
        began = time.perf_counter_ns()
        fingerprint = None
        try:
            batch = outcome.tree()
            if self._replicas is not None:
                fingerprint = self._replicas.fingerprint(batch, fed.num_rows)
            if self._stages.placer is not None:
                place = self._stages.placer.place
                batch = self._named("feeder: place", fed.chunk.step, place, batch, fed.num_rows)
        except Exception as error:  # raised when its turn comes, not before
            self._ready.append(_Ready(None, error, fed))
            return
        placed = began, time.perf_counter_ns()
        bad = [*fed.bad, *outcome.bad] if fed.bad else outcome.bad
        self._ready.append(_Ready(batch, None, fed, bad, fingerprint, placed))
