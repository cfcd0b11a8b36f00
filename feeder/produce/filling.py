"""How records, or a ready batch, get into a slot: laid out, stacked or copied, or made over whole.

Guarantees:
    * What lies in the slot depends on the recipe, the chunk and the records alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import optree

from feeder.plan.chunks import Chunk, StreamChunk
from feeder.produce.ambient import Ambient, Scope
from feeder.produce.bad import BadRecord
from feeder.produce.built import Built
from feeder.produce.clock import HERE, Clock
from feeder.produce.columns import Columns, as_array
from feeder.produce.info import get_worker_info
from feeder.produce.layout import Buffer, Layout, LeafSpec
from feeder.produce.recipe import Recipe
from feeder.produce.unsettled import Taken

_LAYOUTS_KEPT = 64
"""Layouts remembered; a `collate` that pads to the longest record makes many."""


class Reserve(Protocol):
    """Finds memory for a batch, once its size is known."""

    def __call__(self, num_bytes: int, /) -> tuple[Buffer, int]:
        """Returns a buffer, and the offset from which ``num_bytes`` of it are free."""
        ...


class Filling:
    """Fills slots, by one recipe.

    Args:
        recipe: Its `collate` and batch transforms.
        ambient: As of `Builder`.
    """

    def __init__(self, recipe: Recipe, ambient: Ambient | None) -> None:
        info = get_worker_info()
        self._worker = HERE if info is None else info.worker_id
        self._collate = recipe.collate
        self._batch_transforms = recipe.batch_transforms
        self._ambient = ambient
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._like: tuple[Columns, Layout] | None = None  # those of the stream's last batch

    def fill_at_once(
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
                return self._put(columns, enumerate(records), chunk, reserve, clock, bad)
            self._like = columns, self.layout(columns.treespec, columns.specs, chunk)
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
        return self.finish(layout, arrays, [], chunk, clock, bad)

    def fill(
        self,
        rows: Iterator[tuple[int, Any]],
        chunk: Chunk,
        reserve: Reserve,
        clock: Clock,
        bad: list[BadRecord],
    ) -> Built:
        """Records one by one, every leaf straight into its row of the slot."""
        row, first = next(rows)
        all_rows = itertools.chain([(row, first)], rows)
        return self._put(Columns(first, chunk), all_rows, chunk, reserve, clock, bad)

    def _put(
        self,
        columns: Columns,
        rows: Iterable[tuple[int, Any]],
        chunk: Chunk,
        reserve: Reserve,
        clock: Clock,
        bad: list[BadRecord],
    ) -> Built:
        layout = self.layout(columns.treespec, columns.specs, chunk)
        arrays = own_rows(layout.arrays(*reserve(layout.num_bytes)), chunk)
        targets = columns.targets(arrays)
        places: Sequence[int] = range(chunk.num_rows)
        if isinstance(chunk, StreamChunk):
            places = chunk.pattern.rows.tolist()
        for row, record in rows:
            columns.put(row, places[row], record, targets)
        objects = [
            target
            for target, spec in zip(targets, columns.specs, strict=True)
            if spec.dtype is None
        ]
        return self.finish(layout, arrays, objects, chunk, clock, bad)

    def join(
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
        return self.transform_batch(batch, chunk, reserve, clock, bad)

    def transform_batch(
        self, batch: Any, chunk: Chunk, reserve: Reserve, clock: Clock, bad: list[BadRecord]
    ) -> Built:
        """A ready batch, through the batch transforms."""
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
        return self.copy(batch, chunk, reserve, clock, bad)

    def copy(
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
        layout = self.layout(treespec, specs, chunk)
        arrays = own_rows(layout.arrays(*reserve(layout.num_bytes)), chunk)
        for target, value in zip(arrays, values, strict=False):  # a mask may follow
            if target is not None:
                target[...] = value
        objects = [leaf for leaf, value in zip(leaves, values, strict=True) if value is None]
        return self.finish(layout, arrays, objects, chunk, clock, bad)

    def layout(
        self, treespec: optree.PyTreeSpec, specs: tuple[LeafSpec, ...], chunk: Chunk
    ) -> Layout:
        """Where the leaves of a batch lie, and its mask, where it gains one."""
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

    def finish(
        self,
        layout: Layout,
        arrays: list[Any],
        objects: list[Any],
        chunk: Chunk,
        clock: Clock,
        bad: Sequence[BadRecord] = (),
    ) -> Built:
        """What there is to say of a batch, or of a part of it, once it lies in the slot."""
        if chunk.mask is not None:
            of = chunk.pattern.places if isinstance(chunk, StreamChunk) else slice(None)
            arrays[-1][of] = chunk.mask
        return Built(layout, objects, clock.times(self._worker), bad)

    def _key(self, chunk: Chunk) -> None:
        if self._ambient is not None:
            self._ambient.key(Scope.BATCH, chunk.step)


def own_rows(arrays: list[Any], chunk: Chunk) -> list[Any]:
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
