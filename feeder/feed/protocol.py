"""What an iterator asks of whatever feeds it: local batches in step order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from feeder.plan.chunks import Chunk
from feeder.plan.schedule import Cursor
from feeder.plan.state import Saved
from feeder.produce.bad import BadRecord
from feeder.produce.failures import Failure
from feeder.produce.session import LocalBatch


class Fed(NamedTuple):
    """What has become of a batch.

    Attributes:
        chunk: Its rows on this process.
        num_rows: Rows of the global batch.
        outcome: The batch, or why there is none.
        after: What `Feed.commit` needs to know of it.
        bad: Records left out at the ends of shards before it.
        called: When a callable was asked for its records in this process, and when it had given
            them: nanoseconds of `time.perf_counter_ns`; None: there is no callable.
    """

    chunk: Chunk
    num_rows: int
    outcome: LocalBatch | Failure
    after: Any
    bad: Sequence[BadRecord] = ()
    called: tuple[int, int] | None = None


class Feed(Protocol):
    """The local batches of one run, in step order.

    Attributes:
        alone: Whether memory is so short that nothing is asked for ahead.
        error: Why the batch after those under way cannot be planned; None: it can, or is none.
    """

    alone: bool
    error: BaseException | None

    def __len__(self) -> int:
        """Batches asked for and not given out."""
        ...

    @property
    def step(self) -> int:
        """Step of the batch that is to be delivered next."""
        ...

    def cursor(self) -> Cursor:
        """Where that batch begins, for a state."""
        ...

    def submit(self, ahead: bool = False, /) -> bool:
        """Asks for more, once half of the window is free; False: nothing is under way.

        Args:
            ahead: Whether nobody waits for it yet.
        """
        ...

    def next(self) -> Fed | None:
        """The next batch; None where it has not come."""
        ...

    def poll(self) -> None:
        """Moves things on, without waiting."""

    def wait(self) -> None:
        """Waits until something has come.

        Raises:
            FeederError: Nothing can come any more.
        """

    def commit(self, fed: Fed) -> None:
        """A batch, the next in order, is delivered: the state speaks of what follows."""

    def restart(self) -> None:
        """Gives up whatever is under way, and begins anew with the batch to be delivered next."""

    def left_out(self) -> Sequence[BadRecord]:
        """Once the run is over: records left out after its last batch; told once."""
        ...

    def close(self) -> None:
        """Gives up whatever is under way. Idempotent."""


class Feeds(Protocol):
    """Makes the feeds of one loader."""

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start; None: no end, or none known."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ; None: no end, or none known."""
        ...

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began; for the state."""
        ...

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins in a run from the start; None: that is not known beforehand."""
        ...

    def open(self, start: Cursor, last_epoch: int | None = None, /) -> Feed:
        """A feed from a place on, to the end of an epoch, or of the run."""
        ...

    def resumed(self, saved: Saved, epoch: int | None = None, /) -> tuple[Feeds, Cursor]:
        """What makes feeds, and the place, that go on where a state was saved.

        Args:
            saved: What the state says.
            epoch: The epoch that it must be of; None: any.

        Raises:
            StateError: The state contradicts itself, or is of another epoch.
        """
        ...

    def batch(self, step: int) -> Any:
        """The local batch of a step of a run from the start, built here and now.

        Raises:
            ValueError: There is no such step.
            Exception: Whatever user code raises.
        """
        ...
