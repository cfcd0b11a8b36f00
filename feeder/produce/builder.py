"""What builds a batch: read → transform → collate into the slot. The only user code that runs.

Guarantees:
    * A batch depends on the recipe and its chunk alone: not on the process, the thread, the
      slot, or the batches built before it.
    * Whatever user code raises is returned as a `Failure`, with its stage and row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from feeder.plan.chunks import Chunk, PlannedChunk, StreamChunk
from feeder.produce.ambient import Ambient, Scope
from feeder.produce.bad import BadRecord
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.clock import Clock
from feeder.produce.failures import Failure, tell_origin
from feeder.produce.filling import Filling, Reserve, own_rows
from feeder.produce.layout import Layout, LeafSpec
from feeder.produce.recipe import Recipe
from feeder.produce.records import Records
from feeder.produce.session import GivenUpError, Locate, from_the_beginning
from feeder.produce.stream_records import StreamRecords
from feeder.produce.streams import Streams
from feeder.sources.in_place import Placed, in_place
from feeder.sources.protocol import RandomAccess, offers_list
from feeder.sources.stream import Stream


class NotInPiecesError(Exception):
    """This chunk cannot be built by itself: the batch is to be built in one piece."""


class Builder:
    """Builds batches by one recipe, one at a time.

    Args:
        recipe: How.
        ambient: Sees to the global generators of `random` and `numpy.random`, which takes a process
            of its own, or a caller that uses `ambient.preserved`; None: they are left alone.
        streams: What is open of the source, where several builders share it.
    """

    def __init__(
        self, recipe: Recipe, ambient: Ambient | None, streams: Streams | None = None
    ) -> None:
        self._filling = Filling(recipe, ambient)
        self._collate = recipe.collate
        self._batch_transforms = recipe.batch_transforms
        self._skips = recipe.on_bad_record == "skip"
        self._ambient = ambient
        self._source = source = recipe.source
        self._raises = recipe.on_bad_record == "raise"
        self._placed: Placed | None = None
        self._ready = self._reads_at_once = False
        self._streams: Streams | None = None
        self._gathered: dict[
            int, Layout
        ] = {}  # by rows: what a batch looks like that is read in place
        if isinstance(source, Stream):
            self._streams = streams or Streams(recipe)
            self._of_stream = StreamRecords(recipe, self._ambient)
            return
        assert isinstance(source, RandomAccess)
        self._records = Records(
            source,
            recipe.transforms,
            recipe.seed,
            recipe.on_bad_record,
            bool(recipe.transforms or recipe.collate),
            self._ambient,
        )
        plain = not (recipe.transforms or recipe.collate or recipe.batch_transforms)
        self._placed = in_place(source) if plain else None
        self._ready = hasattr(source, "read") and not recipe.transforms and not recipe.collate
        self._reads_at_once = hasattr(source, "read") or offers_list(source)

    @property
    def keys_generators(self) -> bool:
        """Whether building a batch touches the global generators."""
        return self._placed is None and self._ambient is not None

    def build(
        self, chunk: Chunk, reserve: Reserve, locate: Locate = from_the_beginning
    ) -> Built | Ended | Passed | Failure:
        """Builds the batch of ``chunk``, or its part of it, in the memory that ``reserve`` finds.

        Args:
            chunk: Which records it holds.
            reserve: Called with the bytes that the batch needs; it may raise. Called again where
                the batch is built again, and the memory found before is needed no longer.
            locate: Says where lanes of a stream are to be opened; it may raise.
        """
        if self._placed is not None or self._ambient is None:
            return self._attempt(chunk, reserve, locate)
        self._ambient.begin()
        try:
            outcome = self._attempt(chunk, reserve, locate)
        except BaseException:  # given up, or interrupted: what was read so far is kept
            self._drew(self._ambient, chunk)
            raise
        if self._drew(self._ambient, chunk):
            outcome = self._attempt(chunk, reserve, locate)
        return outcome

    def _drew(self, ambient: Ambient, chunk: Chunk) -> bool:
        """Whether user code has drawn without a key; what it read of a stream is read again."""
        if not ambient.drew_unkeyed():
            return False
        if isinstance(chunk, StreamChunk):
            assert self._streams is not None
            self._streams.key_global(functools.partial(ambient.key, Scope.STREAM))
        return True

    def tell_busy(self, tell: Callable[[], None]) -> None:
        """Calls ``tell`` now and then while shards of a stream are read again."""
        if self._streams is not None:
            self._streams.tell_busy = tell

    def close(self) -> None:
        """Closes what is open of a stream."""
        if self._streams is not None:
            self._streams.close()

    def _attempt(
        self, chunk: Chunk, reserve: Reserve, locate: Locate
    ) -> Built | Ended | Passed | Failure:
        clock = Clock()
        try:
            if isinstance(chunk, StreamChunk):
                return self._read_stream(chunk, reserve, locate, clock)
            if self._placed is not None:
                try:
                    return self._gather(self._placed, chunk, reserve, clock)
                except Exception:
                    if self._raises:
                        raise  # else each bad record is found out by itself
            if chunk.is_part and self._reads_at_once and self._ambient and self._ambient.keyed:
                raise NotInPiecesError  # what is drawn while reading depends on the rows read
            if self._collate is not None or self._batch_transforms:
                return self._transform(chunk, reserve, clock)
            if self._ready:
                try:
                    batch = self._records.batch(chunk, clock)
                except Exception:
                    if self._raises:
                        raise
                else:
                    return self._filling.copy(batch, chunk, reserve, clock)
            return self._stack(chunk, reserve, clock)
        except (KeyboardInterrupt, GivenUpError):
            raise
        except BaseException as error:  # user code's: CancelledError, SystemExit and their like
            tell_origin(error, self._source, chunk, clock.row)
            return Failure.of(error, clock.stage, clock.row, clock.place)

    def _read_stream(
        self, chunk: StreamChunk, reserve: Reserve, locate: Locate, clock: Clock
    ) -> Built | Ended | Passed:
        """Records of a stream: all of them are read before the first one is transformed."""
        assert self._streams is not None
        run = self._streams.of(chunk)
        bad: list[BadRecord] = []
        found = run.read(chunk, locate, clock, bad)
        if isinstance(found, Ended):
            return found
        chunk, records, report, taken = found
        if not records:
            return Passed((report,))
        try:
            rows: Iterator[tuple[int, Any]] = enumerate(records)
            if not self._of_stream.as_read:
                rows = self._of_stream.rows(chunk, records, clock)
            if self._collate or self._batch_transforms:
                built = self._filling.join(rows, chunk, reserve, clock, bad)
            elif self._of_stream.as_read:
                built = self._filling.fill_at_once(records, chunk, taken, reserve, clock, bad)
            else:
                built = self._filling.fill(rows, chunk, reserve, clock, bad)
        except GivenUpError:
            run.take_back(report)
            raise
        of = (chunk.pattern.rows,) if chunk.is_part else ()
        return built._replace(reports=(report,), rows=of)

    def _gather(self, placed: Placed, chunk: PlannedChunk, reserve: Reserve, clock: Clock) -> Built:
        """Rows that the source itself writes into the slot."""
        rows = chunk.batch_rows
        layout = self._gathered.get(rows)
        if layout is None:
            specs = tuple(LeafSpec((rows, *spec.shape), spec.dtype) for spec in placed.specs)
            layout = self._filling.layout(placed.treespec, specs, chunk)
            self._gathered[rows] = layout
        arrays = own_rows(layout.arrays(*reserve(layout.num_bytes)), chunk)
        placed.source.read_into(chunk.indices, arrays[: len(placed.specs)])
        return self._filling.finish(layout, arrays, [], chunk, clock)

    def _stack(self, chunk: PlannedChunk, reserve: Reserve, clock: Clock) -> Built:
        """Records one by one, every leaf straight into its row of the slot."""
        bad: list[BadRecord] = []
        rows = self._records.rows(chunk, clock, bad)
        if self._skips:
            rows, chunk = _without_gaps(list(rows), chunk)
        return self._filling.fill(rows, chunk, reserve, clock, bad)

    def _transform(self, chunk: PlannedChunk, reserve: Reserve, clock: Clock) -> Built:
        """The batch in memory of its own, through `collate` and the batch transforms."""
        bad: list[BadRecord] = []
        batch: Any = None
        ready = self._ready
        if ready:
            try:
                batch = self._records.batch(chunk, clock)
            except Exception:
                if self._raises:
                    raise
                ready = False
        if not ready:
            rows = self._records.rows(chunk, clock, bad)
            if self._skips:
                rows, chunk = _without_gaps(list(rows), chunk)
            return self._filling.join(rows, chunk, reserve, clock, bad)
        return self._filling.transform_batch(batch, chunk, reserve, clock, bad)


def _without_gaps(
    rows: list[tuple[int, Any]], chunk: PlannedChunk
) -> tuple[Iterator[tuple[int, Any]], PlannedChunk]:
    """Rows and chunk without the rows that were left out.

    Raises:
        NotInPiecesError: The other rows of the batch would have to move up.
    """
    if len(rows) < len(chunk.indices):
        if chunk.is_part:
            raise NotInPiecesError
        kept = [row for row, _ in rows]
        chunk = replace(
            chunk,
            positions=chunk.positions[kept],
            indices=chunk.indices[kept],
            mask=None if chunk.mask is None else chunk.mask[kept],
        )
    return enumerate(record for _, record in rows), chunk
