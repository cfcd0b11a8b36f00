"""Worker processes: who builds which batch, and what happens when one of them dies.

Guarantees:
    * Every job ends in exactly one outcome for its session, as long as the session lives: a
      batch or a `Failure`. The jobs of a dead worker are done again by others.
    * A slot is written by one process at a time: a dead worker's slot is used again only once
      the process is gone for certain.
    * An interrupted call (Ctrl-C) leaves nothing half-heard: all processes are replaced, and
      the jobs that were not delivered start again.

Owner:
    The pool owns the crew, the slab and the recipe's memfd. `close` ends all.

There is no thread: things move on when an iterator calls `poll` or `wait`. Workers have the
whole window of jobs before them, so they are busy while the user computes.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import deque

from feeder.errors import ClosedError, FeederError, MemoryLimitError
from feeder.plan.batches import Chunk
from feeder.produce import deaths, payload
from feeder.produce.crew import Crew, Death, Heard
from feeder.produce.deaths import Deaths
from feeder.produce.failures import START, Failure
from feeder.produce.handle import Inbox, Job, WorkerHandle
from feeder.produce.messages import Kind, Message, chunk_bytes, encode, encode_task
from feeder.produce.recipe import Built, Recipe, StageTimes
from feeder.produce.session import LocalBatch, Outcome
from feeder.produce.slots import Slab

_log = logging.getLogger("feeder")

SMALL_BYTES = 8 * 2**20
"""Slots that may be used to keep small batches, which cost less than waking a worker, ahead."""


class Pool:
    """Builds batches in worker processes, started at the first batch asked for.

    Args:
        recipe: What builds a batch.
        num_workers: Worker processes, at least 1.
        max_bytes: Most bytes of slots at one time.
        prefetch_batches: Batches that one session should have under way; None: two for each
            worker, and up to 16 while their slots take less than `SMALL_BYTES`.

    Attributes:
        num_restarts: Workers that died and were replaced.

    Raises:
        TypeError: The recipe cannot be pickled.
    """

    def __init__(
        self, recipe: Recipe, num_workers: int, max_bytes: int, prefetch_batches: int | None
    ) -> None:
        self.num_restarts = 0
        self._prefetch_batches = prefetch_batches
        self._recipe_fd = payload.pack(recipe)
        self._slab = Slab(max_bytes)
        self._crew = Crew(num_workers, self._slab.fd, self._recipe_fd)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._tickets = itertools.count()
        self._jobs: dict[int, Job] = {}  # by ticket: all that are not delivered
        self._unsent: deque[Job] = deque()
        self._deaths = Deaths()

    @property
    def window(self) -> int:
        """Batches that one session should have under way."""
        if self._prefetch_batches is not None:
            return self._prefetch_batches
        least = 2 * self._crew.num_workers
        if not self._slab.slot_bytes:
            return least
        return max(least, min(8 * least, SMALL_BYTES // self._slab.slot_bytes))

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers that live now."""
        workers = self._crew.workers.values()
        return tuple(worker.pid for worker in workers if worker.pid is not None)

    def session(self) -> PoolSession:
        """Opens a session."""
        return PoolSession(self)

    def submit(self, inbox: Inbox, chunk: Chunk) -> None:
        """Takes a job for the owner of ``inbox``; the next `poll` or `wait` sends it."""
        with self._lock:
            job = Job(next(self._tickets), chunk, weakref.ref(inbox))
            self._jobs[job.ticket] = job
            self._unsent.append(job)

    def poll(self) -> None:
        """Sends and hears what can be sent and heard at once."""
        with self._lock:
            self._step(0)

    def wait(self, inbox: Inbox) -> None:
        """Waits until there is something in the inbox, whose owner has asked for something.

        Raises:
            ClosedError: The pool was closed.
        """
        with self._lock:
            while not inbox.arrived:
                self._step(-1)

    def close(self) -> None:
        """Ends all processes and gives all memory back but that of live batches. Idempotent."""
        if os.getpid() != self._pid:
            return  # a forked copy of the user's process: nothing here is its own
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._crew.end()
            self._slab.close()
            os.close(self._recipe_fd)

    def _step(self, timeout_s: float) -> None:
        """Sends jobs, then handles what comes within ``timeout_s`` (-1: for ever)."""
        if self._closed:
            raise ClosedError
        try:
            self._crew.start()
            self._send_jobs()
            for event in self._crew.events(timeout_s):
                if isinstance(event, Heard):
                    self._on_message(event.worker, event.message)
                elif isinstance(event, Death):
                    self._on_death(event.worker, event.exit_code)
                else:
                    self._on_zygote_death()
            if self._unsent:
                self._send_jobs()
        except BaseException:
            self._crew.end()
            self._unsent = deque(self._jobs.values())
            raise

    def _send_jobs(self) -> None:
        """Gives every job to the worker with the fewest; then work to the workers without."""
        alive = [worker for worker in self._crew.workers.values() if worker.pid is not None]
        if not alive:
            return
        while self._unsent:
            job = self._unsent[0]
            if job.wanted_by() is None:
                self._forget(self._unsent.popleft())
                continue
            worker = min(alive, key=lambda worker: len(worker.jobs))
            if worker.jobs and not self._slab.slot_bytes:
                return  # nobody knows yet how large a batch is: one each, to find out
            if not self._send(worker, job):
                return
            self._unsent.popleft()
        for idle in alive:
            if not idle.jobs and idle.ready:
                busiest = max(alive, key=lambda worker: len(worker.jobs))
                if len(busiest.jobs) < 2 or (taken := busiest.take_back()) is None:
                    return
                job, packet = taken
                if not idle.send(packet):
                    self._unsent.appendleft(job)
                    return
                idle.jobs.append(job)

    def _send(self, worker: WorkerHandle, job: Job) -> bool:
        """Sends a job, with a slot as large as the largest batch so far."""
        num_bytes = max(self._slab.slot_bytes, chunk_bytes(job.chunk))
        try:
            self._fit(job, num_bytes)
        except MemoryLimitError as error:
            self._fail(job, error)
            return True
        packet = encode_task(job.ticket, job.chunk, job.slot, self._slab.memory())
        if not worker.send(packet):
            return False
        worker.jobs.append(job)
        return True

    def _fit(self, job: Job, num_bytes: int) -> None:
        """Sees to it that the job has a slot of at least ``num_bytes``."""
        if job.slot is not None and job.slot.capacity < num_bytes:
            self._slab.free(job.slot)
            job.slot = None
        if job.slot is None and num_bytes:
            job.slot = self._slab.allocate(num_bytes)

    def _on_message(self, worker: WorkerHandle, message: Message) -> None:
        kind = message[0]
        if kind == Kind.DONE:
            _, ticket, number, new, times = message
            job = self._answered(worker, ticket)
            built = Built(worker.layout(number, new), worker.objects(), StageTimes(*times))
            assert job.slot is not None
            slot, job.slot = job.slot, None
            self._deaths.forget()
            self._deliver(job, LocalBatch(built, self._slab.lease(slot)))
        elif kind == Kind.OBJECTS:
            worker.keep_objects(message[2])
        elif kind == Kind.NEED:
            self._on_need(worker, message[1], message[2])
        elif kind == Kind.FAILED:
            self._deliver(self._answered(worker, message[1]), Failure.unpacked(message[2]))
        elif kind == Kind.READY:
            worker.ready = True
            self._deaths.forget()
        elif kind == Kind.BROKEN:
            worker.broken = True
            self._give_up(worker, Failure.unpacked(message[1]))

    def _on_need(self, worker: WorkerHandle, ticket: int, num_bytes: int) -> None:
        job = worker.jobs[0]
        assert job.ticket == ticket
        try:
            if job.wanted_by() is not None:
                self._fit(job, max(num_bytes, 1))
        except MemoryLimitError as error:
            self._fail(self._answered(worker, ticket), error)
        if job.slot is None or job.slot.capacity < num_bytes:
            if job in worker.jobs:  # nobody wants it
                self._forget(self._answered(worker, ticket))
            self._crew.grant(worker, encode(int(Kind.GRANT), None))
        else:
            self._crew.grant(worker, encode(int(Kind.GRANT), job.slot.offset))

    def _on_death(self, worker: WorkerHandle, code: int | None) -> None:
        """Puts the dead worker's jobs back, first in line; the crew replaces it."""
        unbegun = []
        while (taken := worker.take_back()) is not None:
            unbegun.append(taken[0])
        begun = list(worker.jobs)
        worker.jobs.clear()
        self._unsent.extendleft(reversed([*begun, *unbegun]))
        if worker.broken:
            return
        self.num_restarts += 1
        if code is None:
            return  # it went with the zygote, whose end is told by itself
        _log.warning("worker process %s ended with exit code %s; it is replaced", worker.pid, code)
        if not worker.ready:
            if (error := self._deaths.at_start(code)) is not None:
                self._give_up(worker, Failure.of(error, START, None))
        elif begun:
            begun[0].deaths.append(code)
            if (error := deaths.of_chunk(begun[0].chunk, begun[0].deaths)) is not None:
                self._unsent.remove(begun[0])
                self._fail(begun[0], error)

    def _on_zygote_death(self) -> None:
        _log.warning("the process that starts workers ended; it is replaced, with all workers")
        if (error := self._deaths.of_zygote()) is not None:
            self._give_up(None, Failure.of(error, START, None))

    def _give_up(self, worker: WorkerHandle | None, failure: Failure) -> None:
        """Fails all jobs that no other worker has."""
        jobs = [*self._unsent]
        if worker is not None:
            jobs += worker.jobs
            worker.jobs.clear()
        self._unsent.clear()
        for job in jobs:
            self._deliver(job, failure)

    def _answered(self, worker: WorkerHandle, ticket: int) -> Job:
        job = worker.jobs.popleft()
        assert job.ticket == ticket
        return job

    def _deliver(self, job: Job, outcome: Outcome) -> None:
        if (inbox := job.wanted_by()) is not None:
            inbox.arrived.append((job.chunk.step, outcome))
        self._forget(job)

    def _fail(self, job: Job, error: FeederError) -> None:
        self._deliver(job, Failure.of(error, "build", None))

    def _forget(self, job: Job) -> None:
        if job.slot is not None:
            self._slab.free(job.slot)
            job.slot = None
        self._jobs.pop(job.ticket, None)


class PoolSession:
    """One iterator's jobs at a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._inbox = Inbox()

    def submit(self, chunk: Chunk) -> None:
        """Asks for a batch."""
        self._pool.submit(self._inbox, chunk)

    def poll(self) -> None:
        """Sends and hears what can be sent and heard at once."""
        self._pool.poll()

    def wait(self) -> None:
        """Waits until there is something to take."""
        self._pool.wait(self._inbox)

    def take(self) -> list[tuple[int, Outcome]]:
        """The (step, outcome) pairs that came since the last call."""
        arrived, self._inbox.arrived = self._inbox.arrived, []
        return arrived

    def close(self) -> None:
        """Gives up all that was asked for and not taken."""
        self._inbox.closed = True
        self._inbox.arrived = []
