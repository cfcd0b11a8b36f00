"""What every producer offers an iterator: batches asked for in order, arriving in any order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from feeder.plan.chunks import Chunk
from feeder.produce.bad import BadRecord
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.clock import StageTimes
from feeder.produce.failures import Failure
from feeder.produce.layout import Buffer
from feeder.produce.snapshot import Report, Snapshot
from feeder.produce.workforce import Workforce


class GivenUpError(BaseException):
    """There is no slot for this batch, or nobody wants it; no error of user code."""


class LocalBatch:
    """A batch in its slot, and the lease on it.

    Attributes:
        times: What each stage of the recipe took, and when.
        parts: The same of each of its chunks, where there are several.
        num_bytes: Bytes of its arrays.
        bad: Records that were left out or replaced.
        reports: What reading a stream said.
    """

    __slots__ = ("_built", "_memory", "bad", "num_bytes", "parts", "reports", "times")

    def __init__(self, built: Built, memory: Buffer) -> None:
        self._built = built
        self._memory = memory
        self.times: StageTimes = built.times
        self.parts: Sequence[StageTimes] = built.parts
        self.num_bytes: int = built.layout.num_bytes
        self.bad: Sequence[BadRecord] = built.bad
        self.reports: Sequence[Report] = built.reports

    def tree(self) -> Any:
        """The batch: NumPy arrays over the slot, which they keep from being used again.

        Raises:
            Exception: Whatever unpickling the user's objects raises.
        """
        objects = self._built.objects
        if isinstance(objects, bytes):
            objects = pickle.loads(objects) if objects else []
        elif isinstance(objects, tuple):  # of chunks, one after the other
            chunks = [pickle.loads(part) for part in objects]
            objects = [np.concatenate(column) for column in zip(*chunks, strict=True)]
            if self._built.rows:
                order = np.argsort(np.concatenate(self._built.rows))
                objects = [column[order] for column in objects]
        return self._built.layout.batch(self._memory, objects)


Outcome: TypeAlias = LocalBatch | Failure | Ended | Passed


Locate: TypeAlias = Callable[[list[int]], list[tuple[Snapshot, int]]]
"""Maps numbers of lanes to where each is to be opened, and the offset that is settled."""


def from_the_beginning(lanes: list[int]) -> list[tuple[Snapshot, int]]:
    """A run in which no lane was opened before."""
    return [(Snapshot(), 0)] * len(lanes)


class Session(Protocol):
    """One iterator's work at a producer. Several sessions may be open at once."""

    def submit(self, chunk: Chunk) -> None:
        """Asks for a batch."""

    def poll(self) -> None:
        """Moves things on, without waiting."""

    def wait(self) -> None:
        """Returns once there is something to take.

        Raises:
            FeederError: Nothing can come any more.
        """

    def take(self) -> list[tuple[int, Outcome]]:
        """The (step, outcome) pairs that came since the last call."""
        ...

    def renew(self) -> None:
        """Gives up all that was asked for and not taken, and goes on."""

    def close(self) -> None:
        """Gives up all that was asked for and not taken, for good."""


class Producer(Protocol):
    """Builds batches; owned by one loader, shared by its iterators."""

    @property
    def window(self) -> int:
        """Batches that one session should have under way."""
        ...

    def workforce(self) -> Workforce:
        """Who builds them now."""
        ...

    def start(self) -> None:
        """Starts workers, so that they are ready by the time of the first batch; never waits.

        Raises:
            FeederError: They cannot be started.
        """

    def session(self, locate: Locate | None = None) -> Session:
        """Opens a session.

        Args:
            locate: Says where the lanes of a stream are to be opened; from any thread.
        """
        ...

    def close(self) -> None:
        """Ends all processes and gives all memory back. Idempotent."""
