"""Sources made of others, record for record: an index map, and one reading of all below it.

Guarantees:
    * The records are the children's own, unchanged; which of them stands where is a pure map.
    * A chunk is mapped as a whole, through all that is nested, and each source below is read once
      for it: by ``read``, else ``__getitems__``, else ``[]``. Its rows are copied once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices
from feeder.sources.in_place import Placed, in_memory, in_place
from feeder.sources.indexing import checked, in_range
from feeder.sources.joining import Kind, Rows, check_alike, joined
from feeder.sources.protocol import RandomAccess, fingerprint_of
from feeder.sources.reading import ReadRow, add_note, open_rows, read_batch, reads_batches

_PIECE_BYTES = 2**17
"""Rows that are scattered go through a buffer of this size, which stays in the cache."""


_PROBES = 1024
"""Records whose places tell one composition from another."""


class Route(Protocol):
    """Which record of which child each record of a composed source is: a pure map."""

    def __len__(self) -> int: ...

    def __call__(self, indices: Indices) -> tuple[Indices | None, Indices]:
        """Returns the child of each index (None: the only one), and the index in it."""
        ...


class _Part(NamedTuple):
    """Rows of a chunk that one of the sources holds."""

    leaf: int
    rows: Rows
    indices: Indices


class Composed:
    """Records of other sources, in another order or number.

    Args:
        kind: What made it, for messages.
        children: The sources.
        names: What to call them in messages.
        route: Which record of which child each record is.

    Raises:
        ValueError: Records of arrays in memory differ in structure, shape or dtype.
    """

    def __init__(
        self, kind: str, children: Sequence[RandomAccess], names: Sequence[str], route: Route
    ) -> None:
        self._kind = kind
        self._children = tuple(children)
        self._route = route
        self._leaves: list[RandomAccess] = []  # what is not composed itself, from left to right
        self._names: list[str] = []
        firsts = []
        for child, name in zip(children, names, strict=True):
            firsts.append(len(self._leaves))
            if isinstance(child, Composed):
                self._leaves += child._leaves
                self._names += [f"{name}.{below}" for below in child._names]
            else:
                self._leaves.append(child)
                self._names.append(name)
        self._firsts = np.array(firsts)
        self._is_nested = any(isinstance(child, Composed) for child in children)
        self._reads = all(map(reads_batches, self._leaves))
        self._placed = [in_place(leaf) for leaf in self._leaves]
        known = [
            Kind(name, one.treespec, tuple(one.specs))
            for name, one in zip(self._names, self._placed, strict=True)
            if one is not None
        ]
        for kind_of_one in known[1:]:
            check_alike(known[0], kind_of_one)

    def __len__(self) -> int:
        return len(self._route)

    def __repr__(self) -> str:
        return f"<feeder.{self._kind}: {len(self)} records of {', '.join(self._names)}>"

    def __getitem__(self, index: int) -> Any:
        """The record at ``index``; from the end, where it is negative."""
        number = in_range(index, len(self), self._kind)
        leaf, inner = self._place_of(number)
        try:
            return self._leaves[leaf][inner]
        except Exception as error:
            add_note(error, f"Record {number} is {self._named(leaf, inner)}.")
            raise

    def __iter__(self) -> Iterator[Any]:
        # Without it an IndexError of a child would end a loop as if there were no more records.
        return map(self.__getitem__, range(len(self)))

    @property
    def read(self) -> Callable[[Indices], Any]:
        """``read(indices)`` → batch, where all sources below have it."""
        if not self._reads:
            raise AttributeError("not all sources below have read(indices)")
        return self._read

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]]:
        """``__getitems__(indices)`` → records, where ``read`` is not to be had."""
        if self._reads:
            raise AttributeError("read(indices) is the faster one")
        return self._list

    @property
    def open_rows(self) -> Callable[[Indices], ReadRow]:
        """``open_rows(indices)`` → function from row to record, where ``read`` is not to be had.

        What reads many records at once is read when it is called, any other record when the
        function is: an error then concerns that record alone.
        """
        if self._reads:
            raise AttributeError("read(indices) is the faster one")
        return self._open_rows

    @property
    def record_spec(self) -> Any:
        """A record, with an `ArraySpec` for each leaf; None: not all below write in place."""
        first = self._placed[0]
        if first is None or any(one is None for one in self._placed):
            return None
        return first.treespec.unflatten(first.specs)

    @property
    def in_memory(self) -> bool:
        """Whether all sources below are in memory."""
        return all(map(in_memory, self._leaves))

    def read_into(self, indices: Indices, out: Sequence[NDArray[Any]]) -> None:
        """Writes records into ``out``, where `record_spec` says what they are."""
        for part in self._parts(indices):
            placed = self._placed[part.leaf]
            assert placed is not None
            if isinstance(part.rows, slice):
                placed.source.read_into(part.indices, [target[part.rows] for target in out])
                continue
            step = _rows_at_once(placed, len(part.indices))
            for start in range(0, len(part.indices), step):
                rows, inner = part.rows[start : start + step], part.indices[start : start + step]
                if len(rows) == 1:
                    row = int(rows[0])
                    placed.source.read_into(inner, [target[row : row + 1] for target in out])
                    continue
                piece = [np.empty((len(rows), *spec.shape), spec.dtype) for spec in placed.specs]
                placed.source.read_into(inner, piece)
                for target, values in zip(out, piece, strict=True):
                    target[rows] = values

    @property
    def fingerprint(self) -> str:
        """What tells it from a source composed in another way: where some of its records are.

        Those are 1 024, at equal distances; for a record or two it may be the same.
        """
        last = max(0, len(self) - 1)
        probes = [last * number // (_PROBES - 1) for number in range(min(_PROBES, 1 + last))]
        leaves, inner = self._locate(np.array(probes[: len(self)], np.int64))
        lengths = [(len(leaf), fingerprint_of(leaf)) for leaf in self._leaves]
        crc = zlib.crc32(repr((len(self), lengths)).encode())
        for column in (np.zeros_like(inner) if leaves is None else leaves, inner):
            crc = zlib.crc32(column.astype("<i8").tobytes(), crc)
        return f"{self._kind} {crc:08x}"

    def origin_of(self, index: int) -> str:
        """Which record of which source below a record is, for a message."""
        return self._named(*self._place_of(index))

    def _named(self, leaf: int, inner: int) -> str:
        return f"record {inner} of {self._names[leaf]}"

    def _place_of(self, index: int) -> tuple[int, int]:
        """The source below that holds a record, and its index there."""
        leaves, inner = self._locate(np.array([index], np.int64))
        return 0 if leaves is None else int(leaves[0]), int(inner[0])

    def _locate(self, indices: Indices) -> tuple[Indices | None, Indices]:
        """The source below that holds each record (None: the only one), and its index there."""
        children, inner = self._route(indices)
        if not self._is_nested:
            return children, inner
        if children is None:
            (only,) = self._children
            assert isinstance(only, Composed)
            return only._locate(inner)
        leaves = self._firsts[children]
        for number, child in enumerate(self._children):
            if isinstance(child, Composed) and len(rows := np.flatnonzero(children == number)):
                below, inner[rows] = child._locate(inner[rows])
                if below is not None:
                    leaves[rows] += below
        return leaves, inner

    def _parts(self, indices: Indices) -> Iterator[_Part]:
        leaves, inner = self._locate(indices)
        if leaves is None or not len(leaves):
            yield _Part(0, slice(None), inner)
            return
        order = np.argsort(leaves, kind="stable")
        ordered = leaves[order]
        bounds = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        if not len(bounds):
            yield _Part(int(leaves[0]), slice(None), inner)
            return
        for start, stop in zip([0, *bounds], [*bounds, len(order)], strict=True):
            rows: Rows = order[start:stop]
            found = inner[rows]
            if order[stop - 1] - order[start] == stop - start - 1:  # they are in order
                rows = slice(int(order[start]), int(order[start]) + int(stop - start))
            yield _Part(int(ordered[start]), rows, found)

    def _read(self, indices: Indices) -> Any:
        """The batch of the records at ``indices``.

        Raises:
            IndexError: An index is out of range.
            ValueError: Sources below give batches that differ in structure, shape or dtype.
            Exception: Whatever they raise, with a note that names them.
        """
        indices = checked(indices, len(self), self._kind)
        if (placed := in_place(self)) is not None:
            out = [np.empty((len(indices), *spec.shape), spec.dtype) for spec in placed.specs]
            self.read_into(indices, out)
            return placed.treespec.unflatten(out)
        parts = [
            (part, read_batch(self._leaves[part.leaf], self._names[part.leaf], part.indices))
            for part in self._parts(indices)
        ]
        if len(parts) == 1:
            return parts[0][1]
        named = [(self._names[part.leaf], part.rows, batch) for part, batch in parts]
        return joined(named, len(indices))

    def _list(self, indices: Sequence[int]) -> list[Any]:
        read_row = self._open_rows(np.asarray(indices, np.int64))
        return [read_row(row) for row in range(len(indices))]

    def _open_rows(self, indices: Indices) -> ReadRow:
        """Opens a chunk of records: row → record."""
        indices = checked(indices, len(self), self._kind)
        readers: list[Any] = [None] * len(indices)  # of each row
        places = np.empty(len(indices), np.int64)  # of each row in its part
        leaves = np.empty(len(indices), np.int64)
        inner = np.empty(len(indices), np.int64)
        for part in self._parts(indices):
            read = open_rows(self._leaves[part.leaf], self._names[part.leaf], part.indices)
            places[part.rows] = np.arange(len(part.indices))
            leaves[part.rows] = part.leaf
            inner[part.rows] = part.indices
            for row in np.arange(len(indices))[part.rows].tolist():
                readers[row] = read
        place_of = places.tolist()

        def read_row(row: int) -> Any:
            try:
                return readers[row](place_of[row])
            except Exception as error:
                origin = self._named(int(leaves[row]), int(inner[row]))
                add_note(error, f"Record {indices[row]} is {origin}.")
                raise

        return read_row


def _rows_at_once(placed: Placed, num_rows: int) -> int:
    """Rows that are read before they are scattered: of what is no memory, all."""
    if not in_memory(placed.source):
        return num_rows
    row_bytes = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in placed.specs)
    return max(1, _PIECE_BYTES // max(1, row_bytes))
