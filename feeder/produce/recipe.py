"""What builds a batch: read → transform → collate into the slot. The only user code that runs.

Guarantees:
    * A batch depends on the recipe and its chunk alone: not on the process, the thread, the
      slot, or the batches built before it.
    * User code gets records of its own: changing containers and arrays in place changes no
      source. (Objects of other types are handed over as the source gave them.)
    * Whatever user code raises is returned as a `Failure`, with its stage and row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import optree

from feeder.plan.batches import Chunk
from feeder.plan.rng import RecordRng
from feeder.produce.ambient import Ambient, Scope
from feeder.produce.clock import Clock, StageTimes
from feeder.produce.columns import Columns, as_array, check_rows
from feeder.produce.failures import Failure
from feeder.produce.layout import Buffer, Layout, LeafSpec
from feeder.produce.transforms import RandomMap
from feeder.sources import ArraySource, RandomAccess

_LAYOUTS_KEPT = 64
"""Layouts remembered; a `collate` that pads to the longest record makes many."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a worker must know; pickled once.

    Attributes:
        source: Where records come from.
        transforms: Per record, in order: callables, or `RandomMap`.
        collate: List of records → batch; None: stack every leaf.
        batch_transforms: Per local batch, in order.
        seed: Key of all randomness.
    """

    source: RandomAccess
    transforms: tuple[Any, ...]
    collate: Callable[[list[Any]], Any] | None
    batch_transforms: tuple[Callable[[Any], Any], ...]
    seed: int


class Reserve(Protocol):
    """Finds memory for a batch, once its size is known."""

    def __call__(self, num_bytes: int, /) -> tuple[Buffer, int]:
        """Returns a buffer, and the offset from which ``num_bytes`` of it are free."""
        ...


class Built(NamedTuple):
    """A batch that lies in its slot.

    Attributes:
        layout: Where its leaves are.
        objects: Its leaves that are no arrays of numbers, in order; pickled, or empty, where they
            come from a worker.
        times: What it took.
    """

    layout: Layout
    objects: list[Any] | bytes
    times: StageTimes


class Builder:
    """Builds batches by one recipe, one at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self._source = recipe.source
        self._collate = recipe.collate
        self._batch_transforms = recipe.batch_transforms
        self._transforms: list[tuple[int, Any, bool]] = [
            (place, transform.function, True)
            if isinstance(transform, RandomMap)
            else (place, transform, False)
            for place, transform in enumerate(recipe.transforms)
        ]
        self._rng = RecordRng(recipe.seed)
        self._ambient = Ambient(recipe.seed)
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._gathered: dict[int, Layout] = {}  # by rows: what an array source's batch looks like
        self._whole = hasattr(self._source, "read")  # the source returns batches, not records
        self._direct = isinstance(self._source, ArraySource) and not (
            recipe.transforms
            or recipe.collate
            or recipe.batch_transforms
            or any(array.dtype.hasobject for array in self._source.arrays)
        )

    @property
    def runs_user_code(self) -> bool:
        """Whether building a batch calls anything but this library."""
        return not self._direct

    def build(self, chunk: Chunk, reserve: Reserve) -> Built | Failure:
        """Builds the batch of ``chunk`` in the memory that ``reserve`` finds.

        Args:
            chunk: Which records it holds.
            reserve: Called with the bytes that the batch needs; it may raise. Called again where
                the batch is built again, and the memory found before is needed no longer.
        """
        if self._direct:
            return self._attempt(chunk, reserve)
        self._ambient.begin()
        outcome = self._attempt(chunk, reserve)
        if self._ambient.drew_unkeyed():
            outcome = self._attempt(chunk, reserve)
        return outcome

    def _attempt(self, chunk: Chunk, reserve: Reserve) -> Built | Failure:
        clock = Clock()
        try:
            if self._direct:
                return self._gather(chunk, reserve, clock)
            if self._collate is None and not self._batch_transforms:
                if self._whole and not self._transforms:
                    return self._copy(self._read(chunk, clock), chunk, reserve, clock)
                return self._stack(chunk, reserve, clock)
            return self._copy(self._transformed(chunk, clock), chunk, reserve, clock)
        except (Exception, SystemExit) as error:
            return Failure.of(error, clock.stage, clock.row)

    def _gather(self, chunk: Chunk, reserve: Reserve, clock: Clock) -> Built:
        """Rows of arrays: copied once, from the source into the slot."""
        source = self._source
        assert isinstance(source, ArraySource)
        rows = len(chunk.indices)
        layout = self._gathered.get(rows)
        if layout is None:
            specs = [LeafSpec((rows, *array.shape[1:]), array.dtype) for array in source.arrays]
            layout = self._layout(source.treespec, tuple(specs), chunk)
            self._gathered[rows] = layout
        arrays = layout.arrays(*reserve(layout.num_bytes))
        source.read_into(chunk.indices, arrays[: len(source.arrays)])  # type: ignore[arg-type]
        return self._finish(layout, arrays, [], chunk, clock)

    def _stack(self, chunk: Chunk, reserve: Reserve, clock: Clock) -> Built:
        """Records one by one, every leaf straight into its row of the slot."""
        records = self._records(chunk, clock)
        first = next(records)
        columns = Columns(first, chunk)
        layout = self._layout(columns.treespec, columns.specs, chunk)
        arrays = layout.arrays(*reserve(layout.num_bytes))
        targets = columns.targets(arrays)
        columns.put(0, first, targets)
        for row, record in enumerate(records, start=1):
            columns.put(row, record, targets)
        objects = [
            target
            for target, spec in zip(targets, columns.specs, strict=True)
            if spec.dtype is None
        ]
        return self._finish(layout, arrays, objects, chunk, clock)

    def _copy(self, batch: Any, chunk: Chunk, reserve: Reserve, clock: Clock) -> Built:
        """A ready batch, copied into the slot."""
        clock.enter("collate")
        leaves, treespec = optree.tree_flatten(batch)
        values = [as_array(leaf) for leaf in leaves]
        specs = tuple(
            LeafSpec((), None) if value is None else LeafSpec(value.shape, value.dtype)
            for value in values
        )
        layout = self._layout(treespec, specs, chunk)
        arrays = layout.arrays(*reserve(layout.num_bytes))
        for target, value in zip(arrays, values, strict=False):  # a mask may follow
            if target is not None:
                target[...] = value
        objects = [leaf for leaf, value in zip(leaves, values, strict=True) if value is None]
        return self._finish(layout, arrays, objects, chunk, clock)

    def _transformed(self, chunk: Chunk, clock: Clock) -> Any:
        """The batch in memory of its own, through `collate` and the batch transforms."""
        if self._collate is not None:
            records = list(self._records(chunk, clock))
            clock.enter("collate")
            self._ambient.key(Scope.BATCH, chunk.step)
            batch = self._collate(records)
        elif self._whole and not self._transforms:
            batch = self._read(chunk, clock)
        else:
            records = list(self._records(chunk, clock))
            clock.enter("collate")
            columns = Columns(records[0], chunk)
            targets = columns.targets(
                [
                    None if dtype is None else np.empty(shape, dtype)
                    for shape, dtype in columns.specs
                ]
            )
            for row, record in enumerate(records):
                columns.put(row, record, targets)
            batch = columns.treespec.unflatten(targets)
        if self._collate is None:
            self._ambient.key(Scope.BATCH, chunk.step)
        for transform in self._batch_transforms:
            clock.enter("batch_transform")
            batch = transform(batch)
        return batch

    def _read(self, chunk: Chunk, clock: Clock) -> Any:
        self._ambient.key(Scope.READ, int(chunk.positions[0]))
        batch = self._source.read(chunk.indices)  # type: ignore[attr-defined]
        check_rows(batch, chunk)
        clock.enter("collate")
        return batch

    def _records(self, chunk: Chunk, clock: Clock) -> Iterator[Any]:
        """Reads and transforms the records in order; the clock then runs for the collation."""
        indices = chunk.indices.tolist()
        whole: Iterator[Any] | None = None
        if self._whole:
            leaves, treespec = optree.tree_flatten(self._read(chunk, clock))
            whole = (treespec.unflatten(rows) for rows in zip(*leaves, strict=True))
        elif hasattr(self._source, "__getitems__"):
            self._ambient.key(Scope.READ, int(chunk.positions[0]))
            listed = list(self._source.__getitems__(indices))
            if len(listed) != len(indices):
                raise ValueError(
                    f"`__getitems__(indices)` must return {len(indices)} records for "
                    f"{len(indices)} indices, got {len(listed)}"
                )
            whole = iter(listed)
        for row, (index, position) in enumerate(
            zip(indices, chunk.positions.tolist(), strict=True)
        ):
            clock.enter("read", row if whole is None else None)
            self._ambient.key(Scope.RECORD, position)
            record = self._source[index] if whole is None else next(whole)
            if not self._whole and (self._transforms or self._collate):
                record = _own(record)
            if self._transforms:
                clock.enter("transform", row)
                for place, function, random in self._transforms:
                    if random:
                        record = function(record, self._rng.at(position, place))
                    else:
                        record = function(record)
                    if record is None:
                        raise TypeError(
                            f"`transforms[{place}]` must return the new record, got None; "
                            "does it end without a return?"
                        )
            clock.enter("collate", row)
            yield record

    def _layout(
        self, treespec: optree.PyTreeSpec, specs: tuple[LeafSpec, ...], chunk: Chunk
    ) -> Layout:
        mask_rows = None if chunk.mask is None else len(chunk.mask)
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
    ) -> Built:
        if chunk.mask is not None:
            arrays[-1][...] = chunk.mask
        return Built(layout, objects, clock.times())


def _own(record: Any) -> Any:
    """The record with containers and arrays of its own.

    A source may hand out what it holds. User code that then changes a record in place would
    change the source, and with it every batch to come that holds this record.
    """
    return optree.tree_map(
        lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, record
    )
