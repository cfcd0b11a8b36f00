"""Where in its recipe a batch is, and how long it was in each stage."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

HERE, SEVERAL = -1, -2
"""In the place of a worker's number: the batch was built in the user's thread; by several."""


class StageTimes(NamedTuple):
    """What one batch, or a chunk of it, took: nanoseconds of `time.perf_counter_ns`.

    That clock is the same in all processes of a machine.

    Attributes:
        read: In this stage of its recipe.
        transform: Likewise.
        collate: Likewise.
        batch_transform: Likewise.
        began: When it was begun.
        ended: When it lay in its slot.
        worker: Number of the worker that built it; or `HERE`, or `SEVERAL`.
    """

    read: int
    transform: int
    collate: int
    batch_transform: int
    began: int
    ended: int
    worker: int

    @classmethod
    def joined(cls, chunks: Sequence[StageTimes]) -> StageTimes:
        """Those of a batch, of its chunks: sums, from the first one's beginning to the last end."""
        read, transform, collate, batch_transform, began, ended, _ = zip(*chunks, strict=True)
        return cls(
            sum(read),
            sum(transform),
            sum(collate),
            sum(batch_transform),
            min(began),
            max(ended),
            SEVERAL,
        )


class Clock:
    """Runs while one batch is built.

    Attributes:
        stage: The stage it is in.
        row: The row that is being worked on; None where it is the whole batch.
        place: Position, shard and number of the record of a stream that user code failed at.
    """

    __slots__ = ("_began", "_since", "_spent", "place", "row", "stage")

    def __init__(self) -> None:
        self.stage = "read"
        self.row: int | None = None
        self.place: tuple[int, int, int] | None = None
        self._spent = {"read": 0, "transform": 0, "collate": 0, "batch_transform": 0}
        self._began = self._since = perf_counter_ns()

    def enter(self, stage: str, row: int | None = None) -> None:
        """Says that a stage begins, or goes on with another row."""
        now = perf_counter_ns()
        self._spent[self.stage] += now - self._since
        self._since = now
        self.stage = stage
        self.row = row

    def fail(self, stage: str, position: int, shard: int, number: int) -> None:
        """Says at which record of a stream, and in which stage, user code failed."""
        self.stage = stage
        self.place = (position, shard, number)

    def times(self, worker: int) -> StageTimes:
        """What each stage took until now, when a worker has built the batch."""
        self.enter(self.stage)
        read, transform, collate, batch_transform = self._spent.values()
        return StageTimes(
            read, transform, collate, batch_transform, self._began, self._since, worker
        )
