"""What this process reads of a stream for a batch: its own rows, and where shards end."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from feeder.place.ends import Job
from feeder.plan.batches import LocalRows
from feeder.plan.chunks import StreamChunk
from feeder.plan.kept import KeptPatterns
from feeder.plan.order import Indices
from feeder.plan.patterns import Pattern
from feeder.plan.stream import StreamPlan, StreamPlanner


@dataclass(frozen=True, eq=False)
class Reading:
    """Turns the plan of a global batch into the chunk of this process.

    Attributes:
        planner: Plans global batches.
        local_rows: Maps the number of rows of a global batch to those of this process.
        job: The processes that tell each other where shards end; None: nobody tells this one, so it
            reads all of them.
    """

    planner: StreamPlanner
    local_rows: LocalRows
    job: Job | None
    _patterns: KeptPatterns[tuple[Pattern, int, bool], Pattern] = field(
        default_factory=KeptPatterns
    )

    def chunk(
        self,
        plan: StreamPlan,
        run: int,
        live: tuple[int, ...],
        settled: int,
        snapshot: bool,
        wanted: bool = True,
    ) -> StreamChunk:
        """What is read for a batch.

        Args:
            plan: The global batch.
            run: As of `StreamChunk`.
            live: As of `StreamChunk`.
            settled: As of `StreamChunk`.
            snapshot: As of `StreamChunk`.
            wanted: Whether its rows are; else it is read for what comes after it.
        """
        local = self._patterns.get(
            (plan.pattern, plan.num_rows, wanted),
            lambda: self._local(plan.pattern, plan.num_rows, wanted),
            plan.num_rows,
        )
        return StreamChunk(
            plan.step,
            local,
            plan.cycle,
            plan.first_lane,
            plan.position,
            run,
            live,
            settled,
            snapshot,
        )

    def _local(self, pattern: Pattern, num_rows: int, wanted: bool) -> Pattern:
        """What this process reads of a global batch."""
        num_real = len(pattern)
        local = self.local_rows(num_rows)
        rows = np.full(num_rows, -1)
        if wanted:
            rows[local] = np.arange(len(local))
        entries = np.arange(num_real)
        if self.job is not None:
            told = self._leaders[pattern.lanes % self.planner.num_lanes] == self.job.service.own
            entries = np.flatnonzero(told | (rows[:num_real] >= 0))
        padding = num_real + np.flatnonzero(rows[num_real:] >= 0)
        mask = None
        if self.planner.last_batch == "pad":
            mask = np.arange(len(entries) + len(padding)) < len(entries)
        read = rows[np.concatenate([entries, padding])]
        if len(padding):  # it repeats the last real row
            entries = np.concatenate([entries, np.full(len(padding), num_real - 1)])
        return Pattern(
            entries,
            pattern.lanes[entries],
            pattern.offsets[entries],
            pattern.per_cycle[entries],
            read,
            len(local),
            mask,
        )

    def leads(self, lanes: list[int]) -> list[int]:
        """Those lanes, of some, that this process tells the others of."""
        if self.job is None:
            return lanes
        own, num_lanes = self.job.service.own, self.planner.num_lanes
        return [lane for lane in lanes if self._leaders[lane % num_lanes] == own]

    @functools.cached_property
    def _leaders(self) -> Indices:
        """The process that tells where each lane ends."""
        assert self.job is not None
        return self.job.leaders(self.planner.cycle, self.planner.batch_size)
