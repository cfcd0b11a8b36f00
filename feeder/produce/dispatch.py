"""Which worker builds which batch, and what happens when one of them dies. Single-threaded.

Guarantees:
    * Every job ends in exactly one outcome in its inbox, as long as somebody waits for it: a
      batch or a `Failure`. The jobs of a dead worker are done again by others.
    * A slot is written by one process at a time: a dead worker's slot is used again only once
      the process is gone for certain.
    * An interrupted call (Ctrl-C) leaves nothing half-heard: all processes are replaced, and
      the jobs that were not delivered start again.
    * Batches that the user keeps are an error at the memory limit; batches built ahead are not:
      they wait for the others to be used.

Owner:
    The dispatcher owns the crew; `end` ends it. Slab and recipe are the pool's.
"""

from __future__ import annotations

import logging
from collections import deque

from feeder.errors import FeederError, MemoryLimitError
from feeder.produce import deaths
from feeder.produce.clock import StageTimes
from feeder.produce.crew import Crew, Death, Heard
from feeder.produce.deaths import Deaths
from feeder.produce.failures import START, Failure
from feeder.produce.handle import Job, WorkerHandle
from feeder.produce.messages import Kind, Message, chunk_bytes, encode, encode_task
from feeder.produce.recipe import Built
from feeder.produce.session import LocalBatch, Outcome
from feeder.produce.slots import Slab

_log = logging.getLogger("feeder")


class Dispatcher:
    """Sends jobs to workers, and outcomes to inboxes.

    Attributes:
        num_restarts: Workers that died and were replaced.
        submitted: Jobs asked for; any thread may append, all else is the caller's own.

    Args:
        crew: The workers.
        slab: The slots.
    """

    def __init__(self, crew: Crew, slab: Slab) -> None:
        self.num_restarts = 0
        self.submitted: deque[Job] = deque()
        self._crew = crew
        self._slab = slab
        self._jobs: dict[int, Job] = {}  # by ticket: all that are not delivered
        self._unsent: deque[Job] = deque()
        self._deaths = Deaths()
        self._delivered = 0
        self._starting_over = False

    def step(self, timeout_s: float) -> None:
        """Sends jobs, then handles what comes within ``timeout_s`` (-1: for ever)."""
        try:
            if self._starting_over:  # and was interrupted
                self._start_over()
            self._crew.start()
            delivered = self._delivered
            self._send_jobs()
            if self._delivered != delivered:
                timeout_s = 0  # a job that cannot be sent has failed: somebody may wait for that
            for event in self._crew.events(self._crew.poll(timeout_s)):
                if isinstance(event, Heard):
                    self._on_message(event.worker, event.message)
                elif isinstance(event, Death):
                    self._on_death(event.worker, event.exit_code)
                else:
                    self._on_zygote_death()
            if self._unsent or self.submitted:
                self._send_jobs()
        except BaseException:
            self._start_over()
            raise

    def drop_unwanted(self) -> None:
        """Drops the jobs that nobody waits for and no worker has begun."""
        if self._starting_over:
            return  # interrupted: the next step ends it, and sends only what is wanted
        for worker in self._crew.workers.values():
            kept = []
            while (taken := worker.take_back()) is not None:
                job, packet = taken
                if job.wanted_by() is None:
                    self._forget(job)
                else:
                    kept.append((job, packet))
            for job, packet in kept:
                if worker.send(packet):
                    worker.jobs.append(job)
                else:
                    self._put_back([job])

    def end(self) -> None:
        """Ends all processes. Idempotent."""
        self._crew.end()

    def _start_over(self) -> None:
        """Ends all processes; the jobs that were not delivered are sent again."""
        self._starting_over = True
        self._crew.end()
        self._unsent = deque(self._jobs.values())
        self._starting_over = False

    def _send_jobs(self) -> None:
        """Gives every job to the worker with the fewest; then work to the workers without."""
        while self.submitted:
            job = self.submitted.popleft()
            self._jobs[job.ticket] = job
            self._unsent.append(job)
        alive = [worker for worker in self._crew.workers.values() if worker.pid is not None]
        if not alive:
            return
        waiting: list[Job] = []  # for memory: their sessions' jobs before them will have been used
        while self._unsent:
            job = self._unsent.popleft()
            worker = min(alive, key=lambda worker: len(worker.jobs))
            if job.wanted_by() is None:
                self._forget(job)
            elif any(other.inbox is job.inbox for other in waiting):
                waiting.append(job)
            elif worker.jobs and not self._slab.slot_bytes:
                waiting.append(job)  # how large is a batch? One for each worker, to find out
                break
            elif not self._find_slot(job):
                if job.ticket in self._jobs:
                    waiting.append(job)
            elif not self._send(worker, job):
                waiting.append(job)
                break
        self._put_back(waiting)
        if not self._unsent:
            self._share(alive)

    def _share(self, alive: list[WorkerHandle]) -> None:
        """Gives workers without work what others have not begun."""
        for idle in alive:
            if not idle.jobs:
                busiest = max(alive, key=lambda worker: len(worker.jobs))
                if len(busiest.jobs) < 2 or (taken := busiest.take_back()) is None:
                    return
                job, packet = taken
                if not idle.send(packet):
                    self._put_back([job])
                    return
                idle.jobs.append(job)

    def _put_back(self, jobs: list[Job]) -> None:
        """Puts jobs in line again, where their tickets say."""
        if jobs:
            self._unsent = deque(sorted([*jobs, *self._unsent], key=lambda job: job.ticket))

    def _send(self, worker: WorkerHandle, job: Job) -> bool:
        packet = encode_task(job.ticket, job.chunk, job.slot, self._slab.memory())
        if worker.send(packet):
            worker.jobs.append(job)
            return True
        return False

    def _find_slot(self, job: Job) -> bool:
        """Gives the job a slot as large as the largest batch so far; False: not now.

        Where there is none, and nothing before it that will be used and make room, it fails.
        """
        try:
            self._fit(job, max(self._slab.slot_bytes, chunk_bytes(job.chunk)))
        except MemoryLimitError as error:
            if self._is_stuck(job):
                self._fail(job, error)
            return False
        return True

    def _fit(self, job: Job, num_bytes: int) -> None:
        """Sees to it that the job has a slot of at least ``num_bytes``."""
        if job.slot is not None and job.slot.capacity < num_bytes:
            self._slab.free(job.slot)
            job.slot = None
        if job.slot is None and num_bytes:
            first = self._first(job)
            # What is built ahead leaves a slot to the batch that the user waits for, and one more:
            # the user still has the batch before it.
            spare = 0 if first is job else 1 if first.slot is not None else 2
            job.slot = self._slab.allocate(num_bytes, spare)

    def _is_stuck(self, job: Job) -> bool:
        """Whether nothing under way or to be taken will make room for it."""
        inbox = job.wanted_by()
        if inbox is None or not inbox.awaited or inbox.arrived or self._first(job) is not job:
            return False
        # What was given up while a worker was at it still has its slot.
        return all(other.wanted_by() or not other.slot for other in self._jobs.values())

    def _first(self, job: Job) -> Job:
        """The oldest job of the same session."""
        return next(other for other in self._jobs.values() if other.inbox is job.inbox)

    def _on_message(self, worker: WorkerHandle, message: Message) -> None:
        kind = message[0]
        if kind == Kind.DONE:
            _, ticket, number, new, objects, times = message
            job = self._answered(worker, ticket)
            built = Built(worker.layout(number, new), objects, StageTimes(*times))
            assert job.slot is not None
            slot, job.slot = job.slot, None
            self._deliver(job, LocalBatch(built, self._slab.lease(slot)))
        elif kind == Kind.NEED:
            self._on_need(worker, message[1], message[2])
        elif kind == Kind.FAILED:
            self._deliver(self._answered(worker, message[1]), Failure.unpacked(message[2]))
        elif kind == Kind.BROKEN:
            worker.broken = True
            self._give_up(worker, Failure.unpacked(message[1]))

    def _on_need(self, worker: WorkerHandle, ticket: int, num_bytes: int) -> None:
        """Grants the worker a slot that holds its batch, or tells it to give the batch up."""
        job = worker.jobs[0]
        assert job.ticket == ticket
        offset: int | None = None
        try:
            if job.wanted_by() is not None:
                self._fit(job, max(num_bytes, 1))
                assert job.slot is not None
                offset = job.slot.offset
            else:
                self._forget(worker.jobs.popleft())
        except MemoryLimitError as error:
            worker.jobs.popleft()
            if self._is_stuck(job):
                self._fail(job, error)
            else:
                self._put_back([job])
        self._crew.grant(worker, encode(int(Kind.GRANT), offset))

    def _on_death(self, worker: WorkerHandle, code: int | None) -> None:
        """Puts the dead worker's jobs back, first in line; the crew replaces it."""
        unbegun = []
        while (taken := worker.take_back()) is not None:
            unbegun.append(taken[0])
        begun = list(worker.jobs)
        worker.jobs.clear()
        self._put_back([*begun, *unbegun])
        if worker.broken:
            return
        self.num_restarts += 1
        if code is None:
            return  # it went with the zygote, whose end is told by itself
        _log.warning("worker process %s ended with exit code %s; it is replaced", worker.pid, code)
        if begun:
            begun[0].deaths.append(code)
            if (error := deaths.of_chunk(begun[0].chunk, begun[0].deaths)) is not None:
                self._unsent.remove(begun[0])
                self._fail(begun[0], error)
        elif not worker.proven and (error := self._deaths.at_start(code)) is not None:
            self._give_up(worker, Failure.of(error, START, None))

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
        worker.proven = True
        self._deaths.forget()
        return job

    def _deliver(self, job: Job, outcome: Outcome) -> None:
        if (inbox := job.wanted_by()) is not None:
            inbox.arrived.append((job.chunk.step, outcome))
            self._delivered += 1
        self._forget(job)

    def _fail(self, job: Job, error: FeederError) -> None:
        self._deliver(job, Failure.of(error, "build", None))

    def _forget(self, job: Job) -> None:
        if job.slot is not None:
            self._slab.free(job.slot)
            job.slot = None
        self._jobs.pop(job.ticket, None)
