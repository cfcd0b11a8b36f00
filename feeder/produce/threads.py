"""``worker_type="thread"``: the same recipe in threads of this process.

For sources that let go of Python's global lock while they read or decode, and for platforms
without memfd or pidfd.

Guarantees:
    * Every batch asked for ends in one outcome, as long as somebody waits for it.
    * Batches that the user keeps are an error at the memory limit; batches built ahead are not:
      they wait for the others to be used.
    * Nobody waits for a thread that hangs longer than ``timeout_s``, nor `close` longer than
      `CLOSE_TIMEOUT_S`. A thread cannot be killed: it ends with what it is at, or with the process.

Owner:
    The `Threads` own the threads and the slab.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

from feeder.errors import ClosedError, MemoryLimitError, WorkerStartError, WorkerTimeoutError
from feeder.plan.chunks import Chunk, StreamChunk
from feeder.produce.builder import Builder
from feeder.produce.deaths import suspects
from feeder.produce.failures import START, Failure
from feeder.produce.given import GivenBuilder, builder_of
from feeder.produce.inline import build_here
from feeder.produce.jobs import Inbox
from feeder.produce.recipe import Recipe
from feeder.produce.session import Locate, Outcome
from feeder.produce.slots import FORKED, Slab
from feeder.produce.streams import Streams
from feeder.produce.supervise import START_TIMEOUT_S, Limits
from feeder.produce.turns import Turns
from feeder.produce.workforce import Workforce

CLOSE_TIMEOUT_S = 2.0
"""Longest wait for threads that are at a batch when all is closed."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A thread.

    Attributes:
        thread: It.
        since: When it began what it is at: seconds of a monotonic clock; None: it is idle.
        job: What it is at; None: it is idle, or starting.
    """

    thread: threading.Thread
    since: float | None
    job: _Job | None = None


@dataclass(slots=True, eq=False)
class _Job:
    chunk: Chunk
    inbox: weakref.ref[Inbox]
    over: bool = False

    def wanted_by(self) -> Inbox | None:
        inbox = self.inbox()
        return None if inbox is None or inbox.closed or self.over else inbox


class Threads:
    """Builds batches in threads, started at the first batch asked for.

    Args:
        recipe: What builds a batch. Its source and transforms must allow for threads.
        num_workers: Threads, at least 1.
        limits: What they may take.
        prefetch_batches: Batches that one session should have under way; None: two per thread.
        slab: The slots, owned from now on.
    """

    def __init__(
        self,
        recipe: Recipe,
        num_workers: int,
        limits: Limits,
        prefetch_batches: int | None,
        slab: Slab,
    ) -> None:
        self.window = prefetch_batches or 2 * num_workers
        self._recipe = recipe
        self._num_workers = num_workers
        self._timeout_s = limits.timeout_s
        self._slab = slab
        self._streams: Streams | None = None
        self._turns = Turns()
        if recipe.lanes is not None:
            self._streams = Streams(recipe, self._turns)
            self._streams.tell_busy = self._still_busy
        self._pid = os.getpid()
        self._changed = threading.Condition()
        # All of the following is touched only by whoever holds `_changed`.
        self._jobs: deque[_Job] = deque()  # not begun, in order
        self._parked: list[_Job] = []  # for memory
        self._under_way: list[_Job] = []  # asked for and not delivered, in order
        self._workers: dict[int, _Worker] = {}  # by worker id
        self._closed = False

    def start(self) -> None:
        """Nothing to do: threads start at once, with the first batch."""

    def workforce(self) -> Workforce:
        """The threads."""
        return Workforce(
            "thread",
            self._num_workers,
            self.window,
            self._slab.slot_bytes,
            self._slab.held_bytes,
            self._slab.max_bytes,
        )

    def session(self, locate: Locate | None = None) -> ThreadSession:
        """Opens a session."""
        return ThreadSession(self, locate)

    def submit(self, inbox: Inbox, chunk: Chunk) -> None:
        """Takes a job for the owner of ``inbox``."""
        self.check_open()
        job = _Job(chunk, weakref.ref(inbox))
        with self._changed:
            self._start_missing()
            self._under_way.append(job)
            self._jobs.append(job)
            self._changed.notify()

    def wait(self, inbox: Inbox) -> None:
        """Waits until there is something in the inbox, whose owner has asked for something.

        Raises:
            ClosedError: All, or the inbox, was closed.
        """
        self.check_open()
        with self._changed:
            inbox.awaited = True
            try:
                # What the user has let go of meanwhile makes room for those that wait.
                self._jobs = deque([*self._parked, *self._jobs])
                self._parked.clear()
                self._changed.notify_all()
                while not inbox.arrived:
                    if self._closed:
                        raise ClosedError
                    if inbox.closed:
                        raise ClosedError("the iterator was closed while it waited")
                    self._changed.wait(self._patience_s())
                    self._replace_late()
            finally:
                inbox.awaited = False

    def check_open(self) -> None:
        """Raises ClosedError where all was closed, or belongs to the process that forked this."""
        if os.getpid() != self._pid:
            raise ClosedError(FORKED)
        if self._closed:
            raise ClosedError

    def abandon(self, inbox: Inbox) -> None:
        """Gives up the jobs of an inbox; those that no thread has begun are never done."""
        inbox.closed = True
        inbox.arrived = []
        if os.getpid() == self._pid:
            with self._changed:
                for jobs in (self._jobs, self._parked, self._under_way):
                    kept = [job for job in jobs if job.wanted_by()]
                    jobs.clear()
                    jobs.extend(kept)
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads, and gives back all memory but that of batches still alive."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closed = True
            threads = [worker.thread for worker in self._workers.values()]
            self._changed.notify_all()
        self._turns.close()
        until = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        if self._streams is not None:
            self._streams.close()
        self._slab.close()

    def _start_missing(self) -> None:
        for worker_id in range(self._num_workers):
            if worker_id not in self._workers:
                thread = threading.Thread(
                    target=self._work,
                    args=(worker_id,),
                    name=f"feeder-worker-{worker_id}",
                    daemon=True,  # one that hangs in user code must not keep the program
                )
                self._workers[worker_id] = _Worker(thread, time.monotonic())
                try:
                    thread.start()
                except RuntimeError as error:
                    del self._workers[worker_id]
                    raise WorkerStartError(
                        f"worker threads could not be started: {error}; lower `num_workers`"
                    ) from error

    def _work(self, worker_id: int) -> None:
        """The life of a thread."""
        try:
            self._recipe.start(worker_id, self._num_workers)
            builder = builder_of(self._recipe, None, streams=self._streams)
        except BaseException as error:
            self._give_up(worker_id, Failure.of(error, START, None))
            return
        while (job := self._next(worker_id)) is not None:
            outcome = self._build(builder, job)
            with self._changed:
                if outcome is not None:
                    self._deliver(job, outcome)
                elif self._is_awaited(job):
                    self._jobs.appendleft(job)  # meanwhile it has become the one waited for
                else:
                    self._parked.append(job)
                if (worker := self._me(worker_id)) is not None:
                    worker.since = worker.job = None
                self._changed.notify_all()

    def _next(self, worker_id: int) -> _Job | None:
        """The next job; None where this thread is to end."""
        with self._changed:
            while True:
                worker = self._me(worker_id)
                if self._closed or worker is None:
                    return None
                worker.since = None
                while self._jobs:
                    job = self._jobs.popleft()
                    if job.wanted_by():
                        worker.since, worker.job = time.monotonic(), job
                        if isinstance(job.chunk, StreamChunk):
                            self._turns.begin(job.chunk)
                            worker.since = None  # until its turn comes
                        if self._timeout_s is not None:
                            self._changed.notify_all()  # whoever waits now knows its deadline
                        return job
                    self._forget(job)
                self._changed.wait()

    def _still_busy(self) -> None:
        """The calling thread's turn has come, or it reads shards again, and records come."""
        with self._changed:
            for worker in self._workers.values():
                if worker.thread is threading.current_thread():
                    worker.since = time.monotonic()
            if self._timeout_s is not None:
                self._changed.notify_all()

    def _me(self, worker_id: int) -> _Worker | None:
        """The calling thread as a worker; None where another has taken its place."""
        worker = self._workers.get(worker_id)
        return worker if worker and worker.thread is threading.current_thread() else None

    def _build(self, builder: Builder | GivenBuilder, job: _Job) -> Outcome | None:
        """Builds a batch; None where it must wait for memory."""
        with self._changed:
            awaited = self._is_awaited(job)  # others leave a slot to it, and one to the user
        try:
            inbox = job.wanted_by()
            locate = None if inbox is None else inbox.locate
            outcome = build_here(builder, job.chunk, self._slab, 0 if awaited else 2, locate)
        except BaseException as error:  # of a kind that user code should not raise
            return Failure.of(error, "build", None)
        finally:
            if isinstance(job.chunk, StreamChunk):
                self._turns.end(job.chunk)
        if isinstance(outcome, Failure) and isinstance(outcome.exception, MemoryLimitError):
            with self._changed:
                if job.wanted_by() and not awaited:
                    return None
        return outcome

    def _is_awaited(self, job: _Job) -> bool:
        """Whether the user waits for it: nothing else of the session will make room."""
        inbox = job.wanted_by()
        return inbox is not None and inbox.awaited and not inbox.arrived and self._is_first(job)

    def _is_first(self, job: _Job) -> bool:
        """Whether it is the oldest job of its session."""
        return next((each for each in self._under_way if each.inbox is job.inbox), None) is job

    def _deliver(self, job: _Job, outcome: Outcome) -> None:
        if (inbox := job.wanted_by()) is not None:
            inbox.arrived.append((job.chunk.step, outcome))
        job.over = True
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        if job in self._under_way:
            self._under_way.remove(job)

    def _give_up(self, worker_id: int, failure: Failure) -> None:
        """A thread could not start: what nobody has begun fails."""
        with self._changed:
            if self._me(worker_id) is None:
                return  # too late: another has its place
            del self._workers[worker_id]
            self._fail_all(failure)
            self._changed.notify_all()

    def _fail_all(self, failure: Failure) -> None:
        """Fails what nobody has begun."""
        while self._jobs:
            self._deliver(self._jobs.popleft(), failure)

    def _deadlines(self) -> list[tuple[float, int]]:
        """When each thread that is at something will be late, and its worker id."""
        limit = self._timeout_s
        if limit is None:
            return []
        return [
            (worker.since + (limit if worker.job else max(limit, START_TIMEOUT_S)), worker_id)
            for worker_id, worker in self._workers.items()
            if worker.since is not None
        ]

    def _patience_s(self) -> float | None:
        deadlines = [deadline for deadline, _ in self._deadlines()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else self._timeout_s

    def _replace_late(self) -> None:
        """Gives the places of threads that hang to others, and fails what they were at.

        Whoever wants it, or nobody: a thread that hangs is no worker.
        """
        now = time.monotonic()
        for deadline, worker_id in self._deadlines():
            if now < deadline:
                continue
            worker = self._workers.pop(worker_id)
            failure = Failure.of(self._late(worker.job), "build", None)
            if worker.job is None:
                self._fail_all(failure)
            else:
                self._deliver(worker.job, failure)
                if isinstance(worker.job.chunk, StreamChunk):
                    assert self._streams is not None
                    self._streams.forsake(worker.job.chunk)
            self._start_missing()

    def _late(self, job: _Job | None) -> WorkerTimeoutError:
        limit = self._timeout_s or 0.0
        if job is None:
            limit = max(limit, START_TIMEOUT_S)
            return WorkerTimeoutError(
                f"a worker thread took longer than {limit:g} s for `worker_init`, and is left to "
                "itself; raise `timeout_s` if it needs more time",
                timeout_s=limit,
                step=None,
            )
        indices, at_fault = suspects(job.chunk)
        return WorkerTimeoutError(
            f"step {job.chunk.step} took longer than `timeout_s` = {limit:g} in a worker thread, "
            f"which is left to itself; {at_fault}; raise `timeout_s` if it needs more time",
            timeout_s=limit,
            step=job.chunk.step,
            indices=indices,
        )


class ThreadSession:
    """One iterator's jobs."""

    def __init__(self, threads: Threads, locate: Locate | None) -> None:
        self._threads = threads
        self._inbox = Inbox(locate=locate)

    def submit(self, chunk: Chunk) -> None:
        """Asks for a batch."""
        self._threads.submit(self._inbox, chunk)

    def poll(self) -> None:
        """Nothing to do: threads need no help.

        Raises:
            ClosedError: All was closed.
        """
        self._threads.check_open()

    def wait(self) -> None:
        """Waits until there is something to take."""
        self._threads.wait(self._inbox)

    def take(self) -> list[tuple[int, Outcome]]:
        """The (step, outcome) pairs that came since the last call."""
        arrived, self._inbox.arrived = self._inbox.arrived, []
        return arrived

    def renew(self) -> None:
        """Gives up all that was asked for and not taken, and goes on."""
        given_up = self._inbox
        self._inbox = Inbox(locate=given_up.locate)
        self._threads.abandon(given_up)

    def close(self) -> None:
        """Gives up all that was asked for and not taken."""
        self._threads.abandon(self._inbox)
