"""Columns of Arrow tables as NumPy arrays: what a column becomes depends on its type alone.

=====================================  ====================================================
numbers, booleans, dates, timestamps   an array of the same dtype
lists of fixed size, tensors           an array with more axes
strings, bytes, decimals, times        objects: str, bytes, Decimal, datetime.time
structs                                a dict of all that
other lists, maps                      an array of each record's own length (of a list of
                                       structs: a dict of such)
=====================================  ====================================================

Guarantees:
    * No number is cast: a null, which NumPy's numbers cannot tell, is an error.
    * Numbers are not copied before they are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import optree
from numpy.typing import NDArray

from feeder.errors import SourceError

Rows: TypeAlias = NDArray[np.int64]
Tree: TypeAlias = Any
"""A column, or a dict of them, nested or not."""


class NullError(Exception):
    """There is no value.

    Attributes:
        column: Where.
        place: Which of the rows asked for has none.
    """

    def __init__(self, column: str, place: int) -> None:
        super().__init__(column, place)
        self.column = column
        self.place = place

    def of(self, path: str, index: int) -> SourceError:
        """The error of a record, given its file and its index in the source."""
        return SourceError(
            f"record {index} must have a value in column {self.column!r}, got a null in {path}; "
            f"give `fill_nulls={{{self.column!r}: value}}`, leave the column out by `columns`, or "
            "set `on_bad_record`",
            path=path,
            index=index,
        )


class Column(Protocol):
    """Some rows of a column."""

    def take(self, rows: Rows) -> NDArray[Any]:
        """An array of those rows, its own.

        Raises:
            NullError: One has no value.
        """
        ...


class Layout:
    """What the records of a table look like.

    Args:
        fields: Names and Arrow types of the columns.
        fill_nulls: Values for the nulls of columns, by name; ``"a.b"`` in a struct. Of lists: for
            the nulls in them; a list that is null itself becomes empty, or, where lists have a
            fixed size, full of the value.

    Attributes:
        treespec: Structure of a record.
        has_lists: Whether a record's arrays have lengths of their own, so that records must be
            stacked one by one.
        row_bytes: What a record takes in memory; None: that depends on its values.

    Raises:
        TypeError: A type cannot be read, or a value is none of its column's type.
        ValueError: There is no column of a name.
    """

    def __init__(
        self, fields: Iterable[tuple[str, Any]], fill_nulls: Mapping[str, Any] | None = None
    ) -> None:
        self._fields = list(fields)
        self._fill = dict(fill_nulls or {})
        unknown = set(self._fill)
        import pyarrow

        columns: Any = {
            name: self._column(name, pyarrow.nulls(0, kind), unknown.discard)
            for name, kind in self._fields
        }
        if unknown:
            raise ValueError(
                f"`fill_nulls` must name columns that are read, got {sorted(unknown)[0]!r}"
            )
        self.treespec = optree.tree_structure(columns)
        empty: Any = self.treespec.flatten_up_to(columns)
        self._empty: list[Any] = list(empty)
        self.has_lists = any(isinstance(column, _Lists) for column in self._empty)
        self.row_bytes: int | None = None
        if all(isinstance(column, Numbers) for column in self._empty):
            self.row_bytes = sum(column.row_bytes for column in self._empty)
        if unknown:
            raise ValueError(
                f"`fill_nulls` must name columns that are read, got {sorted(unknown)[0]!r}"
            )
        self.treespec = optree.tree_structure(columns)
        self.has_lists = any(
            isinstance(column, _Lists) for column in self.treespec.flatten_up_to(columns)
        )

    def columns(self, table: Any) -> list[Column]:
        """The columns of a `pyarrow.Table` or record batch, in the order of a record's leaves."""
        columns: Any = {
            name: self._column(name, _joined(table.column(name))) for name, _ in self._fields
        }
        found: Any = self.treespec.flatten_up_to(columns)
        return list(found)

    def room(self, num_rows: int) -> list[Numbers]:
        """Columns of as many rows, where ``row_bytes`` is known: rows are to be put into them."""
        return [column.room(num_rows) for column in self._empty]

    def _column(self, name: str, array: Any, seen: Callable[[str], None] = lambda _: None) -> Tree:
        import pyarrow
        from pyarrow import types

        kind = array.type
        if isinstance(kind, pyarrow.FixedShapeTensorType):
            return Numbers(name, array.to_numpy_ndarray(), _nulls(array))
        if isinstance(kind, pyarrow.BaseExtensionType):
            inner = self._column(name, array.storage, seen)
            shape = getattr(kind, "shape", ())  # of Hugging Face's arrays
            if shape and None not in shape:
                return Numbers(name, *_innermost(array.storage, tuple(shape)))
            return inner
        if types.is_dictionary(kind):
            return self._column(name, array.dictionary_decode(), seen)
        if types.is_struct(kind):
            return {
                field.name: self._column(f"{name}.{field.name}", child, seen)
                for field, child in zip(kind, array.flatten(), strict=True)
            }
        if types.is_fixed_size_list(kind):
            return self._fixed_list(name, array, seen)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            values = self._column(name, array.values, seen)
            return self._lists(name, array.offsets.to_numpy(), values, _nulls(array))
        if types.is_string_view(kind) or types.is_binary_view(kind):  # which cannot be taken of
            is_text = types.is_string_view(kind)
            array = array.cast(pyarrow.large_string() if is_text else pyarrow.large_binary())
        array = self._filled(name, array, seen)
        if _is_object(array.type):
            return _Objects(name, array, _nulls(array))
        if types.is_primitive(kind) and not types.is_interval(kind):
            return Numbers(name, _numbers(array), _nulls(array))
        raise TypeError(
            f"`columns` must be of types that NumPy has, got {kind} of {name!r}; name the others "
            "by `columns`"
        )

    def _fixed_list(self, name: str, array: Any, seen: Callable[[str], None]) -> Tree:
        size = array.type.list_size
        first = array.offset * size
        # `values` also has what the nulls and the offset hide; `flatten` would leave nulls out.
        values = self._column(name, array.values.slice(first, len(array) * size), seen)
        nulls = _nulls(array)
        if not isinstance(values, Numbers):
            return self._lists(name, np.arange(len(array) + 1) * size, values, nulls)
        numbers = values.values.reshape(len(array), size, *values.values.shape[1:])
        if nulls is not None and name in self._fill:
            numbers = numbers.copy()
            numbers[nulls] = self._fill[name]
            nulls = None
        return Numbers(name, numbers, _either(nulls, values.nulls, len(array)))

    def _lists(
        self, name: str, offsets: NDArray[Any], values: Tree, nulls: NDArray[np.bool_] | None
    ) -> Tree:
        stops = offsets[1:]
        if nulls is not None and name in self._fill:
            stops, nulls = np.where(nulls, offsets[:-1], stops), None
        return _Lists(name, offsets[:-1], stops, values, nulls)

    def _filled(self, name: str, array: Any, seen: Callable[[str], None]) -> Any:
        import pyarrow

        if name not in self._fill:
            return array
        seen(name)
        try:
            value = pyarrow.scalar(self._fill[name], array.type)
        except (pyarrow.ArrowException, ValueError, TypeError) as error:
            raise TypeError(
                f"`fill_nulls[{name!r}]` must be a value of the type {array.type}, got "
                f"{self._fill[name]!r}"
            ) from error
        return array.fill_null(value)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column that is an array.

    Attributes:
        name: Its name.
        values: Its rows.
        nulls: Which of them have no value; None: all have.
    """

    name: str
    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None

    @property
    def row_bytes(self) -> int:
        """Of a row, and of the note whether it has a value."""
        return self.values.itemsize * math.prod(self.values.shape[1:]) + 1

    def room(self, num_rows: int) -> Numbers:
        """A column like this of as many rows; memory that nothing is put into is not taken."""
        values = np.empty((num_rows, *self.values.shape[1:]), self.values.dtype)
        return Numbers(self.name, values, np.zeros(num_rows, np.bool_))

    def put(self, first: int, rows: Numbers) -> None:
        """Copies rows to the place that begins at ``first``, in a column that is `room`."""
        place = slice(first, first + len(rows.values))
        self.values[place] = rows.values
        if rows.nulls is not None and self.nulls is not None:
            self.nulls[place] = rows.nulls

    def take(self, rows: Rows) -> NDArray[Any]:
        _check(self.name, self.nulls, rows)
        return self.values.take(rows, axis=0)


@dataclass(frozen=True, slots=True)
class _Objects:
    name: str
    values: Any
    nulls: NDArray[np.bool_] | None

    def take(self, rows: Rows) -> NDArray[Any]:
        _check(self.name, self.nulls, rows)
        taken: NDArray[Any] = self.values.take(rows).to_numpy(zero_copy_only=False)
        return taken.astype(object, copy=False)


@dataclass(frozen=True, slots=True)
class _Lists:
    name: str
    starts: NDArray[Any]
    stops: NDArray[Any]
    values: Tree
    nulls: NDArray[np.bool_] | None

    def take(self, rows: Rows) -> NDArray[Any]:
        _check(self.name, self.nulls, rows)
        taken = np.empty(len(rows), object)
        ranges = zip(self.starts[rows].tolist(), self.stops[rows].tolist(), strict=True)
        for place, (start, stop) in enumerate(ranges):
            try:
                taken[place] = _slice(self.values, start, stop)
            except NullError as error:
                raise NullError(self.name, place) from error
        return taken


def _slice(columns: Tree, start: int, stop: int) -> Any:
    rows = np.arange(start, stop)
    return optree.tree_map(lambda column: column.take(rows), columns)


def _check(name: str, nulls: NDArray[np.bool_] | None, rows: Rows) -> None:
    if nulls is not None and (wrong := nulls[rows]).any():
        raise NullError(name, int(wrong.argmax()))


def _nulls(array: Any) -> NDArray[np.bool_] | None:
    return np.array(array.is_null(), np.bool_) if array.null_count else None


def _either(
    nulls: NDArray[np.bool_] | None, inner: NDArray[np.bool_] | None, num_rows: int
) -> NDArray[np.bool_] | None:
    """Which rows are null, or have a null inside."""
    if inner is None:
        return nulls
    has_null = np.asarray(inner.reshape(num_rows, -1).any(axis=1), np.bool_)
    return has_null if nulls is None else np.logical_or(nulls, has_null)


def _numbers(array: Any) -> NDArray[Any]:
    if array.null_count:  # whose places hold any value
        import pyarrow

        buffers = [None, *array.buffers()[1:]]
        array = pyarrow.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _innermost(array: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Lists of lists of known lengths as one array, and which rows are, or hold, nulls."""
    nulls = _nulls(array)
    if nulls is not None:
        array = array.drop_null()
    num_rows = len(array)
    for _ in shape:
        array = array.flatten()
    values = _numbers(array).reshape(num_rows, *shape)
    inner = _either(None, _nulls(array), num_rows)
    if nulls is None:
        return values, inner
    whole = np.zeros((len(nulls), *shape), values.dtype)
    whole[~nulls] = values
    if inner is not None:
        nulls[np.flatnonzero(~nulls)[inner]] = True
    return whole, nulls


def _is_object(kind: Any) -> bool:
    from pyarrow import types

    return any(
        is_such(kind)
        for is_such in (
            types.is_string,
            types.is_large_string,
            types.is_binary,
            types.is_large_binary,
            types.is_fixed_size_binary,
            types.is_decimal,
            types.is_time,
            types.is_null,
        )
    )


def _joined(column: Any) -> Any:
    """A column as one array."""
    import pyarrow

    if not isinstance(column, pyarrow.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()
