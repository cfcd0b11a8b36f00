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
from dataclasses import dataclass, field

from feeder.plan.batches import Chunk
from feeder.produce.built import Built
from feeder.produce.session import Outcome
from feeder.produce.slots import Slot


@dataclass(slots=True, eq=False, weakref_slot=True)
class Inbox:
    """Where one session's outcomes arrive.

    Attributes:
        arrived: (step, outcome) pairs that came and were not taken.
        closed: Whether nobody wants the others any more.
        awaited: Whether a thread waits for them: it has used up all that came before.
        restarts_before: Restarts of workers before it was opened.
    """

    arrived: list[tuple[int, Outcome]] = field(default_factory=list)
    closed: bool = False
    awaited: bool = False
    restarts_before: int = 0


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
    """

    ticket: int
    job: Job
    chunk: Chunk
    deaths: list[int] = field(default_factory=list)
    timeouts: int = 0
    restarts_before: int = 0


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
    """

    ticket: int
    chunk: Chunk
    inbox: weakref.ref[Inbox]
    in_one_piece: bool = False
    spoiled: bool = False
    num_bytes: int = 0
    over: bool = False
    slot: Slot | None = None
    tasks: list[Task] = field(default_factory=list)
    built: dict[int, Built] = field(default_factory=dict)

    def wanted_by(self) -> Inbox | None:
        """The inbox of whoever still waits for it."""
        inbox = self.inbox()
        return None if inbox is None or inbox.closed or self.over else inbox

    def begin(self, ticket: int) -> Task:
        """Makes one task of it."""
        task = Task(ticket, self, self.chunk)
        self.built.clear()
        self.spoiled = False
        self.tasks = [task]
        return task

    def split(self, num_chunks: int, ticket: int) -> list[Task]:
        """Makes several tasks of it, whose tickets are ``ticket`` and those that follow."""
        chunks = self.chunk.split(num_chunks)
        self.built.clear()
        self.spoiled = False
        self.tasks = [Task(ticket + number, self, chunk) for number, chunk in enumerate(chunks)]
        return self.tasks.copy()

    def whole(self) -> Built | None:
        """The batch, of what was answered; None where it must be built in one piece."""
        if self.spoiled:
            return None
        if len(self.built) == 1:
            return self.built[0]
        pieces = [self.built[row] for row in sorted(self.built)]
        if any(piece.layout != pieces[0].layout for piece in pieces):
            return None
        return Built.joined(pieces)
