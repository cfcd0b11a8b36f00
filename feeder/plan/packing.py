"""Which pieces of which documents make up a packed record: from the documents' lengths alone.

Guarantees:
    * Pure: a plan is a function of the lengths and of its arguments.
    * Every token of every document is in exactly one record; no record holds more than its length.
    * In a record, pieces stand in the documents' order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices


class Pieces(NamedTuple):
    """The pieces of some records, one after the other, record by record.

    Attributes:
        rows: Which of the records each piece is of.
        documents: Place of its document in the lengths.
        starts: Where it begins in that.
        sizes: Its tokens, at least 1.
    """

    rows: Indices
    documents: Indices
    starts: Indices
    sizes: Indices


class PackingPlan(Protocol):
    """Says what each packed record holds.

    Attributes:
        num_records: How many there are.
    """

    num_records: int

    def pieces(self, records: Indices) -> Pieces:
        """The pieces of some records, in their order."""
        ...


class SplitPlan:
    """All documents one after the other, cut every ``length`` tokens.

    Args:
        sizes: Tokens of each document.
        length: Tokens of a record.
    """

    def __init__(self, sizes: NDArray[Any], length: int) -> None:
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._length = length
        self._total = int(self._ends[-1]) if len(sizes) else 0
        self.num_records = -(-self._total // length)

    def pieces(self, records: Indices) -> Pieces:
        begins = records * self._length
        ends = np.minimum(begins + self._length, self._total)
        first = np.searchsorted(self._ends, begins, side="right")
        last = np.searchsorted(self._ends, ends, side="left")  # the document that it ends in
        rows, documents = _runs(first, last + 1 - first)
        until = self._ends[documents]
        before = np.where(documents > 0, self._ends[documents - 1], 0)
        starts = np.maximum(begins[rows] - before, 0)
        sizes = np.minimum(until, ends[rows]) - before - starts
        held = sizes > 0  # an empty document holds none
        return Pieces(rows[held], documents[held], starts[held], sizes[held])


class BestFitPlan:
    """Documents packed whole where they fit, by best-fit decreasing in windows of documents.

    A document longer than a record is cut into full ones, and what is left of it. Records stand in
    the order of their first pieces, so that those that lie together are read about together.

    Args:
        sizes: Tokens of each document.
        length: Tokens of a record.
        window: Documents that are packed together.
    """

    def __init__(self, sizes: NDArray[Any], length: int, window: int) -> None:
        self._sizes = sizes
        self._length = length
        documents, starts, counts = [], [], []
        for first in range(0, len(sizes), window):
            packed = _pack_window(sizes[first : first + window].astype(np.int64), length)
            documents.append((packed[0] + first).astype(_smallest(len(sizes))))
            starts.append(packed[1].astype(_smallest(int(sizes.max()))))
            counts.append(packed[2].astype(np.int32))
        # Some 10 bytes for each document, which workers share.
        self._documents = np.concatenate(documents) if documents else np.zeros(0, np.int64)
        self._starts = np.concatenate(starts) if starts else np.zeros(0, np.int64)
        ends = np.cumsum(np.concatenate(counts) if counts else [], dtype=np.int64)
        self._ends = ends.astype(_smallest(len(self._documents)))
        self.num_records = len(ends)

    def pieces(self, records: Indices) -> Pieces:
        ends = self._ends[records].astype(np.int64)
        first = np.where(records > 0, self._ends[records - 1], 0).astype(np.int64)
        rows, entries = _runs(first, ends - first)
        documents = self._documents[entries].astype(np.int64)
        starts = self._starts[entries].astype(np.int64)
        sizes = np.minimum(self._sizes[documents].astype(np.int64) - starts, self._length)
        return Pieces(rows, documents, starts, sizes)


def _pack_window(sizes: Indices, length: int) -> tuple[Indices, Indices, Indices]:
    """Document and start of each piece, record by record; and how many each record has."""
    cuts = -(-sizes // length)
    documents = np.repeat(np.arange(len(sizes)), cuts)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(cuts) - cuts, cuts)) * length
    bins = best_fit_decreasing(np.minimum(sizes[documents] - starts, length), length)
    counts = np.bincount(bins)
    by_bin = np.argsort(bins, kind="stable")
    heads = by_bin[np.cumsum(counts) - counts]  # the first piece of each
    order = np.argsort(heads)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    pieces = np.argsort(rank[bins], kind="stable")
    return documents[pieces], starts[pieces], counts[order]


def best_fit_decreasing(sizes: Indices, capacity: int) -> Indices:
    """The bin of each item, by best-fit decreasing: bins 0, 1, 2, … without a gap.

    Items from the largest to the smallest, each into the bin that it leaves the least room in, or
    into a new one (Johnson, Demers, Ullman, Garey and Graham, "Worst-Case Performance Bounds for
    Simple One-Dimensional Packing Algorithms", 1974; for the training of language models: Ding et
    al., "Fewer Truncations Improve Language Modeling", ICML 2024). Items of one size go into bins
    of one room all at once: the cost depends on how many sizes there are more than on how many
    items.

    Args:
        sizes: Each from 1 to ``capacity``.
        capacity: Of a bin.
    """
    order = np.argsort(-sizes, kind="stable")
    counts = np.bincount(sizes, minlength=1)
    room: dict[int, list[tuple[int, int]]] = {}  # ranges of bins that have so much left
    rooms = 0  # which of these there are, a bit for each
    num_bins = 0
    runs: list[tuple[int, int, int]] = []  # first bin, bins, items for each; as the order has them
    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            fitting = rooms >> size
            if fitting:
                free = size + (fitting & -fitting).bit_length() - 1
                first, stop = room[free].pop()
                if not room[free]:
                    rooms ^= 1 << free
            else:
                free, first = capacity, num_bins
                stop = num_bins = first + -(-left // (capacity // size))
            each = min(free // size, left)  # once it holds one, that bin is the best for the next
            used = min(stop - first, left // each)
            runs.append((first, used, each))
            left -= used * each
            for begin, end, rest in (
                (first, first + used, free - each * size),
                (first + used, stop, free),
            ):
                if begin < end and rest:
                    room.setdefault(rest, []).append((begin, end))
                    rooms |= 1 << rest
    firsts, used_bins, items = np.array(runs, np.int64).reshape(-1, 3).T
    _, in_order = _runs(firsts, used_bins)
    bins = np.empty(len(sizes), np.int64)
    bins[order] = np.repeat(in_order, np.repeat(items, used_bins))
    return bins


def _runs(first: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """Of runs of numbers, each number's run, and the number."""
    runs = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(runs)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return runs, numbers


def _smallest(most: int) -> np.dtype[Any]:
    """The smallest dtype that holds 0 to ``most``."""
    return np.min_scalar_type(most)
