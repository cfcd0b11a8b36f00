"""Hugging Face data sets: those with random access as a source, the others as a stream."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.sources import files
from feeder.sources.arrow_columns import Layout, NullError
from feeder.sources.parts import checked, records
from feeder.sources.stream import Stream

_KINDS = {
    ("datasets.arrow_dataset", "Dataset"),
    ("datasets.iterable_dataset", "IterableDataset"),
}


def HuggingFace(  # noqa: N802 - it stands beside the classes of the other sources
    dataset: Any,
    *,
    columns: Sequence[str] | None = None,
    fill_nulls: Mapping[str, Any] | None = None,
) -> Any:
    """The examples of a Hugging Face data set, as dicts of its columns.

    A `datasets.Dataset` is a source of random access. Its examples are read from the Arrow table
    itself, all of a chunk at once, whatever its format is set to: numbers keep the dtype that they
    are stored with, and what a column becomes depends on its type alone, as told at
    `feeder.sources.Parquet`. Columns that are decoded, as images, are arrays as
    ``with_format("numpy")`` makes them; those of different shapes must be made equal in a
    transform, or joined by a ``collate``. A Dataset with a transform of its own
    (``with_transform``) is read through that. Tables on disk are mapped by each worker; those in
    memory are shared.

    A `datasets.IterableDataset` becomes a `feeder.Stream` of its ``num_shards`` shards, whose
    examples are as ``with_format("numpy")`` makes them. Its states are saved and restored, unless
    it was shuffled by its own buffer, which no state holds: then it is read again up to the place.
    Shuffle by the loader instead.

    Either may also be given to the `feeder.DataLoader` as it is.

    Args:
        dataset: The data set; one split of it.
        columns: Names of the columns to read. None: all, or those of its format.
        fill_nulls: As of `feeder.sources.Parquet`; of a `datasets.Dataset` alone.

    Returns:
        A source, or a `feeder.Stream`.

    Raises:
        TypeError: It is no data set, or all splits of one; or a column has a type that NumPy has
            not.
        ValueError: There is no such column; or it has a transform of its own, or is a stream, where
            an argument does not apply.
    """
    kind = kind_of(dataset)
    if kind is None:
        splits = f", one of {list(dataset)}" if type(dataset).__name__.endswith("Dict") else ""
        raise TypeError(
            "`dataset` must be a datasets.Dataset or a datasets.IterableDataset"
            f"{splits}, got a {type(dataset).__name__}"
        )
    if isinstance(columns, str) or not (columns is None or isinstance(columns, Sequence)):
        raise TypeError(f"`columns` must be a list of names, got {columns!r}")
    there = dataset.column_names
    for name in columns or ():
        if there is not None and name not in there:
            raise ValueError(
                f"`columns` must name columns of the data set, got {name!r}; it has {there}"
            )
    if kind == "IterableDataset":
        if fill_nulls is not None:
            raise ValueError("`fill_nulls` must be None for a stream, got a value; use its map()")
        return _stream(dataset, columns)
    if dataset.format["type"] == "custom":
        if columns is not None or fill_nulls is not None:
            raise ValueError(
                "`columns` and `fill_nulls` must be None for a data set with a transform of its "
                "own, got a value; reset_format() takes that transform away"
            )
        return dataset
    return _Rows(dataset, columns, fill_nulls)


def kind_of(source: object) -> str | None:
    """``"Dataset"`` or ``"IterableDataset"``; None: neither of that library's."""
    for base in type(source).__mro__:
        if (base.__module__, base.__name__) in _KINDS:
            return base.__name__
    return None


class _Rows:
    """Examples of a Dataset.

    Args:
        dataset: It.
        columns: As of `HuggingFace`.
        fill_nulls: As of `HuggingFace`.
    """

    def __init__(
        self, dataset: Any, columns: Sequence[str] | None, fill_nulls: Mapping[str, Any] | None
    ) -> None:
        from datasets.features.features import require_decoding

        self._names = names = list(dataset.format["columns"] if columns is None else columns)
        decoded = [name for name in names if require_decoding(dataset.features[name])]
        stored = [name for name in names if name not in decoded]
        self._length = len(dataset)
        if not names:
            raise ValueError("`columns` must name at least one column, got none")
        self._table = dataset.select_columns(stored).with_format("arrow") if stored else None
        schema = self._table.features.arrow_schema if self._table else ()
        self._layout = Layout(((field.name, field.type) for field in schema), fill_nulls)
        self._decoded = dataset.select_columns(decoded).with_format("numpy") if decoded else None
        if not decoded and not self._layout.has_lists:
            self.read = self._batch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples at ``indices``, in that order."""
        found = checked(indices, self._length)
        stored: list[Any] = [{}] * len(found)
        decoded = stored
        if self._table is not None:
            stored = records(self._batch(found), len(found))
        if self._decoded is not None:
            decoded = self._decode(found.tolist())
        return [{**one, **other} for one, other in zip(stored, decoded, strict=True)]

    def _decode(self, indices: list[int]) -> list[Any]:
        dataset: Any = self._decoded
        try:
            return list(dataset.__getitems__(indices))
        except Exception as error:  # of the decoder
            for index in indices:
                try:
                    dataset.__getitems__([index])
                except Exception as alone:
                    raise files.unreadable("the data set", index, alone) from alone
            raise files.unreadable("the data set", indices[0], error) from error

    def __repr__(self) -> str:
        return f"HuggingFace({self._length} examples, {self._names})"

    def _batch(self, indices: NDArray[np.int64]) -> Any:
        found = checked(indices, self._length)
        table: Any = self._table
        table = table[found.tolist()]
        rows = np.arange(len(found))
        try:
            taken = [column.take(rows) for column in self._layout.columns(table)]
        except NullError as error:
            raise error.of("the data set", int(found[error.place])) from None
        return self._layout.treespec.unflatten(taken)


def _stream(dataset: Any, columns: Sequence[str] | None) -> Stream:
    if columns is not None:
        dataset = dataset.select_columns(list(columns))
    dataset = dataset.with_format("numpy")
    return Stream(functools.partial(_open, dataset), dataset.num_shards)


def _open(dataset: Any, shard: int, epoch: int, state: Any) -> Any:
    part = dataset.shard(num_shards=dataset.num_shards, index=shard)
    part.set_epoch(epoch)
    return _Shard(part, state) if _has_whole_state(dataset) else iter(part)


class _Shard:
    """The examples of a shard, in order, from a state on."""

    def __init__(self, part: Any, state: Any) -> None:
        self._part = part
        self._begins_at = state  # which the data set does not say before its first example
        if state is not None:
            part.load_state_dict(state)
        self._examples = iter(part)

    def __iter__(self) -> _Shard:
        return self

    def __next__(self) -> Any:
        example = next(self._examples)
        self._begins_at = None
        return example

    def state_dict(self) -> Any:
        return self._begins_at or self._part.state_dict()


def _has_whole_state(dataset: Any) -> bool:
    """Whether its state says all; a buffer that examples are shuffled in is not in it."""
    open_ones = [getattr(dataset, "_ex_iterable", None)]
    while open_ones:
        one = open_ones.pop()
        if one is None or "BufferShuffled" in type(one).__name__:
            return False
        inner = getattr(one, "ex_iterables", None) or getattr(one, "ex_iterable", None)
        open_ones.extend(inner if isinstance(inner, list) else [inner] if inner else [])
    return True
