"""Which batch may have a slot now, where memory is short.

Guarantees:
    * Batches that the user keeps are an error at the memory limit; batches built ahead are not:
      they wait for the others to be used.
"""

from __future__ import annotations

from feeder.errors import MemoryLimitError
from feeder.produce.jobs import Job
from feeder.produce.messages import chunk_bytes
from feeder.produce.slots import Slab


class Allotter:
    """Gives slots to jobs.

    Args:
        slab: The slots.
        jobs: All that are not delivered, by ticket; the dispatcher's own.
    """

    def __init__(self, slab: Slab, jobs: dict[int, Job]) -> None:
        self._slab = slab
        self._jobs = jobs

    @property
    def knows_size(self) -> bool:
        """Whether it is known how large batches are."""
        return self._slab.slot_bytes > 0

    def find(self, job: Job) -> bool:
        """Gives the job a slot as large as the largest batch so far; False: not now.

        Raises:
            MemoryLimitError: There is none, and nothing that will be used and make room.
        """
        try:
            self._fit(job, max(self._slab.slot_bytes, chunk_bytes(job.chunk), job.num_bytes))
        except MemoryLimitError:
            if self._is_stuck(job):
                raise
            return False
        return True

    def grow(self, job: Job, num_bytes: int) -> bool:
        """Gives the job a slot of at least ``num_bytes``; False: not now.

        Raises:
            MemoryLimitError: As in `find`.
        """
        try:
            self._fit(job, max(num_bytes, 1))
        except MemoryLimitError:
            if self._is_stuck(job):
                raise
            return False
        return True

    def give_back(self, job: Job) -> None:
        """Takes the job's slot, where it has one."""
        if job.slot is not None:
            self._slab.free(job.slot)
            job.slot = None

    def _fit(self, job: Job, num_bytes: int) -> None:
        if job.slot is not None and job.slot.capacity < num_bytes:
            self.give_back(job)
        if job.slot is None and num_bytes:
            # What is built ahead leaves a slot to the batch that the user waits for, and one more:
            # the user still has the batch before it.
            inbox = job.wanted_by()
            awaited = inbox is not None and inbox.awaited and not inbox.arrived
            spare = 0 if awaited and self.first(job) is job else 2
            job.slot = self._slab.allocate(num_bytes, spare)

    def _is_stuck(self, job: Job) -> bool:
        """Whether nothing under way or to be taken will make room for it."""
        inbox = job.wanted_by()
        if inbox is None or not inbox.awaited or inbox.arrived or self.first(job) is not job:
            return False
        # What was given up while a worker was at it still has its slot.
        return all(other.wanted_by() or not other.slot for other in self._jobs.values())

    def first(self, job: Job) -> Job:
        """The oldest job of the same session."""
        jobs = self._jobs.values()
        return next(other for other in jobs if other.inbox is job.inbox and not other.over)
