"""Stacking records: each leaf of each record into its row of the batch.

Guarantees:
    * No value is cast and no string is cut: a leaf that differs from the batch's first record
      in shape, dtype or structure is a `RecordMismatchError`.
    * Numbers and arrays of numbers become rows of arrays, and so do PyTorch's tensors and Pillow's
      images; any other leaf (str, bytes, any object) becomes a row of an array of dtype object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from feeder import tensors
from feeder.errors import RecordMismatchError
from feeder.plan.chunks import Chunk
from feeder.plan.order import Indices
from feeder.produce.layout import LeafSpec

_ARRAYS = (np.ndarray, np.generic)

_SMALL_BYTES = 4096
"""Records up to this size are stacked by NumPy, a leaf of all at a time; larger ones one by one."""


def as_array(leaf: Any) -> NDArray[Any] | None:
    """The leaf as an array of numbers; None where it is none, and travels as an object."""
    if isinstance(leaf, np.ndarray):
        return None if leaf.dtype.hasobject else leaf
    if isinstance(leaf, str | bytes):
        # NumPy would make fixed-length strings of them, a dtype for each length.
        return None
    if tensors.is_tensor(leaf):
        return tensors.as_numpy(leaf)
    if (
        isinstance(leaf, bool | int | float | complex | np.generic)
        or hasattr(leaf, "__array__")
        or hasattr(type(leaf), "__array_interface__")  # of an image it would copy the pixels
    ):
        array = np.asarray(leaf)
        return None if array.dtype.hasobject else array
    return None


def _columns(treespec: optree.PyTreeSpec, records: Sequence[Any]) -> list[Sequence[Any]]:
    """The leaves of all records, leaf by leaf.

    Raises:
        KeyError, TypeError, ValueError: Some record has another structure.
    """
    if treespec.is_leaf():
        return [records]
    kind = treespec.type
    if kind not in (dict, tuple, list):
        leaves = [treespec.flatten_up_to(record) for record in records]
        return list(zip(*leaves, strict=True))
    size = treespec.num_children
    count = len(records)
    if _count(type, records, kind) != count or _count(len, records, size) != count:
        raise TypeError
    parts: Iterable[Sequence[Any]]
    if kind is dict:
        parts = [list(map(operator.itemgetter(key), records)) for key in treespec.entries()]
    else:
        parts = zip(*records, strict=True)
    children = zip(treespec.children(), parts, strict=True)
    return [column for child, part in children for column in _columns(child, part)]


def _count(of: Callable[[Any], Any], column: Sequence[Any], expected: object) -> int:
    """How many leaves have what is expected; four times as fast as a loop."""
    return list(map(of, column)).count(expected)


def _is_short(leaf: Any) -> bool:
    return type(leaf) is int and -(2**63) <= leaf < 2**63


def check_rows(batch: Any, chunk: Chunk) -> None:
    """Checks that every array of a batch that ``read`` returned has a row per index.

    Raises:
        RecordMismatchError: It has not.
    """
    leaves, treespec = optree.tree_flatten(batch)
    rows = len(chunk.indices)
    for number, leaf in enumerate(leaves):
        shape = np.shape(leaf)
        if not shape or shape[0] != rows:
            name = treespec.accessors()[number].codify("batch")
            raise RecordMismatchError(
                f"`read(indices)` must return {rows} rows for {rows} indices in every leaf, got "
                f"shape {shape} at {name} in step {chunk.step}",
                leaf=name,
                expected=(rows, *shape[1:]),
                got=shape,
                step=chunk.step,
                stage="read",
            )


class Stacked:
    """Records that were stacked, as records again when they are asked for.

    Args:
        treespec: Structure of a record.
        columns: The leaves, a row for each record.
        are_python: Which of them were Python's own numbers, and are again: in a batch with others
            like them, they can be stacked leaf by leaf.
    """

    __slots__ = ("_are_python", "_columns", "_treespec")

    def __init__(
        self, treespec: optree.PyTreeSpec, columns: list[NDArray[Any]], are_python: list[bool]
    ) -> None:
        self._treespec = treespec
        self._columns = columns
        self._are_python = are_python

    def records(self) -> list[Any]:
        """Them."""
        leaves = [
            column.tolist() if is_python else column
            for column, is_python in zip(self._columns, self._are_python, strict=True)
        ]
        return [self._treespec.unflatten(row) for row in zip(*leaves, strict=True)]


class Columns:
    """The leaves of a batch of records, given its first record.

    Attributes:
        treespec: Structure of a record, and so of the batch.
        specs: The batch's leaves.
        are_small: Whether records are so small that stacking a list of them at once pays.
    """

    def __init__(self, first: Any, chunk: Chunk) -> None:
        self._chunk = chunk
        self._rows = rows = chunk.batch_rows
        leaves, self.treespec = optree.tree_flatten(first)
        self._arrays = [as_array(leaf) for leaf in leaves]
        # Python's own numbers of one type have one dtype, but for integers beyond 64 bits.
        self._scalars = [
            type(leaf) if type(leaf) in (bool, float) or _is_short(leaf) else None
            for leaf in leaves
        ]
        sizes = [array.nbytes for array in self._arrays if array is not None]
        self.are_small = 0 < len(sizes) == len(leaves) and sum(sizes) <= _SMALL_BYTES
        self.specs = tuple(
            LeafSpec((rows,), None)
            if array is None
            else LeafSpec((rows, *array.shape), array.dtype)
            for array in self._arrays
        )

    def fit(self, first: Any, chunk: Chunk) -> bool:
        """Whether they are those of another batch, too, given its first record; then they are."""
        leaves, treespec = optree.tree_flatten(first)
        if chunk.batch_rows != self._rows or treespec != self.treespec:
            return False
        for leaf, array, scalar in zip(leaves, self._arrays, self._scalars, strict=True):
            if array is None:
                return False
            if type(leaf) is np.ndarray:
                if leaf.dtype != array.dtype or leaf.shape != array.shape:
                    return False
            elif (
                scalar is None
                or type(leaf) is not scalar
                or (scalar is int and not _is_short(leaf))
            ):
                return False
        self._chunk = chunk
        return True

    def targets(self, arrays: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
        """The arrays to put rows into: those given, and new ones for leaves that are objects."""
        rows = len(self._chunk.indices)
        return [
            np.empty(rows, object) if array is None else array
            for _, array in zip(self.specs, arrays, strict=False)  # a mask may follow
        ]

    def fill(
        self, records: list[Any], places: slice | Indices, targets: list[NDArray[Any]]
    ) -> bool:
        """Copies all records into their rows, leaf by leaf; False: some differ, and none counts.

        Args:
            records: All of the chunk.
            places: Their rows in the targets, as an index of NumPy's.
            targets: One for each leaf, all of them arrays of numbers.
        """
        try:
            columns = _columns(self.treespec, records)
            return all(
                self._stacked(number, column, targets[number], places)
                for number, column in enumerate(columns)
            )
        except (KeyError, ValueError, TypeError, OverflowError):
            return False

    def stacked(self, places: slice | Indices, targets: list[NDArray[Any]]) -> Stacked:
        """The records that `fill` has stacked, in memory of their own."""
        columns = [
            target[places].copy() if isinstance(places, slice) else target[places]
            for target, _ in zip(targets, self.specs, strict=False)  # a mask may follow
        ]
        return Stacked(self.treespec, columns, [kind is not None for kind in self._scalars])

    def _stacked(
        self, number: int, column: Sequence[Any], target: NDArray[Any], places: slice | Indices
    ) -> bool:
        """Copies a leaf of all records; False, or an error: some are not as the first record's."""
        expected = self._arrays[number]
        assert expected is not None
        kind, count = type(column[0]), len(column)
        if _count(type, column, kind) != count:
            return False
        if tensors.is_tensor(column[0]):
            column, kind = tuple(map(tensors.as_numpy, column)), np.ndarray
        if kind is np.ndarray and expected.ndim:
            if _count(len, column, expected.shape[0]) != count:
                return False
            shape = (len(column) * expected.shape[0], *expected.shape[1:])
            if isinstance(places, slice):
                rows = target[places].reshape(shape, copy=False)
                np.concatenate(column, out=rows, casting="no")
                return True
            rows = np.empty(shape, expected.dtype)
            np.concatenate(column, out=rows, casting="no")
            target[places] = rows.reshape(len(column), *expected.shape)
            return True
        # Python's own numbers of one type have one dtype, but for integers beyond 64 bits.
        of_one_dtype = kind is self._scalars[number] or issubclass(kind, np.number | np.bool_)
        if of_one_dtype and expected.dtype.kind in "biufc":
            target[places] = np.fromiter(column, expected.dtype, len(column))
            return True
        return False

    def put(self, row: int, place: int, record: Any, targets: list[NDArray[Any]]) -> None:
        """Copies a record into its row.

        Args:
            row: Its row in the chunk, and in the targets that are objects.
            place: Its row in the targets that are arrays.
            record: The record.
            targets: One for each leaf.

        Raises:
            RecordMismatchError: A leaf differs from the first record's.
        """
        try:
            leaves = self.treespec.flatten_up_to(record)
        except (ValueError, TypeError):
            got = optree.tree_structure(record)
            raise self._mismatch(row, "record", "structure", self.treespec, got) from None
        for number, leaf in enumerate(leaves):
            expected = self._arrays[number]
            if (
                expected is not None
                and isinstance(leaf, _ARRAYS)
                and leaf.dtype == expected.dtype
                and leaf.shape == expected.shape
            ):
                targets[number][place] = leaf  # most often; what differs is looked at closely
                continue
            if type(leaf) is self._scalars[number]:
                try:
                    targets[number][place] = leaf
                    continue
                except OverflowError:
                    pass  # an integer that takes another dtype, as is said below
            array = as_array(leaf)
            if array is None:
                if expected is not None:
                    raise self._leaf_mismatch(row, number, leaf)
                targets[number][row] = leaf
            elif expected is None or array.dtype != expected.dtype or array.shape != expected.shape:
                raise self._leaf_mismatch(row, number, leaf)
            else:
                targets[number][place] = array

    def _leaf_mismatch(self, row: int, number: int, leaf: Any) -> RecordMismatchError:
        name = self.treespec.accessors()[number].codify("record")
        expected, got = self._arrays[number], as_array(leaf)
        if expected is not None and got is not None:
            if expected.shape != got.shape:
                return self._mismatch(row, name, "shape", expected.shape, got.shape)
            return self._mismatch(row, name, "dtype", expected.dtype, got.dtype)
        kinds = ["an object" if array is None else array.dtype for array in (expected, got)]
        return self._mismatch(row, name, "dtype", kinds[0], f"{kinds[1]} ({type(leaf).__name__})")

    def _mismatch(
        self, row: int, leaf: str, what: str, expected: object, got: object
    ) -> RecordMismatchError:
        index, shard = self._chunk.name(row)
        return RecordMismatchError(
            f"{leaf} must have the same {what} in every record of a batch, got {got} in "
            f"{self._named(row)} and {expected} in {self._named(0)}, in step {self._chunk.step}; "
            "make them equal in a transform, or give a `collate` that can join them",
            leaf=leaf,
            expected=expected,
            got=got,
            step=self._chunk.step,
            stage="collate",
            position=int(self._chunk.positions[row]),
            index=index,
            shard=shard,
        )

    def _named(self, row: int) -> str:
        index, shard = self._chunk.name(row)
        return f"record {index}" if shard is None else f"record {index} of shard {shard}"
