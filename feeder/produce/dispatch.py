"""Which worker builds which chunk, and what happens when one of them dies. Single-threaded.

Guarantees:
    * The tasks of a dead worker are done again by others.
    * A slot is written by one process at a time: a dead worker's slot is used again only once
      the process is gone for certain.
    * An interrupted call (Ctrl-C) leaves nothing half-heard: all processes are replaced, and
      the jobs that were not delivered start again.

Owner:
    The dispatcher owns the crew; `end` ends it. Slab and recipe are the pool's.
"""

from __future__ import annotations

import pickle
import time
from collections import deque

from feeder.errors import MemoryLimitError
from feeder.produce.built import Built, Ended
from feeder.produce.crew import Crew, Death, Heard
from feeder.produce.failures import START, Failure
from feeder.produce.handle import WorkerHandle
from feeder.produce.jobs import Job, Task
from feeder.produce.layout import Layout
from feeder.produce.ledger import Ledger
from feeder.produce.messages import (
    LAYOUTS_NAMED,
    MAX_BUNDLED,
    Kind,
    Message,
    asked,
    encode,
    encode_open,
    inline_bytes,
    num_packets,
)
from feeder.produce.slots import Slab
from feeder.produce.snapshot import Report
from feeder.produce.supervise import Supervisor

_BUNDLE, _BUNDLE_NS = 8, 5_000_000
"""Chunks of a stream that are sent to a worker in one packet, at most, and what these may take.

It costs as much as for one; but what a worker has taken, nobody takes back from it.
"""

OVERTAKEN = 2
"""Rounds of all workers after which a task that waits behind a slow one is given to another."""


class Dispatcher:
    """Sends jobs to workers, and outcomes to inboxes.

    Attributes:
        submitted: Jobs asked for; any thread may append, all else is the caller's own.

    Args:
        crew: The workers.
        slab: The slots.
        supervisor: Says who is late, and what is one death too many.
        chunks_per_batch: Tasks that one job is cut into.
    """

    def __init__(
        self, crew: Crew, slab: Slab, supervisor: Supervisor, chunks_per_batch: int = 1
    ) -> None:
        self.submitted: deque[Job] = deque()
        self._crew = crew
        self._slab = slab
        self._chunks_per_batch = chunks_per_batch
        self._ledger = Ledger(slab)
        self._supervisor = supervisor
        self._starting_over = False
        self._last_code: int | None = None  # of the worker that died last
        self._bundle = 1  # chunks of a stream in a packet
        self._layouts: dict[Layout, Layout] = {}

    def start(self) -> None:
        """Starts the workers."""
        try:
            self._crew.start()
        except BaseException:
            self._start_over()
            raise

    def step(self, timeout_s: float) -> None:
        """Sends jobs, then handles what comes within ``timeout_s`` (-1: for ever)."""
        try:
            if self._starting_over:  # and was interrupted
                self._start_over()
            self._crew.start()
            delivered = self._ledger.num_delivered
            self._send_jobs()
            if self._ledger.num_delivered != delivered:
                timeout_s = 0  # a job that cannot be sent has failed: somebody may wait for that
            workers = self._crew.workers.values()
            heard = set()
            polled = self._crew.poll(self._supervisor.patience_s(workers, timeout_s))
            for event in self._crew.events(polled):
                if isinstance(event, Heard):
                    heard.add(event.worker)
                    self._on_message(event.worker, event.message)
                elif isinstance(event, Death):
                    self._on_death(event.worker, event.exit_code)
                else:
                    self._on_zygote_death()
            self._supervisor.kill_late(workers, heard)
            self._overtake(heard)
            if self._ledger.unsent or self.submitted or not all(one.tasks for one in heard):
                self._send_jobs()
        except BaseException:
            self._start_over()
            raise

    def drop_unwanted(self) -> None:
        """Drops the tasks that nobody waits for and no worker has begun."""
        if self._starting_over:
            return  # interrupted: the next step ends it, and sends only what is wanted
        try:
            self._drop_unwanted()
        except BaseException:  # Ctrl-C: what was taken back is nobody's
            self._start_over()
            raise

    def _drop_unwanted(self) -> None:
        for worker in self._crew.workers.values():
            kept = []
            while (taken := worker.take_back()) is not None:
                tasks, packet = taken
                if any(task.job.wanted_by() for task in tasks):
                    kept.append((tasks, packet))
                else:
                    for task in tasks:
                        self._ledger.end(task)
            for tasks, packet in kept:
                if worker.send(packet):
                    worker.begin(tasks)
                else:
                    self._ledger.put_back(tasks)

    def end(self) -> None:
        """Ends all processes. Idempotent."""
        self._crew.end()

    def _start_over(self) -> None:
        """Ends all processes; the jobs that were not delivered are sent again."""
        self._starting_over = True
        self._crew.end()
        self._ledger.start_over()
        self._starting_over = False

    def _send_jobs(self) -> None:
        """Gives every task to the worker with the fewest; then work to the workers without."""
        while self.submitted:
            job = self.submitted[0]
            self._ledger.add(job)  # first: Ctrl-C in between must lose no job
            self.submitted.popleft()
            self._end_run(job)
        alive = [worker for worker in self._crew.workers.values() if worker.pid is not None]
        if not alive:
            return
        bundles: dict[WorkerHandle, list[Task]] = {}
        waiting: list[Task] = []  # for memory: their sessions' jobs before them will have been used
        while self._ledger.unsent:
            task = self._ledger.unsent.popleft()
            worker = _worker_for(task, alive)
            if task.job.wanted_by() is None:
                self._ledger.end(task)
            elif worker is None:
                waiting.append(task)  # for the one that takes the place of a dead one
            elif waiting and any(other.job.inbox is task.job.inbox for other in waiting):
                waiting.append(task)
            elif worker.tasks and not self._ledger.allotter.knows_size:
                waiting.append(task)  # how large is a batch? One for each worker, to find out
                break
            elif self._may_block(task):
                waiting.append(task)
            elif not self._find_slot(task):
                if not task.job.over:
                    waiting.append(task)
            elif task.home is not None:
                bundles.setdefault(worker, []).append(task)
            elif not self._send(worker, [self._cut(task)]):
                break
        for worker, tasks in bundles.items():
            while tasks and self._send(worker, self._bundled(tasks)):
                pass
            waiting += tasks
        self._ledger.put_back(waiting)
        if not self._ledger.unsent:
            self._share(alive)

    def _bundled(self, tasks: list[Task]) -> list[Task]:
        """Takes the first of some tasks of a stream, as many as go in a packet."""
        count, size = 0, 0
        while count < min(self._bundle, len(tasks)):
            size += inline_bytes(tasks[count].chunk)
            if count and size > MAX_BUNDLED:
                break
            count += 1
        first, tasks[:] = tasks[:count], tasks[count:]
        return first

    def _may_block(self, task: Task) -> bool:
        """Whether a read of a stream might block, in which the first batch is to be built again."""
        allotter = self._ledger.allotter
        if task.home is None or allotter.knows_size:
            return False
        return allotter.first(task.job) is not task.job

    def _cut(self, task: Task) -> Task:
        """The first chunk of the batch, where it is to be cut into several; the others wait."""
        job = task.job
        if (
            self._chunks_per_batch == 1
            or task.home is not None
            or job.in_one_piece
            or task.chunk.is_part
            or task.deaths
            or not self._ledger.allotter.knows_size
        ):
            return task
        count = max(self._chunks_per_batch, num_packets(job.chunk))
        return self._ledger.cut(task, count)

    def _share(self, alive: list[WorkerHandle]) -> None:
        """Gives workers without work what others have not begun."""
        for idle in alive:
            if not idle.tasks:
                busiest = max(alive, key=lambda worker: len(worker.tasks))
                if any(task.home is not None for task in busiest.tasks):
                    return  # they read a stream, each a part of its own
                if len(busiest.tasks) < 2 or (taken := busiest.take_back()) is None:
                    return
                tasks, packet = taken
                if not idle.send(packet):
                    self._ledger.put_back(tasks)
                    return
                idle.begin(tasks)

    def _overtake(self, heard: set[WorkerHandle]) -> None:
        """Deals out anew what waits behind a slow task while the others are rounds ahead of it."""
        workers = self._crew.workers.values()
        begun = [
            worker.tasks[0].job.ticket
            for worker in heard
            if worker.tasks and worker.tasks[0].home is None
        ]
        waiting = [worker.tasks[1].job.ticket for worker in workers if len(worker.tasks) > 1]
        if not begun or not waiting or max(begun) - min(waiting) <= OVERTAKEN * len(workers):
            return
        unbegun = []
        for worker in workers:
            while (taken := worker.take_back()) is not None:
                unbegun += taken[0]
        self._ledger.put_back(unbegun)

    def _send(self, worker: WorkerHandle, tasks: list[Task]) -> bool:
        slab = self._slab.memory()
        items = [asked(task.ticket, task.chunk, task.job.slot, slab) for task in tasks]
        if worker.send(encode(int(Kind.TASK), *items)):
            worker.begin(tasks)
            return True
        self._ledger.put_back(tasks)
        return False

    def _find_slot(self, task: Task) -> bool:
        """Finds a slot for the task's job; False: not now, or there is none and it has failed."""
        if task.chunk.is_part and task.job.slot is not None:
            return True  # others may be writing to it
        try:
            return self._ledger.allotter.find(task.job)
        except MemoryLimitError as error:
            self._ledger.fail(task.job, error)
            return False

    def _on_message(self, worker: WorkerHandle, message: Message) -> None:
        worker.since = time.monotonic()  # all that a BUSY is for
        kind = message[0]
        if kind == Kind.DONE:
            _, ticket, number, new, objects, times, bad, reports, rows = message
            task = self._answered(worker, ticket)
            if new is not None:  # the same object for all workers: a look tells that it is
                if len(self._layouts) == LAYOUTS_NAMED:
                    self._layouts.clear()
                new = self._layouts.setdefault(new, new)
            layout = worker.layout(number, new)
            built = Built(layout, objects, times, bad, [Report(*one) for one in reports], rows)
            if task.home is not None:
                self._bundle = max(1, min(_BUNDLE, _BUNDLE_NS // max(1, times[5] - times[4])))
            task.job.built[task.chunk.first_row] = built
            self._ledger.end(task)
        elif kind == Kind.NEED:
            self._on_need(worker, message[1], message[2])
        elif kind == Kind.FAILED:
            task = self._answered(worker, message[1])
            failure = Failure.unpacked(message[2])
            if task.home is not None and failure.place is not None:
                task.job.fail(failure)
            elif task.chunk.is_part:
                task.job.spoiled = task.job.in_one_piece = True
            else:
                self._ledger.deliver(task.job, failure)
            self._ledger.end(task)
        elif kind == Kind.PASSED:
            task = self._answered(worker, message[1])
            task.job.reports += [Report(*report) for report in message[2]]
            self._ledger.end(task)
        elif kind == Kind.ENDED:
            task = self._answered(worker, message[1])
            task.job.end(Ended(*message[2:]))
            self._ledger.end(task)
        elif kind == Kind.WHERE:
            self._on_where(worker, message[1], message[2])
        elif kind == Kind.READY:
            worker.ready = True
        elif kind == Kind.BROKEN:
            worker.broken = True
            self._give_up(worker, Failure.unpacked(message[1]))

    def _on_where(self, worker: WorkerHandle, ticket: int, lanes: list[int]) -> None:
        """Tells the worker where lanes are to be opened, or to give the chunk up."""
        task = worker.tasks[0]
        assert task.ticket == ticket
        inbox, data = task.job.wanted_by(), None
        if inbox is not None and inbox.locate is not None:
            data = pickle.dumps(inbox.locate(lanes), 5)
        else:
            self._ledger.end(worker.tasks.popleft())
        self._crew.grant(worker, *encode_open(data))

    def _on_need(self, worker: WorkerHandle, ticket: int, num_bytes: int) -> None:
        """Grants the worker a slot that holds its batch, or tells it to give the batch up."""
        task = worker.tasks[0]
        assert task.ticket == ticket
        job, slot = task.job, None
        if task.chunk.is_part:  # others may be writing to the slot: all is built again
            if not job.spoiled:
                job.in_one_piece |= job.num_bytes >= num_bytes  # it was larger, and does not help
            job.spoiled = True
            job.num_bytes = max(job.num_bytes, num_bytes)
        try:
            if job.wanted_by() is not None and not job.spoiled:
                if self._ledger.allotter.grow(job, num_bytes):
                    slot = job.slot
                else:
                    self._ledger.put_back([worker.tasks.popleft()])
        except MemoryLimitError as error:
            self._ledger.fail(job, error)
        if slot is None and task in worker.tasks:
            self._ledger.end(worker.tasks.popleft())
        place = (None, 0) if slot is None else (slot.offset, slot.capacity)
        self._crew.grant(worker, encode(int(Kind.GRANT), *place))

    def _on_death(self, worker: WorkerHandle, code: int | None) -> None:
        """Puts the dead worker's tasks back, first in line; the crew replaces it."""
        unbegun = []
        while (taken := worker.take_back()) is not None:
            unbegun += taken[0]
        begun = list(worker.tasks)
        worker.tasks.clear()
        self._ledger.put_back([*begun, *unbegun])
        if worker.broken:
            return
        task = begun[0] if begun and code is not None else None
        error = self._supervisor.of_death(worker, code, task)
        if error is not None and task is not None:
            self._ledger.fail(task.job, error)
        elif error is not None:
            self._give_up(worker, Failure.of(error, START, None))
        self._last_code = code
        firsts: dict[int, Job] = {}
        for waiting in self._ledger.unsent:
            firsts.setdefault(id(waiting.job.inbox()), waiting.job)
        for job in firsts.values():
            self._end_run(job)

    def _end_run(self, job: Job) -> None:
        """Fails the next job, of those that no worker has, of a run that outlived too many."""
        inbox = job.wanted_by()
        if inbox is None or inbox.restarts_told == self._supervisor.num_restarts:
            return
        inbox.restarts_told = self._supervisor.num_restarts
        if (error := self._supervisor.of_run(inbox, job, self._last_code)) is not None:
            self._ledger.fail(job, error)

    def _on_zygote_death(self) -> None:
        if (error := self._supervisor.of_zygote()) is not None:
            self._give_up(None, Failure.of(error, START, None))

    def _give_up(self, worker: WorkerHandle | None, failure: Failure) -> None:
        """Fails all jobs that no other worker has."""
        tasks = [*self._ledger.unsent]
        if worker is not None:
            tasks += worker.tasks
            worker.tasks.clear()
        for task in tasks:
            self._ledger.deliver(task.job, failure)
            self._ledger.end(task)
        self._ledger.unsent.clear()

    def _answered(self, worker: WorkerHandle, ticket: int) -> Task:
        task = worker.tasks.popleft()
        assert task.ticket == ticket
        worker.proven = True
        self._supervisor.work_goes_on()
        return task


def _worker_for(task: Task, alive: list[WorkerHandle]) -> WorkerHandle | None:
    """The worker to give a task to; None: not one of these."""
    if task.home is not None:
        return next((worker for worker in alive if worker.worker_id == task.home), None)
    # Of equals, the one that was heard last: another may be stuck.
    return min(alive, key=lambda worker: (len(worker.tasks), -worker.since))
