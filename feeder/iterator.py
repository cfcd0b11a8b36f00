"""The way of a batch: plan → produce → collect → place, pumped by ``next()``.

Guarantees:
    * Batches leave in step order, each once. An iterator that raised goes on exactly where the
      batch is missing: the next ``next()`` builds that very batch again.
    * State speaks of the batches that the user got, not of those built or placed ahead.
    * ``next()`` waits for nothing but the batch that comes next, and for it only together with
      the end of whoever builds it.

Owner:
    The iterator owns its session at the producer; ``close`` gives it up. The producer, with its
    workers, is the loader's.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from feeder.collect.collector import Collector
from feeder.errors import ClosedError, MemoryLimitError, StateError
from feeder.monitor import BadRecords, Stats
from feeder.place.replicas import ReplicaCheck
from feeder.plan import state
from feeder.plan.batches import BatchPlan, Planner
from feeder.plan.schedule import Cursor
from feeder.produce.bad import BadRecord
from feeder.produce.failures import Failure
from feeder.produce.session import Outcome, Producer

if TYPE_CHECKING:
    from feeder.place.placer import Placer


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one loader, wired.

    Attributes:
        planner: Plans the local batches.
        identity: What a state must match.
        producer: Builds them.
        placer: Places them; None: they stay on the host.
        batches_ahead: Batches placed ahead of the one delivered.
        max_bad_records: Records that may be left out or replaced in a run; None: any number.
        replicas: Makes what compares an iterator's batches with those of other processes; None:
            nothing does.
    """

    planner: Planner
    identity: state.Identity
    producer: Producer
    placer: Placer | None
    batches_ahead: int
    max_bad_records: int | None = None
    replicas: Callable[[], ReplicaCheck] | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch ready for the user, or what to raise in its place."""

    batch: Any
    error: BaseException | None
    after: Cursor
    bad: Sequence[BadRecord] = ()
    fingerprint: dict[str, Any] | None = None


class BatchIterator(Iterator[Any]):
    """Delivers batches in step order; made by ``iter(loader)``.

    A context manager, whose end closes it.
    """

    def __init__(
        self, stages: Stages, start: Cursor, owner: object, epoch: int | None = None
    ) -> None:
        self._stages = stages
        self._planner = stages.planner  # or one like it, that goes on with another batch size
        self._epoch = epoch  # after which it ends; None: at the end of the run
        self._owner = owner  # the loader, and with it the workers, live as long as this
        self._cursor = start
        self._closed = False
        self._pid = os.getpid()
        self._began_ns: int | None = None
        self._wait_ns = self._place_ns = self._delivered = 0
        self._stage_ns = [0, 0, 0, 0]
        self._replicas = None if stages.replicas is None else stages.replicas()
        stages.producer.start()
        self._bad = BadRecords(stages.max_bad_records)
        self._start()

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
            MemoryLimitError: The batches kept by the caller fill ``max_memory_bytes``.
            RecordMismatchError: Records of one batch differ in shape, dtype or structure.
            Exception: Whatever user code raised, caused by a `RecordError` that says where.
        """
        self._check_open()
        began = time.perf_counter_ns()
        if self._began_ns is None:
            self._began_ns = began
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
                    self._replicas.compare(self._cursor.step, ready.fingerprint)
                self._alone = False
                self._go_ahead()
                self._cursor = ready.after
                if ready.bad:
                    self._bad.add(ready.bad)
                self._delivered += 1
                return ready.batch
        except BaseException as error:
            self._restart()
            if self._replicas is not None:
                self._replicas.fail(error)
            raise
        finally:
            self._wait_ns += time.perf_counter_ns() - began
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        """The place after the last batch delivered: a small JSON-able dict.

        It is the same on every process, and holds for any number of workers and processes.
        """
        return state.save(self._cursor, self._planner.origin, self._stages.identity)

    def set_state(self, saved: object, *, allow_new_batch_size: bool = False) -> None:
        """Goes on with the batch that follows the one after which ``saved`` was taken.

        Args:
            saved: What `get_state` returned, perhaps through JSON.
            allow_new_batch_size: Whether ``saved`` may be of another batch size: the run then goes
                on at the same record, and counts its steps on.

        Raises:
            StateError: It is damaged, or belongs to another sequence of batches: another
                source length, batch size, seed, shuffle, sampler or last_batch.
            ClosedError: The iterator was closed.
        """
        self._check_open()
        restored = state.restore(saved, self._stages.identity, allow_new_batch_size)
        planner, cursor = self._stages.planner.resumed(restored)
        if self._epoch is not None and restored.batch_size == self._stages.identity.batch_size:
            self._check_epoch(cursor, self._epoch)
        self._planner, self._cursor = planner, cursor
        self._bad = BadRecords(self._stages.max_bad_records)
        if self._replicas is not None:
            self._replicas.restored()
        self._restart()

    def _check_epoch(self, cursor: Cursor, epoch: int) -> None:
        """Refuses a state of another epoch than the one that this iterator is of."""
        first, stop = (self._stages.planner.epoch(number) for number in (epoch, epoch + 1))
        late = stop is not None and cursor.step > stop.step
        if late or (first is not None and cursor.step < first.step):
            raise StateError(
                f"`state` must be of epoch {epoch}, whose iterator this is, got one of step "
                f"{cursor.step}; open the iterator of its epoch, or iter(loader)"
            )

    def stats(self) -> Stats:
        """What was measured since the first ``next()``."""
        read, transform, collate, batch_transform = (spent / 1e9 for spent in self._stage_ns)
        elapsed = 0 if self._began_ns is None else time.perf_counter_ns() - self._began_ns
        return Stats(
            batches=self._delivered,
            elapsed_s=elapsed / 1e9,
            wait_s=self._wait_ns / 1e9,
            place_s=self._place_ns / 1e9,
            read_s=read,
            transform_s=transform,
            collate_s=collate,
            batch_transform_s=batch_transform,
            restarts=self._stages.producer.num_restarts,
            worker_pids=self._stages.producer.worker_pids,
            num_bad_records=self._bad.count,
            bad_records=tuple(self._bad.last),
        )

    def close(self) -> None:
        """Gives up what was built ahead. Batches delivered stay valid. Idempotent."""
        self._closed = True
        self._session.close()
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
        if os.getpid() != self._pid:
            raise ClosedError(
                "the iterator was made before this process was forked, and is its parent's; make "
                "a new loader here"
            )

    def _start(self) -> None:
        """Begins anew at the cursor, with nothing under way."""
        self._session = self._stages.producer.session()
        self._plans = self._planner.batches(self._cursor, self._epoch)
        self._plan_error: Exception | None = None
        self._asked: dict[int, BatchPlan] = {}
        self._collector: Collector[Outcome] = Collector()
        self._ready: deque[_Ready] = deque()
        self._alone = False  # whether memory is so short that nothing is built ahead

    def _restart(self) -> None:
        """Gives up whatever is under way, and begins anew at the cursor."""
        given_up = self._session
        self._start()  # first: an interrupt while the other is closed then finds all in place
        given_up.close()

    def _make_room(self) -> bool:
        """Gives up what was built ahead, for the next batch alone; False where nothing was."""
        if not self._collector and not self._ready:
            return False
        self._restart()
        self._alone = True
        return True

    def _await_next(self) -> bool:
        """Waits until the next batch is ready; False where there is none."""
        while not self._ready:
            if self._collector.ready:
                self._place_next()
            elif self._submit():
                self._session.wait()
                self._take()
            elif self._plan_error is not None:
                raise self._plan_error
            else:
                return False
        return True

    def _submit(self) -> bool:
        """Fills the window, once half of it is free; False where nothing is under way.

        Several batches at a time: waking a worker costs more than anything else done here.
        """
        window = 1 if self._alone else self._stages.producer.window
        if 2 * len(self._collector) <= window:
            for plan in self._plan(window - len(self._collector)):
                step = plan.chunk.step
                self._asked[step] = plan
                self._collector.expect(step)
                self._session.submit(plan.chunk)
        return bool(self._collector)

    def _plan(self, count: int) -> Iterator[BatchPlan]:
        """The next plans; what a sampler raises is kept until the batches before it are gone."""
        try:
            yield from itertools.islice(self._plans, count)
        except Exception as error:
            self._plan_error = error

    def _take(self) -> None:
        for step, outcome in self._session.take():
            self._collector.arrive(step, outcome)

    def _go_ahead(self) -> None:
        """Keeps workers and transfers busy while the caller computes."""
        under_way = len(self._collector)
        self._submit()
        for _ in range(self._stages.batches_ahead - len(self._ready)):
            if not self._collector.ready:
                self._session.poll()
                self._take()
                if not self._collector.ready:
                    return
            self._place_next()
        if len(self._collector) > under_way:
            self._session.poll()

    def _place_next(self) -> None:
        step, outcome = self._collector.pop()
        plan = self._asked.pop(step)
        if isinstance(outcome, Failure):
            self._ready.append(_Ready(None, outcome.to_raise(plan.chunk), plan.after))
            return
        for stage, spent in enumerate(outcome.times):
            self._stage_ns[stage] += spent
        began = time.perf_counter_ns()
        fingerprint = None
        try:
            batch = outcome.tree()
            if self._replicas is not None:
                fingerprint = self._replicas.fingerprint(batch, plan.num_rows)
            if self._stages.placer is not None:
                batch = self._stages.placer.place(batch, plan.num_rows)
        except Exception as error:  # raised when its turn comes, not before
            self._ready.append(_Ready(None, error, plan.after))
            return
        self._place_ns += time.perf_counter_ns() - began
        self._ready.append(_Ready(batch, None, plan.after, outcome.bad, fingerprint))
