"""Where in its recipe a batch is, and how long it was in each stage."""

from __future__ import annotations

from time import perf_counter_ns
from typing import NamedTuple


class StageTimes(NamedTuple):
    """Nanoseconds that one batch took in each stage of its recipe."""

    read: int
    transform: int
    collate: int
    batch_transform: int


class Clock:
    """Runs while one batch is built.

    Attributes:
        stage: The stage it is in.
        row: The row that is being worked on; None where it is the whole batch.
        place: Position, shard and number of the record of a stream that user code failed at.
    """

    __slots__ = ("_since", "_spent", "place", "row", "stage")

    def __init__(self) -> None:
        self.stage = "read"
        self.row: int | None = None
        self.place: tuple[int, int, int] | None = None
        self._spent = dict.fromkeys(StageTimes._fields, 0)
        self._since = perf_counter_ns()

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

    def times(self) -> StageTimes:
        """What each stage took until now."""
        self.enter(self.stage)
        return StageTimes(**self._spent)
