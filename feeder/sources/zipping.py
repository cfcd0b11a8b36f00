"""Several sources side by side: a record is one of each."""

from __future__ import annotations

import builtins
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from feeder.plan.order import Indices
from feeder.sources.in_place import in_memory, in_place
from feeder.sources.indexing import in_range
from feeder.sources.protocol import RandomAccess, fingerprint_of
from feeder.sources.reading import ReadRow, add_note, child_of, open_rows, read_batch, reads_batches


def zip(sources: Any) -> Zipped:  # noqa: A001 - as in DESIGN: feeder.zip
    """A source whose record ``i`` holds record ``i`` of each of several sources.

    Args:
        sources: A list of sources: a record is a tuple. Or any pytree of them, as
            ``{"x": a, "y": b}``: a record has the same structure. Each source is as for a loader,
            with random access, and all hold the same number of records. In a pytree, a list is a
            source of its items.

    Raises:
        TypeError: One of them has no random access.
        ValueError: There is none, or they differ in length.
    """
    if type(sources) is list:
        sources = tuple(sources)
    leaves, treespec = optree.tree_flatten(sources, is_leaf=lambda node: type(node) is list)
    if treespec.is_leaf():
        raise TypeError(
            f"`sources` must be a list or a pytree of sources, got {type(sources).__name__}"
        )
    if not leaves:
        raise ValueError("`sources` must name at least one source, got none")
    names = [accessor.codify("sources") for accessor in treespec.accessors()]
    children = [child_of(name, leaf) for name, leaf in builtins.zip(names, leaves, strict=True)]
    lengths = {name: len(child) for name, child in builtins.zip(names, children, strict=True)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"len({name}) = {length}" for name, length in lengths.items())
        raise ValueError(
            f"`sources` must hold the same number of records, got {listed}; cut the longer ones "
            f"to feeder.subset(source, range({min(lengths.values())}))"
        )
    return Zipped(children, names, treespec)


class Zipped:
    """Records of sources of one length, side by side.

    Args:
        children: The sources, each with as many records.
        names: What to call them in messages.
        treespec: Structure of a record, with a leaf for each source.
    """

    def __init__(
        self, children: list[RandomAccess], names: list[str], treespec: optree.PyTreeSpec
    ) -> None:
        self._children = children
        self._names = names
        self._outer = treespec
        self._length = len(children[0])
        self._reads = all(map(reads_batches, children))
        found = [in_place(child) for child in children]
        self._placed = [one for one in found if one is not None]
        self.in_memory = all(map(in_memory, children))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<feeder.zip: {self._length} records of {', '.join(self._names)}>"

    def __getitem__(self, index: int) -> Any:
        """The record at ``index``; from the end, where it is negative."""
        number = in_range(index, self._length, "zip")
        records = []
        for child, name in builtins.zip(self._children, self._names, strict=True):
            try:
                records.append(child[number])
            except Exception as error:
                add_note(error, f"It was raised by record {number} of {name}.")
                raise
        return self._outer.unflatten(records)

    def __iter__(self) -> Iterator[Any]:
        # Without it an IndexError of a child would end a loop as if there were no more records.
        return map(self.__getitem__, range(len(self)))

    @property
    def read(self) -> Callable[[Indices], Any]:
        """``read(indices)`` → batch, where all children have it."""
        if not self._reads:
            raise AttributeError("not all children have read(indices)")
        return self._read

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]]:
        """``__getitems__(indices)`` → records, where ``read`` is not to be had."""
        if self._reads:
            raise AttributeError("read(indices) is the faster one")
        return self._list

    @property
    def open_rows(self) -> Callable[[Indices], ReadRow]:
        """As of `Composed`, where ``read`` is not to be had."""
        if self._reads:
            raise AttributeError("read(indices) is the faster one")
        return self._open_rows

    @property
    def record_spec(self) -> Any:
        """A record, with an `ArraySpec` for each leaf; None: not all children write in place."""
        if len(self._placed) < len(self._children):
            return None
        return self._outer.unflatten([one.treespec.unflatten(one.specs) for one in self._placed])

    @property
    def fingerprint(self) -> str | None:
        """Those of its children, where any has one."""
        found = [fingerprint_of(child) for child in self._children]
        if not any(found):
            return None
        return f"zip {zlib.crc32(repr(found).encode()):08x}"

    def read_into(self, indices: Indices, out: Sequence[NDArray[Any]]) -> None:
        """Writes records into ``out``, where `record_spec` says what they are."""
        first = 0
        for child in self._placed:
            end = first + len(child.specs)
            child.source.read_into(indices, out[first:end])
            first = end

    def _read(self, indices: Indices) -> Any:
        """The batch of the records at ``indices``."""
        indices = np.asarray(indices, np.int64)
        return self._outer.unflatten(
            [
                read_batch(child, name, indices)
                for child, name in builtins.zip(self._children, self._names, strict=True)
            ]
        )

    def _list(self, indices: Sequence[int]) -> list[Any]:
        read_row = self._open_rows(np.asarray(indices, np.int64))
        return [read_row(row) for row in range(len(indices))]

    def _open_rows(self, indices: Indices) -> ReadRow:
        """Opens a chunk of records: row → record."""
        readers = [
            open_rows(child, name, indices)
            for child, name in builtins.zip(self._children, self._names, strict=True)
        ]

        def read_row(row: int) -> Any:
            records = []
            for read, name in builtins.zip(readers, self._names, strict=True):
                try:
                    records.append(read(row))
                except Exception as error:
                    add_note(error, f"It was raised by record {indices[row]} of {name}.")
                    raise
            return self._outer.unflatten(records)

        return read_row
