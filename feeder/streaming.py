"""What the user asked of a stream: in which order its shards are read, and when it ends."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from feeder import arguments
from feeder.arrangement import Arrangement
from feeder.feed.reading import Reading
from feeder.feed.stream import StreamStages
from feeder.feed.streams import StreamFeeds
from feeder.place.ends import Job
from feeder.plan.batches import LocalRows, PositionPlanner
from feeder.plan.order import Indices
from feeder.plan.schedule import LAST_BATCH, MAX_POSITIONS, LastBatch, Schedule
from feeder.plan.state import Identity
from feeder.plan.stream import StreamPlanner
from feeder.plan.windows import Lanes, WindowShuffle
from feeder.produce.first_records import sampled
from feeder.produce.recipe import Recipe
from feeder.produce.stream_transforms import split
from feeder.sources.protocol import fingerprint_of
from feeder.sources.stream import Stream

_log = logging.getLogger("feeder")


@dataclass(frozen=True, slots=True)
class Streaming:
    """The order of a stream, as asked for and checked.

    Attributes:
        recipe: Whose source is the stream; says how its lanes are read.
        batch_size: Rows of a global batch.
        num_epochs: Passes; None: for ever.
        last_batch: What becomes of an epoch's last records.
        snapshot_every: Steps between snapshots of the shards' states.
    """

    recipe: Recipe
    batch_size: int
    num_epochs: int | None
    last_batch: LastBatch
    snapshot_every: int

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        num_epochs: Any,
        shuffle: Any,
        last_batch: Any,
        batch_size: Any,
        sampler: Any,
        batch_sampler: Any,
        snapshot_every: Any,
    ) -> Streaming:
        """Checks the arguments of a `DataLoader`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a value that cannot work, or needs random access.
        """
        assert isinstance(recipe.source, Stream)
        for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if given is not None:
                raise ValueError(
                    f"`{name}` must be left out with a stream, whose records are read in order, "
                    f"got {given!r}; give a source with len() and []"
                )
        if recipe.on_bad_record == "replace":
            raise ValueError(
                '`on_bad_record` must be "raise" or "skip" with a stream, got "replace": "skip" '
                "leaves the record out, and the next one of its shard takes the row"
            )
        if not isinstance(shuffle, bool | WindowShuffle):
            raise TypeError(
                f"`shuffle` must be True, False or a feeder.WindowShuffle with a stream, got "
                f"{shuffle!r}"
            )
        if num_epochs is not None:
            num_epochs = arguments.integer(
                "num_epochs", num_epochs, 1, "use None to go on for ever"
            )
        stream = recipe.source
        batch_size = arguments.integer("batch_size", batch_size, 1)
        lanes = Lanes(
            stream.num_shards,
            stream.cycle_length,
            batch_size,
            recipe.seed,
            WindowShuffle() if shuffle is True else shuffle or None,
        )
        return cls(
            replace(recipe, lanes=lanes),
            batch_size,
            num_epochs,
            arguments.choice("last_batch", last_batch, LAST_BATCH),
            arguments.integer("snapshot_every", snapshot_every, 1),
        )

    @property
    def stream(self) -> Stream:
        """The source."""
        assert isinstance(self.recipe.source, Stream)
        return self.recipe.source

    @property
    def last_epoch(self) -> int | None:
        """The epoch that nothing follows; None: there is none."""
        return None if self.num_epochs is None else self.num_epochs - 1

    @property
    def why_no_length(self) -> str:
        """Why there is no len(), for a message."""
        if self.stream.length is not None:
            return (
                "a Filter, a FlatMap or bad records make it another one than the stream's `length`"
            )
        return "the stream has no `length`"

    @property
    def why_no_epoch(self) -> str:
        """Why nobody knows where an epoch begins; for a message."""
        if self.stream.length is not None and self.last_batch == "rollover":
            return 'with `last_batch="rollover"` it begins within a batch: use iter(loader)'
        return f"{self.why_no_length}: use iter(loader)"

    @property
    def schedule(self) -> Schedule | None:
        """Steps and epochs; None: only reading can tell."""
        return self._planner.schedule

    @property
    def _planner(self) -> StreamPlanner:
        early, _ = split(self.recipe.transforms, self.recipe.on_bad_record == "skip")
        return StreamPlanner(
            self.stream.cycle_length,
            self.stream.block_length,
            self.batch_size,
            self.num_epochs,
            self.last_batch,
            self.stream.length,
            keeps_count=not early,
        )

    def _warn_of_shared_lanes(self, job: Job) -> None:
        planner = self._planner
        if shared := job.num_shared(planner.cycle, planner.batch_size):
            _log.warning(
                "%d of the %d shards that are read side by side are read by several processes, "
                "each for rows of its own; they read shards of their own where `cycle_length` is a "
                "multiple of the %d processes, and a divisor or a multiple of `batch_size`",
                shared,
                planner.num_lanes,
                len(job.service.processes),
            )

    def _check_rows(self, local_rows: LocalRows) -> None:
        """Refuses batches that are shorter at the end, where they might not be split."""
        if self.last_batch != "keep":
            return
        try:
            local_rows(1)
        except ValueError:
            raise ValueError(
                '`last_batch` must be "drop", "pad" or "rollover" where batches are split among '
                'devices or processes, with a stream, got "keep": the batch that ends an epoch may '
                'have any number of rows; use "pad"'
            ) from None

    def on(self, local_rows: LocalRows, job: Job | None) -> Arrangement:
        """The order, for the rows of this process.

        Args:
            local_rows: Maps the number of rows of a global batch to those of this process.
            job: The processes that read the stream together; None: there is but this one.

        Raises:
            ValueError: The batch that ends an epoch may not be split among processes.
        """
        self._check_rows(local_rows)
        if job is not None:
            self._warn_of_shared_lanes(job)
        schedule = Schedule(MAX_POSITIONS, self.batch_size, None, self.last_batch, endless=True)
        return Arrangement(
            self._identity,
            lambda producer: StreamFeeds(
                StreamStages(
                    Reading(self._planner, local_rows, job), producer, self.snapshot_every
                ),
                self.recipe,
            ),
            (sampled(self.recipe), PositionPlanner(schedule, _the_first, local_rows)),
        )

    @property
    def described(self) -> dict[str, Any]:
        """What else makes up the order, JSON-able: what another process can compare."""
        return {"num_epochs": self.num_epochs}

    @property
    def _identity(self) -> Identity:
        assert self.recipe.lanes is not None
        shuffle = self.recipe.lanes.shuffle
        return Identity(
            num_records=self.stream.length,
            batch_size=self.batch_size,
            seed=self.recipe.seed,
            shuffle=False if shuffle is None else asdict(shuffle),
            sampler={
                "kind": "stream",
                "num_shards": self.stream.num_shards,
                "cycle_length": self.stream.cycle_length,
                "block_length": self.stream.block_length,
            },
            last_batch=self.last_batch,
            source=fingerprint_of(self.stream),
        )


def _the_first(positions: Indices) -> Indices:
    return np.zeros_like(positions)
