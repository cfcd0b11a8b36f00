"""What a batch went through, when, and where: what a picture of the last steps is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

STEPS_KEPT = 1000
"""Steps that a timeline shows, at most: the last ones delivered."""

Stage: TypeAlias = Literal[
    "read", "transform", "collate", "batch_transform", "ready", "place", "wait", "step"
]
"""What is done, or waited for, in a `Span`."""


class Span(NamedTuple):
    """A stretch of time in one lane.

    ========================  ==================================================================
    lane                      stages
    ========================  ==================================================================
    ``"worker 0"``, …         ``read``, ``transform``, ``collate``, ``batch_transform``: a worker
                              builds a batch, or a chunk of it. Where it goes from record to
                              record, reading and transforming take turns; each is drawn once,
                              with its sum, one after the other from the chunk's beginning.
    ``"this process"``        the same, of batches that are built here (``num_workers=0``), and
                              ``read``: a `FromCallable` is called
    ``"collector"``           ``ready``: the batch is built, and lies ahead of its turn. These
                              overlap: as many as do at one moment are ready at that moment
    ``"place"``               ``place``: it is put on the devices
    ``"user"``                ``wait``: the loop waits in ``next()`` for the batch;
                              ``step``: the loop works on it, until its next ``next()``
    ========================  ==================================================================

    Spans of one lane do not overlap but in ``"collector"``; those of ``"place"`` lie within a
    ``wait``, of this step or of one before it, and so do those of ``"this process"``.

    Attributes:
        lane: Who.
        stage: What.
        step: Of which batch.
        began_s: Seconds from the iterator's first ``next()``; negative where workers began before.
        ended_s: Likewise.
    """

    lane: str
    stage: Stage
    step: int
    began_s: float
    ended_s: float


class MemorySample(NamedTuple):
    """Memory of a process at a moment.

    Attributes:
        at_s: Seconds from the iterator's first ``next()``.
        process: ``"parent"``, this process; ``"worker 0"``, …; ``"slots"``: what all of them share,
            the batches built ahead and those that the user keeps.
        num_bytes: Its resident bytes, without the memory that it shares with others.
    """

    at_s: float
    process: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A worker died, and was replaced.

    Attributes:
        at_s: When this was seen: seconds from the iterator's first ``next()``.
        process: Which: ``"worker 0"``, ….
    """

    at_s: float
    process: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The last `STEPS_KEPT` steps of an iterator.

    Attributes:
        spans: What happened, in the order of beginning.
        memory: Memory of the processes and of the slots, sampled now and then, in order of time.
        restarts: Deaths of workers, in order of time.
    """

    spans: tuple[Span, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    restarts: tuple[Restart, ...] = ()

    @property
    def lanes(self) -> tuple[str, ...]:
        """Lanes that have spans: workers by number, then collector, place and user."""
        return tuple(sorted({span.lane for span in self.spans}, key=_place))

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that the user got and that are shown, in order."""
        return tuple(span.step for span in self.spans if span.stage == "wait")


_LAST = ("this process", "collector", "place", "user")


def _place(lane: str) -> tuple[int, int]:
    if lane in _LAST:
        return 1 + _LAST.index(lane), 0
    return 0, int(lane.rpartition(" ")[2])
