"""How long a worker may take, and how many may die: what the dispatcher decides by.

Guarantees:
    * A worker is killed only while nothing that it said waits to be heard: however long the
      parent was away, a worker that is done is not late.
    * Every death is counted, and logged, once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from feeder.errors import WorkerDiedError, WorkerTimeoutError
from feeder.produce import deaths
from feeder.produce.deaths import Deaths
from feeder.produce.handle import WorkerHandle
from feeder.produce.jobs import Inbox, Job, Task
from feeder.produce.memory import oom_kills

START_TIMEOUT_S = 60.0
"""Least time for a worker to load the recipe; imports are slow where disks are."""

_DEATHS_KEPT = 1000

_log = logging.getLogger("feeder")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the workers of a loader may take.

    Attributes:
        max_bytes: Bytes of slots at one time.
        timeout_s: Seconds for one chunk; None: no limit.
        max_restarts: Deaths of workers outlived in one run; None: as many as it takes.
        chunks_per_batch: Chunks that a batch is cut into; one in one piece may take so many times
            as long.
    """

    max_bytes: int
    timeout_s: float | None = None
    max_restarts: int | None = None
    chunks_per_batch: int = 1


class Supervisor:
    """Watches the clock and counts deaths.

    Attributes:
        num_restarts: Workers that died and were replaced.
        deaths: Their numbers, and when it was seen, of the last of them.
    """

    def __init__(self, limits: Limits) -> None:
        self.num_restarts = 0
        self.deaths: deque[tuple[int, int]] = deque(maxlen=_DEATHS_KEPT)
        self._limits = limits
        self._deaths = Deaths()
        self._oom_kills_before = oom_kills()

    def patience_s(self, workers: Iterable[WorkerHandle], timeout_s: float) -> float:
        """How long to wait for a word: ``timeout_s`` (-1: for ever), or until one is late."""
        if self._limits.timeout_s is None or timeout_s == 0:
            return timeout_s
        now = time.monotonic()
        left = [
            self._deadline(worker) - now
            for worker in workers
            if worker.tasks and not worker.timed_out  # else its death will be told
        ]
        return max(0.0, min(left)) if left else timeout_s

    def kill_late(self, workers: Iterable[WorkerHandle], heard: set[WorkerHandle]) -> None:
        """Kills those that have been at one chunk for too long, and have said nothing."""
        if self._limits.timeout_s is None:
            return
        now = time.monotonic()
        for worker in workers:
            if (
                worker.tasks
                and worker not in heard
                and not worker.timed_out
                and now >= self._deadline(worker)
            ):
                worker.timed_out = True
                worker.kill()

    def _deadline(self, worker: WorkerHandle) -> float:
        assert self._limits.timeout_s is not None
        limit = self._limits.timeout_s
        if not worker.tasks[0].chunk.is_part:
            limit *= self._limits.chunks_per_batch
        return worker.since + (limit if worker.ready else max(limit, START_TIMEOUT_S))

    def work_goes_on(self) -> None:
        """A batch has come."""
        self._deaths.forget()

    def of_death(
        self, worker: WorkerHandle, code: int | None, task: Task | None
    ) -> WorkerDiedError | None:
        """Counts a death; the error where it is one too many for its task, or at the start.

        Args:
            worker: The worker that is gone.
            code: Its exit code; None where it went with the zygote, whose end is told by itself.
            task: What it was at.
        """
        self.num_restarts += 1
        self.deaths.append((worker.worker_id, time.perf_counter_ns()))
        if code is None:
            return None
        told = f"ended with {deaths.listed([code], self._oom_kills())}"
        if worker.timed_out:
            told = f"took longer than `timeout_s` = {self._limits.timeout_s:g}, and was killed"
        _log.warning("worker process %s %s; it is replaced", worker.pid, told)
        if task is not None:
            if not task.deaths:
                task.restarts_before = self.num_restarts - 1
            task.deaths.append(code)
            task.timeouts += worker.timed_out
            return deaths.of_chunk(
                task.chunk,
                task.deaths,
                task.timeouts,
                self._limits.timeout_s,
                self._oom_kills(),
                others=self.num_restarts - task.restarts_before - len(task.deaths),
            )
        if worker.timed_out and not worker.ready:
            limit = max(self._limits.timeout_s or 0.0, START_TIMEOUT_S)
            return WorkerTimeoutError(
                f"a worker process took longer than {limit:g} s to load the source and the "
                "transforms, with `worker_init`, and was killed; raise `timeout_s` if it needs "
                "more time",
                timeout_s=limit,
                step=None,
                exit_codes=[code],
            )
        if not worker.proven:
            return self._deaths.at_start(code, self._oom_kills())
        return None

    def of_zygote(self) -> WorkerDiedError | None:
        """Counts an end of the zygote; the error if it is one too many."""
        _log.warning("the process that starts workers ended; it is replaced, with all workers")
        return self._deaths.of_zygote()

    def of_run(self, inbox: Inbox, job: Job, code: int | None) -> WorkerDiedError | None:
        """The error where a run has outlived as many deaths as it may.

        Args:
            inbox: Of the run.
            job: Its first job.
            code: How the last worker ended.
        """
        limit = self._limits.max_restarts
        if limit is None or self.num_restarts - inbox.restarts_before <= limit:
            return None
        return deaths.too_many(job.chunk, -9 if code is None else code, limit, self._oom_kills())

    def _oom_kills(self) -> int:
        return oom_kills() - self._oom_kills_before
