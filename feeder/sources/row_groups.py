"""Tables in row groups: each is decoded once, as a whole, for all the records wanted of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.sources import files
from feeder.sources.arrow_columns import Column, Layout, NullError, Tree
from feeder.sources.kept import Kept
from feeder.sources.parts import Parts, checked, records

CACHE_BYTES = 256 * 2**20


class RowGroups:
    """The records of tables that are stored in row groups, one file after the other.

    Where all of them fit into ``cache_bytes``, and are numbers, they are put together in one array
    for each column, row group by row group as they are asked for: a chunk is then one gather.

    Args:
        paths: The files.
        lengths: Records of each row group, for each file.
        load: ``load(file, group)`` → a `pyarrow.Table` or record batch, and the bytes that it keeps
            in memory.
        layout: What records look like.
        cache_bytes: Of the row groups that a process keeps decoded.
        is_mapped: Whether decoding takes no time and no memory.
    """

    def __init__(
        self,
        paths: Sequence[str],
        lengths: Sequence[Sequence[int]],
        load: Callable[[int, int], tuple[Any, int]],
        layout: Layout,
        cache_bytes: int,
        is_mapped: bool = False,
    ) -> None:
        self._paths = paths
        self._groups = [
            (file, group) for file, of in enumerate(lengths) for group in range(len(of))
        ]
        self._parts = Parts([length for of in lengths for length in of])
        self._load = load
        self._layout = layout
        self._whole: Kept[None, _Whole] | None = None
        if layout.row_bytes and not is_mapped and layout.row_bytes * len(self) <= cache_bytes:
            self._whole = Kept(self._room, 1)
            cache_bytes = 0  # row groups go on to the whole
        self._decoded = Kept(self._decode, cache_bytes)

    def __len__(self) -> int:
        return len(self._parts)

    def records(self, indices: Any) -> list[Any]:
        """The records at ``indices``, in that order."""
        return records(self.batch(indices), len(indices))

    def record(self, index: int) -> Any:
        """The record at an index."""
        return self.records([operator.index(index)])[0]

    def batch(self, indices: Any) -> Tree:
        """The records at ``indices`` as a batch: lists are objects.

        Raises:
            IndexError: There is no such record.
            SourceError: A record cannot be read.
        """
        found = checked(indices, len(self))
        if not len(found):
            raise ValueError("`indices` must name at least one record, got none")
        if self._whole is not None:
            return self._layout.treespec.unflatten(self._gathered(self._whole(None), found))
        targets: list[NDArray[Any]] = []
        for part, places, rows in self._parts.of(found):
            taken = self._take(part, rows)
            if len(places) == len(found):
                targets = taken  # all are of one row group, and in order
                break
            if not targets:
                targets = [np.empty((len(found), *leaf.shape[1:]), leaf.dtype) for leaf in taken]
            for target, leaf in zip(targets, taken, strict=True):
                target[places] = leaf
        return self._layout.treespec.unflatten(targets)

    def _gathered(self, whole: _Whole, indices: NDArray[np.int64]) -> list[NDArray[Any]]:
        parts = self._parts.numbers(indices)
        if not whole.has[parts].all():
            for part, _, rows in self._parts.of(indices[~whole.has[parts]]):
                whole.put(part, self._columns(part, rows))
        try:
            return [column.take(indices) for column in whole.columns]
        except NullError as error:
            path = self._paths[self._groups[parts[error.place]][0]]
            raise error.of(path, int(indices[error.place])) from None

    def _room(self, _: None) -> tuple[_Whole, int]:
        return _Whole(self._layout, self._parts), 1

    def _take(self, part: int, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        columns = self._columns(part, rows)
        try:
            return [column.take(rows) for column in columns]
        except NullError as error:
            index = int(self._parts.starts[part] + rows[error.place])
            raise error.of(self._paths[self._groups[part][0]], index) from None

    def _columns(self, part: int, rows: NDArray[np.int64]) -> list[Column]:
        """A row group, decoded for the sake of some rows."""
        try:
            return self._decoded(part)
        except Exception as error:  # of as many kinds as there are codecs and encodings
            file, group = self._groups[part]
            index = int(self._parts.starts[part] + rows[0])
            raise files.unreadable(self._paths[file], index, error, f"row group {group}") from error

    def _decode(self, part: int) -> tuple[list[Column], int]:
        file, group = self._groups[part]
        table, num_bytes = self._load(file, group)
        expected = int(np.diff(self._parts.starts[part : part + 2])[0])
        if table.num_rows != expected:
            raise files.changed(self._paths[file], expected, table.num_rows)
        return self._layout.columns(table), num_bytes


class _Whole:
    """All rows, of the row groups that were put here.

    Threads may put the same row group at the same time: both put the same.
    """

    def __init__(self, layout: Layout, parts: Parts) -> None:
        self._starts = parts.starts
        self.columns = layout.room(len(parts))
        self.has = np.zeros(len(parts.starts) - 1, np.bool_)

    def put(self, part: int, rows: Sequence[Any]) -> None:
        for column, of in zip(self.columns, rows, strict=True):
            column.put(int(self._starts[part]), of)
        self.has[part] = True


def fields(
    paths: Sequence[str], schemas: Sequence[Any], columns: Sequence[str] | None
) -> list[tuple[str, Any]]:
    """Names and types of the columns that are wanted, the same in all files.

    Args:
        paths: The files.
        schemas: Their `pyarrow.Schema`.
        columns: Names; None: all.

    Raises:
        TypeError: ``columns`` is no list of names.
        ValueError: A file has no such column, or one of another type.
    """
    if isinstance(columns, str) or not (columns is None or isinstance(columns, Sequence)):
        raise TypeError(f"`columns` must be a list of names, got {columns!r}")
    if columns is not None and not columns:
        raise ValueError("`columns` must name at least one column, got none")
    names = list(dict.fromkeys(schemas[0].names if columns is None else columns))
    for path, schema in zip(paths, schemas, strict=True):
        for name in names:
            if schema.names.count(name) != 1:
                there = ", ".join(map(repr, schema.names))
                raise ValueError(
                    f"`columns` must name columns of every file, got {name!r}; there are "
                    f"{there} in {path}"
                )
            kind, first = schema.field(name).type, schemas[0].field(name).type
            if kind != first:
                raise ValueError(
                    f"column {name!r} must have the same type in every file, got {kind} in {path} "
                    f"and {first} in {paths[0]}"
                )
    return [(name, schemas[0].field(name).type) for name in names]
