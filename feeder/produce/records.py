"""The records of one chunk: read, transformed, and what becomes of bad ones.

Guarantees:
    * User code gets records of its own: changing containers and arrays in place changes no
      source. (Objects of other types are handed over as the source gave them.)
    * What a record becomes depends on the recipe, its index and its position alone; so does
      whether it is bad, and which record is then in its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree

from feeder.plan.chunks import PlannedChunk
from feeder.produce.ambient import Ambient, Scope
from feeder.produce.bad import BadRecord, OnBadRecord
from feeder.produce.clock import Clock
from feeder.produce.columns import check_rows
from feeder.produce.maps import MAX_ERROR, Maps, own
from feeder.produce.transforms import first_place
from feeder.sources.protocol import RandomAccess, offers_list


class Records:
    """Reads and transforms the records of chunks.

    Args:
        source: Where records come from.
        transforms: Per record, in order: callables, or `RandomMap`.
        seed: Key of all randomness.
        on_bad_record: What becomes of one that raises.
        keeps: Whether user code gets the records that the source hands out.
        ambient: The global generators; None: left alone.
    """

    def __init__(
        self,
        source: RandomAccess,
        transforms: tuple[Any, ...],
        seed: int,
        on_bad_record: OnBadRecord,
        keeps: bool,
        ambient: Ambient | None,
    ) -> None:
        self._source = source
        self._whole = hasattr(source, "read")  # the source returns batches, not records
        self._opens = not self._whole and hasattr(source, "open_rows")  # one that is composed
        self._listed = not self._whole and offers_list(source)
        self._maps = Maps(transforms, seed, first_place(transforms))
        self._raises = on_bad_record == "raise"
        self._owned = keeps and not self._whole
        self._ambient = ambient

    def batch(self, chunk: PlannedChunk, clock: Clock) -> Any:
        """All records at once, from a source that reads batches."""
        self._key(Scope.READ, int(chunk.positions[0]))
        batch = self._source.read(chunk.indices)  # type: ignore[attr-defined]
        check_rows(batch, chunk)
        clock.enter("collate")
        return batch

    def rows(
        self, chunk: PlannedChunk, clock: Clock, bad: list[BadRecord]
    ) -> Iterator[tuple[int, Any]]:
        """Yields row and record, in order; the clock then runs for the collation.

        Args:
            chunk: Which records.
            clock: Told what is being done.
            bad: Gets the records that are left out or replaced.
        """
        indices = chunk.indices.tolist()
        source = self._source
        read: Callable[[int, int], Any] = lambda _, index: source[index]  # noqa: E731  # hot
        if self._whole or self._listed:
            try:
                read = self._read_all(chunk, clock)
            except Exception:
                if self._raises:
                    raise
                read = self._read_one  # one of them is bad: each is found out by itself
        left_out = 0
        for row, (index, position) in enumerate(
            zip(indices, chunk.positions.tolist(), strict=True)
        ):
            try:
                record = self._record(read, row, index, position, clock)
            except Exception as error:
                if self._raises:
                    raise
                found = self._replacement(chunk, row, position, clock)
                replaced_by = None if found is None else found[0]
                if found is None and chunk.spares is not None:
                    error.add_note(
                        f"The {chunk.spares.shape[1]} records that were drawn to replace it with "
                        '`on_bad_record="replace"` are bad too.'
                    )
                    raise
                text = f"{type(error).__name__}: {error}"[:MAX_ERROR]
                if chunk.mask is None or chunk.mask[row]:  # padding repeats a record
                    bad.append(BadRecord(chunk.step, position, index, text, replaced_by))
                if found is None:
                    left_out += 1
                    if left_out == len(indices):
                        error.add_note(
                            f"All {left_out} records of it are bad, and a batch must have one: "
                            '`on_bad_record="replace"` puts others in their place; '
                            "feeder.filtered, or a `sampler`, leaves them out beforehand."
                        )
                        raise
                    continue
                record = found[1]
            clock.enter("collate", row)
            yield row, record

    def _record(
        self, read: Callable[[int, int], Any], row: int, index: int, position: int, clock: Clock
    ) -> Any:
        clock.enter("read", row)
        if self._ambient is not None and self._ambient.keyed:
            self._ambient.key(Scope.RECORD, position)
        record = read(row, index)
        if record is None:
            raise TypeError(
                f"`source[{index}]` must be a record, got None; does its __getitem__ end without a "
                "return? What a MapDataset of Grain's has filtered, `on_bad_record` passes over"
            )
        if self._owned:
            record = own(record)
        if self._maps:
            clock.enter("transform", row)
            record = self._maps(record, position)
        return record

    def _replacement(
        self, chunk: PlannedChunk, row: int, position: int, clock: Clock
    ) -> tuple[int, Any] | None:
        """Index and record of the first spare that is not bad."""
        if chunk.spares is not None:
            for index in chunk.spares[row].tolist():
                try:
                    return index, self._record(self._read_one, row, index, position, clock)
                except Exception:  # as bad as the first, whose error is told
                    continue
        return None

    def _read_all(self, chunk: PlannedChunk, clock: Clock) -> Callable[[int, int], Any]:
        """Reads the whole chunk; what is returned hands out its records."""
        clock.enter("read")
        if self._whole:
            leaves, treespec = optree.tree_flatten(self.batch(chunk, clock))
            return lambda row, _: treespec.unflatten([leaf[row] for leaf in leaves])
        self._key(Scope.READ, int(chunk.positions[0]))
        if self._opens:
            read_row = self._source.open_rows(chunk.indices)  # type: ignore[attr-defined]
            return lambda row, _: read_row(row)
        listed = self._list(chunk.indices.tolist())
        return lambda row, _: listed[row]

    def _read_one(self, _row: int, index: int) -> Any:
        if self._whole:
            batch = self._source.read(np.array([index]))  # type: ignore[attr-defined]
            return optree.tree_map(lambda leaf: leaf[0], batch)
        if self._listed:
            return self._list([index])[0]
        return self._source[index]

    def _list(self, indices: list[int]) -> list[Any]:
        listed = list(self._source.__getitems__(indices))  # type: ignore[attr-defined]
        if len(listed) != len(indices):
            raise ValueError(
                f"`__getitems__(indices)` must return {len(indices)} records for "
                f"{len(indices)} indices, got {len(listed)}"
            )
        return listed

    def _key(self, scope: Scope, number: int) -> None:
        if self._ambient is not None:
            self._ambient.key(scope, number)
