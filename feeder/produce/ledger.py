"""What is under way: every job until it is delivered, and the tasks that no worker has.

Guarantees:
    * Every job ends in exactly one outcome in its inbox, as long as somebody waits for it.
    * Tasks wait in the order of their jobs, and of their rows.

Owner:
    The ledger owns the jobs and, through them, their slots.
"""

from __future__ import annotations

import itertools
from collections import deque

from feeder.errors import FeederError
from feeder.produce.allot import Allotter
from feeder.produce.built import Built
from feeder.produce.failures import Failure
from feeder.produce.jobs import Job, Task
from feeder.produce.session import LocalBatch, Outcome
from feeder.produce.slots import Slab


class Ledger:
    """Keeps account of jobs and tasks.

    Attributes:
        unsent: Tasks that no worker has.
        allotter: Gives slots to jobs.
        num_delivered: Outcomes delivered so far.

    Args:
        slab: The slots.
    """

    def __init__(self, slab: Slab) -> None:
        self.unsent: deque[Task] = deque()
        self.num_delivered = 0
        self._slab = slab
        self._jobs: dict[int, Job] = {}  # by ticket: all that are not delivered
        self._tickets = itertools.count()
        self.allotter = Allotter(slab, self._jobs)

    def add(self, job: Job) -> None:
        """Takes a job, whose task comes last; once, however often it is called."""
        if job.ticket not in self._jobs:
            self._jobs[job.ticket] = job
            self.unsent.extend(job.begin(self._tickets))

    def start_over(self) -> None:
        """All workers are gone: what was not delivered is to be sent again."""
        jobs = self._jobs.values()
        self.unsent = deque(task for job in jobs for task in job.begin(self._tickets))

    def cut(self, task: Task, count: int) -> Task:
        """Makes so many tasks of a job that is one, and returns the first; the others wait."""
        first, *others = task.job.split(count, self._tickets)
        self.unsent.extendleft(reversed(others))
        return first

    def put_back(self, tasks: list[Task]) -> None:
        """Puts tasks in line again, where their jobs' tickets and rows say."""
        if tasks:
            ordered = sorted(
                [*tasks, *self.unsent], key=lambda task: (task.job.ticket, task.chunk.first_row)
            )
            self.unsent = deque(ordered)

    def end(self, task: Task) -> None:
        """A task is over, in one way or another; and its job, where it was the last one."""
        job = task.job
        if task in job.tasks:  # else it was ended before, with its job
            job.tasks.remove(task)
        if job.tasks:
            return
        if job.wanted_by() is None:
            self.allotter.give_back(job)
            self._jobs.pop(job.ticket, None)
        elif (built := job.whole()) is None:
            job.in_one_piece |= not job.spoiled or job.num_bytes == 0
            self.put_back(job.begin(self._tickets))
        elif isinstance(built, Built):
            assert job.slot is not None
            slot, job.slot = job.slot, None
            self.deliver(job, LocalBatch(built, self._slab.lease(slot)))
            del self._jobs[job.ticket]
        else:
            self.deliver(job, built)
            self.allotter.give_back(job)
            self._jobs.pop(job.ticket, None)

    def deliver(self, job: Job, outcome: Outcome) -> None:
        if (inbox := job.wanted_by()) is not None:
            inbox.arrived.append((job.chunk.step, outcome))
            self.num_delivered += 1
        job.over = True

    def fail(self, job: Job, error: FeederError) -> None:
        """Delivers an error in the place of a batch, whose tasks are sent no more."""
        self.deliver(job, Failure.of(error, "build", None))
        mine = [task for task in self.unsent if task.job is job]
        self.unsent = deque(task for task in self.unsent if task.job is not job)
        for task in mine:
            self.end(task)
        if not job.tasks:
            self.allotter.give_back(job)
            self._jobs.pop(job.ticket, None)
