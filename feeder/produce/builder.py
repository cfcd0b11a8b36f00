"""What builds a batch: read → transform → collate into the slot. The only user code that runs.

Guarantees:
    * A batch depends on the recipe and its chunk alone: not on the process, the thread, the
      slot, or the batches built before it.
    * Whatever user code raises is returned as a `Failure`, with its stage and row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import optree

from feeder.plan.chunks import Chunk, PlannedChunk, StreamChunk
from feeder.produce.ambient import Ambient, Scope
from feeder.produce.bad import BadRecord
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.clock import HERE, Clock
from feeder.produce.columns import Columns, as_array
from feeder.produce.failures import Failure, tell_origin
from feeder.produce.info import get_worker_info
from feeder.produce.layout import Buffer, Layout, LeafSpec
from feeder.produce.recipe import Recipe
from feeder.produce.records import Records
from feeder.produce.session import GivenUpError, Locate, from_the_beginning
from feeder.produce.stream_records import StreamRecords
from feeder.produce.streams import Streams
from feeder.produce.unsettled import Taken
from feeder.sources.in_place import Placed, in_place
from feeder.sources.protocol import RandomAccess, offers_list
from feeder.sources.stream import Stream

_LAYOUTS_KEPT = 64
"""Layouts remembered; a `collate` that pads to the longest record makes many."""


class Reserve(Protocol):
    """Finds memory for a batch, once its size is known."""

    def __call__(self, num_bytes: int, /) -> tuple[Buffer, int]:
        """Returns a buffer, and the offset from which ``num_bytes`` of it are free."""
        ...


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
        info = get_worker_info()
        self._worker = HERE if info is None else info.worker_id
        self._collate = recipe.collate
        self._batch_transforms = recipe.batch_transforms
        self._skips = recipe.on_bad_record == "skip"
        self._ambient = ambient
        self._source = source = recipe.source
        self._raises = recipe.on_bad_record == "raise"
        self._placed: Placed | None = None
        self._ready = self._reads_at_once = False
        self._streams: Streams | None = None
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._like: tuple[Columns, Layout] | None = None  # those of the stream's last batch
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
                    return self._copy(batch, chunk, reserve, clock)
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
                built = self._join(rows, chunk, reserve, clock, bad)
            elif self._of_stream.as_read:
                built = self._fill_at_once(records, chunk, taken, reserve, clock, bad)
            else:
                built = self._fill(rows, chunk, reserve, clock, bad)
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
            layout = self._layout(placed.treespec, specs, chunk)
            self._gathered[rows] = layout
        arrays = _own_rows(layout.arrays(*reserve(layout.num_bytes)), chunk)
        placed.source.read_into(chunk.indices, arrays[: len(placed.specs)])
        return self._finish(layout, arrays, [], chunk, clock)

    def _stack(self, chunk: PlannedChunk, reserve: Reserve, clock: Clock) -> Built:
        """Records one by one, every leaf straight into its row of the slot."""
        bad: list[BadRecord] = []
        rows = self._records.rows(chunk, clock, bad)
        if self._skips:
            rows, chunk = _without_gaps(list(rows), chunk)
        return self._fill(rows, chunk, reserve, clock, bad)

    def _fill_at_once(
        self,
        records: list[Any],
        chunk: StreamChunk,
        taken: Taken,
        reserve: Reserve,
        clock: Clock,
        bad: list[BadRecord],
    ) -> Built:
        """Records of a stream that nothing is done to; small ones leaf by leaf."""
        clock.enter("collate")
        if self._like is None or not self._like[0].fit(records[0], chunk):
            columns = Columns(records[0], chunk)
            if not columns.are_small:
                return self._fill(enumerate(records), chunk, reserve, clock, bad)
            self._like = columns, self._layout(columns.treespec, columns.specs, chunk)
        columns, layout = self._like
        arrays = layout.arrays(*reserve(layout.num_bytes))
        targets = [array for array in arrays if array is not None]  # all of them
        if columns.fill(records, chunk.pattern.places, targets):
            if taken.records is records:
                taken.records = columns.stacked(chunk.pattern.places, targets)
        else:
            places = chunk.pattern.rows.tolist()
            for row, record in enumerate(records):  # which of them differs, and how?
                columns.put(row, places[row], record, targets)
        return self._finish(layout, arrays, [], chunk, clock, bad)

    def _fill(
        self,
        rows: Iterator[tuple[int, Any]],
        chunk: Chunk,
        reserve: Reserve,
        clock: Clock,
        bad: list[BadRecord],
    ) -> Built:
        row, first = next(rows)
        columns = Columns(first, chunk)
        layout = self._layout(columns.treespec, columns.specs, chunk)
        arrays = _own_rows(layout.arrays(*reserve(layout.num_bytes)), chunk)
        targets = columns.targets(arrays)
        places: Sequence[int] = range(chunk.num_rows)
        if isinstance(chunk, StreamChunk):
            places = chunk.pattern.rows.tolist()
        columns.put(row, places[row], first, targets)
        for row, record in rows:
            columns.put(row, places[row], record, targets)
        objects = [
            target
            for target, spec in zip(targets, columns.specs, strict=True)
            if spec.dtype is None
        ]
        return self._finish(layout, arrays, objects, chunk, clock, bad)

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
            return self._join(rows, chunk, reserve, clock, bad)
        return self._transform_batch(batch, chunk, reserve, clock, bad)

    def _join(
        self,
        rows: Iterator[tuple[int, Any]],
        chunk: Chunk,
        reserve: Reserve,
        clock: Clock,
        bad: list[BadRecord],
    ) -> Built:
        """Records joined by `collate`, or stacked, before the batch transforms."""
        records = [record for _, record in rows]
        clock.enter("collate")
        self._key(chunk)
        batch = self._collate(records) if self._collate else _stacked(records, chunk)
        if batch is None:
            raise TypeError(
                "`collate` must return the batch, got None; does it end without a return?"
            )
        return self._transform_batch(batch, chunk, reserve, clock, bad)

    def _transform_batch(
        self, batch: Any, chunk: Chunk, reserve: Reserve, clock: Clock, bad: list[BadRecord]
    ) -> Built:
        if self._collate is None:
            self._key(chunk)
        for place, transform in enumerate(self._batch_transforms):
            clock.enter("batch_transform")
            batch = transform(batch)
            if batch is None:
                raise TypeError(
                    f"`batch_transforms[{place}]` must return the new batch, got None; "
                    "does it end without a return?"
                )
        return self._copy(batch, chunk, reserve, clock, bad)

    def _copy(
        self,
        batch: Any,
        chunk: Chunk,
        reserve: Reserve,
        clock: Clock,
        bad: Sequence[BadRecord] = (),
    ) -> Built:
        """A ready batch, or a ready part of it, copied into the slot."""
        clock.enter("collate")
        leaves, treespec = optree.tree_flatten(batch)
        values = [as_array(leaf) for leaf in leaves]
        rows = (chunk.batch_rows,)
        specs = tuple(
            LeafSpec((), None)
            if value is None
            else LeafSpec(rows + value.shape[1:] if chunk.is_part else value.shape, value.dtype)
            for value in values
        )
        layout = self._layout(treespec, specs, chunk)
        arrays = _own_rows(layout.arrays(*reserve(layout.num_bytes)), chunk)
        for target, value in zip(arrays, values, strict=False):  # a mask may follow
            if target is not None:
                target[...] = value
        objects = [leaf for leaf, value in zip(leaves, values, strict=True) if value is None]
        return self._finish(layout, arrays, objects, chunk, clock, bad)

    def _layout(
        self, treespec: optree.PyTreeSpec, specs: tuple[LeafSpec, ...], chunk: Chunk
    ) -> Layout:
        mask_rows = None if chunk.mask is None else chunk.batch_rows
        key = (treespec, specs, mask_rows)
        layout = self._layouts.get(key)
        if layout is None:
            if mask_rows is not None and treespec.type is dict and "mask" in treespec.entries():
                raise ValueError(
                    "a batch must not have a leaf 'mask' of its own with `last_batch=\"pad\"`, "
                    "which adds one; give it another name in a transform"
                )
            if len(self._layouts) == _LAYOUTS_KEPT:
                self._layouts.clear()
            layout = self._layouts[key] = Layout.of(treespec, specs, mask_rows)
        return layout

    def _finish(
        self,
        layout: Layout,
        arrays: list[Any],
        objects: list[Any],
        chunk: Chunk,
        clock: Clock,
        bad: Sequence[BadRecord] = (),
    ) -> Built:
        if chunk.mask is not None:
            of = chunk.pattern.places if isinstance(chunk, StreamChunk) else slice(None)
            arrays[-1][of] = chunk.mask
        return Built(layout, objects, clock.times(self._worker), bad)

    def _key(self, chunk: Chunk) -> None:
        if self._ambient is not None:
            self._ambient.key(Scope.BATCH, chunk.step)


def _own_rows(arrays: list[Any], chunk: Chunk) -> list[Any]:
    """The rows of a chunk in the arrays of its batch."""
    if not chunk.is_part or isinstance(chunk, StreamChunk):
        return arrays
    rows = slice(chunk.first_row, chunk.first_row + len(chunk.indices))
    return [None if array is None else array[rows] for array in arrays]


def _stacked(records: list[Any], chunk: Chunk) -> Any:
    """Records stacked leaf by leaf, in memory of its own."""
    columns = Columns(records[0], chunk)
    targets = columns.targets(
        [None if dtype is None else np.empty(shape, dtype) for shape, dtype in columns.specs]
    )
    for row, record in enumerate(records):
        columns.put(row, row, record, targets)
    return columns.treespec.unflatten(targets)


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
