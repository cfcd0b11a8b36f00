"""A batch on its way through the workers: the job, its tasks, and the inbox it ends in.

A job is one batch; its tasks are the chunks that workers build of it, most often one. Several
chunks lie in one slot, each at its rows, which takes that all of them find the same layout. Where
they do not, or one of them fails, the batch is built again in one piece (where one needs a larger
slot, in chunks again): so the number of chunks never changes a batch, nor an error.

Guarantees:
    * A job's slot is not given back before every worker that may write to it has answered, or is
      gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from feeder.plan.chunks import Chunk, PlannedChunk
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.failures import Failure
from feeder.produce.session import Locate, Outcome
from feeder.produce.slots import Slot
from feeder.produce.snapshot import Report


@dataclass(slots=True, eq=False, weakref_slot=True)
class Inbox:
    """Where one session's outcomes arrive.

    Attributes:
        arrived: (step, outcome) pairs that came and were not taken.
        closed: Whether nobody wants the others any more.
        awaited: Whether a thread waits for them: it has used up all that came before.
        restarts_before: Restarts of workers before it was opened.
        restarts_told: Restarts of workers that were too many, or not, for the run.
        locate: Says where the lanes of a stream are to be opened.
    """

    arrived: list[tuple[int, Outcome]] = field(default_factory=list)
    closed: bool = False
    awaited: bool = False
    restarts_before: int = 0
    restarts_told: int = 0
    locate: Locate | None = None


@dataclass(slots=True, eq=False)
class Task:
    """A chunk that one worker builds.

    Attributes:
        ticket: Its number, unique in the pool.
        job: The batch that it is part of.
        chunk: Which rows.
        deaths: Exit codes of the workers that died while they built it.
        timeouts: How many of them were killed for taking too long.
        restarts_before: Restarts of workers before the first of these deaths.
        home: The only worker that may build it, since it reads these lanes of a stream; None: any
            may.
    """

    ticket: int
    job: Job
    chunk: Chunk
    deaths: list[int] = field(default_factory=list)
    timeouts: int = 0
    restarts_before: int = 0
    home: int | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A batch that a session asked for, from then until it is delivered.

    Attributes:
        ticket: Its number, unique in the pool.
        chunk: All its rows.
        inbox: Of the session that asked; dead once it is gone.
        in_one_piece: Whether it must be one task.
        spoiled: Whether its chunks do not make a batch: it is to be built again.
        num_bytes: What a slot for it must hold, as far as is known.
        over: Whether it was delivered, while some worker may still be at it.
        slot: Where it is built; the job's own until it is leased to the batch.
        tasks: Those not answered.
        built: What was answered, by first row.
        homes: Chunks of it with the workers that read them, where it is one of a stream.
        ended: Where lanes of the stream end before it.
        failed: What the first row that user code failed at said.
        reports: Of chunks of a stream that have no row of this process.
    """

    ticket: int
    chunk: Chunk
    inbox: weakref.ref[Inbox]
    homes: list[tuple[int, Chunk]] = field(default_factory=list)
    in_one_piece: bool = False
    spoiled: bool = False
    num_bytes: int = 0
    over: bool = False
    slot: Slot | None = None
    tasks: list[Task] = field(default_factory=list)
    built: dict[int, Built] = field(default_factory=dict)
    ended: Ended | None = None
    failed: Failure | None = None
    reports: list[Report] = field(default_factory=list)

    def wanted_by(self) -> Inbox | None:
        """The inbox of whoever still waits for it."""
        inbox = self.inbox()
        return None if inbox is None or inbox.closed or self.over else inbox

    def begin(self, tickets: Iterator[int]) -> list[Task]:
        """Makes one task of it; of a batch of a stream, one for each worker that reads it."""
        if not self.homes:
            return self._begin([Task(next(tickets), self, self.chunk)])
        if self.in_one_piece:
            return self._begin([Task(next(tickets), self, self.chunk, home=self.homes[0][0])])
        return self._begin([Task(next(tickets), self, part, home=at) for at, part in self.homes])

    def split(self, num_chunks: int, tickets: Iterator[int]) -> list[Task]:
        """Makes several tasks of it."""
        assert isinstance(self.chunk, PlannedChunk)
        chunks = self.chunk.split(num_chunks)
        return self._begin([Task(next(tickets), self, chunk) for chunk in chunks])

    def _begin(self, tasks: list[Task]) -> list[Task]:
        self.built.clear()
        self.reports.clear()
        self.ended = self.failed = None
        self.spoiled = False
        self.tasks = tasks
        return tasks.copy()

    def whole(self) -> LocalOutcome | None:
        """The batch, of what was answered; None where it must be built in one piece."""
        if self.ended is not None:
            return self.ended
        if self.failed is not None:
            return self.failed
        if self.spoiled:
            return None
        if not self.built:
            return Passed(tuple(self.reports))
        pieces = [self.built[row] for row in sorted(self.built)]
        layout = pieces[0].layout
        if any(piece.layout is not layout and piece.layout != layout for piece in pieces):
            return None
        whole = pieces[0] if len(pieces) == 1 else Built.joined(pieces)
        if self.reports:
            whole = whole._replace(reports=(*whole.reports, *self.reports))
        return whole

    def end(self, ended: Ended) -> None:
        """Takes note that lanes end before it."""
        before = self.ended or Ended({})
        self.ended = Ended({**before.totals, **ended.totals}, [*before.bad, *ended.bad])

    def fail(self, failure: Failure) -> None:
        """Takes note of a failure of one of its chunks; that of the first row counts."""
        if self.failed is None or _position(failure) < _position(self.failed):
            self.failed = failure


LocalOutcome: TypeAlias = Built | Ended | Passed | Failure
"""What a batch has become, before it is leased to whoever asked for it."""


def _position(failure: Failure) -> int:
    return failure.place[0] if failure.place is not None else -1
