"""Which of several sources gives the record at each position: exact shares at every prefix.

Guarantees:
    * Pure and exact: integers only, for any position below 2**62, found without the others.
    * After any number of positions n, a source of weight w has given its n · w / Σw records to
      within `max_deviation`: 1, wherever the reduced weights sum to `MAX_CYCLE` at most or there
      are four sources or fewer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices

MAX_CYCLE = 2**17
"""Records of a cycle up to which it is a table."""

_MAX_PRODUCT = 2**30  # twice the product of two such numbers, and one more, fit 63 bits


class Interleaving(Protocol):
    """Maps positions to sources, and to numbers of their records."""

    @property
    def max_deviation(self) -> Fraction:
        """What no source's count at any prefix differs by from its share."""
        ...

    def __call__(self, positions: Indices) -> tuple[Indices, Indices]:
        """Returns the source at each position, and how many of its records come before."""
        ...

    def position_of(self, source: int, number: int) -> int:
        """Where record ``number`` of a source is, from 0, both of any size."""
        ...


def interleaving(weights: Sequence[int], ties: Sequence[int]) -> Interleaving:
    """How sources of such weights take turns.

    Args:
        weights: Of each source, at least 1.
        ties: A permutation of the sources: which of them comes first where several may.
    """
    divisor = math.gcd(*weights)
    reduced = [weight // divisor for weight in weights]
    if sum(reduced) <= MAX_CYCLE:
        return Cycle(reduced, ties)
    return Splits(reduced, ties)


class Cycle:
    """A table of Σw positions, repeated.

    The turns are those of a fair scheduler: record j of a source must have its place between
    ⌊j · Σw / w⌋ and ⌈(j + 1) · Σw / w⌉, which is to say that no count is ever 1 off or more. Such
    places there always are, and the earliest deadline first finds them (Baruah, Cohen, Plaxton and
    Varvel, "Proportionate Progress: A Notion of Fairness in Resource Allocation", 1996).
    """

    max_deviation = Fraction(1)

    def __init__(self, weights: Sequence[int], ties: Sequence[int]) -> None:
        total = sum(weights)
        self._weights = np.array(weights, np.int64)
        self._sources = np.empty(total, np.uint16 if len(weights) < 2**16 else np.int64)
        self._numbers = np.empty(total, np.int32)  # how many of the source come before
        rank = {source: place for place, source in enumerate(ties)}
        released: list[tuple[int, int, int, int]] = []
        coming = [(0, rank[source], source, 0) for source in ties]
        heapq.heapify(coming)
        for place in range(total):
            while coming and coming[0][0] <= place:
                _, tie, source, number = heapq.heappop(coming)
                deadline = -(-(number + 1) * total // weights[source])
                heapq.heappush(released, (deadline, tie, source, number))
            _, tie, source, number = heapq.heappop(released)
            self._sources[place] = source
            self._numbers[place] = number
            release = (number + 1) * total // weights[source]
            heapq.heappush(coming, (release, tie, source, number + 1))

    def __call__(self, positions: Indices) -> tuple[Indices, Indices]:
        cycles, places = np.divmod(positions, len(self._sources))
        sources = self._sources[places].astype(np.int64)
        return sources, cycles * self._weights[sources] + self._numbers[places]

    def position_of(self, source: int, number: int) -> int:
        cycle, number = divmod(number, int(self._weights[source]))
        place = int(np.flatnonzero(self._sources == source)[number])
        return cycle * len(self._sources) + place


class Splits:
    """A binary tree: each node splits its turns between two groups of sources.

    Of n turns of a node the left group has n · w / Σw, rounded: a Bresenham line. The error of a
    group is its own rounding, 1/2 at most, and its share of the error of its node. Groups are of
    about equal weight, and the tree is no deeper than it must be.
    """

    def __init__(self, weights: Sequence[int], ties: Sequence[int]) -> None:
        heaviest_first = sorted(ties, key=lambda source: -weights[source])
        self._root = _Node(weights, heaviest_first)
        self.max_deviation = self._root.deviation(Fraction(0))

    def __call__(self, positions: Indices) -> tuple[Indices, Indices]:
        sources, numbers = np.empty_like(positions), np.empty_like(positions)
        self._root.assign(positions, np.arange(len(positions)), sources, numbers)
        return sources, numbers

    def position_of(self, source: int, number: int) -> int:
        return self._root.position_of(source, number)


class _Node:
    """Some of the sources, which share the turns that this node is given."""

    def __init__(self, weights: Sequence[int], sources: list[int]) -> None:
        self.sources = sources
        self.weight = sum(weights[source] for source in sources)
        self._groups: tuple[_Node, _Node] | None = None
        if len(sources) > 1:
            most = 2 ** ((len(sources) - 1).bit_length() - 1)
            left, right = _halves(weights, sources, most)
            self._groups = _Node(weights, left), _Node(weights, right)

    def deviation(self, own: Fraction) -> Fraction:
        """The most that a source of this group is off, where the group is ``own`` off."""
        if self._groups is None:
            return own
        return max(
            group.deviation(Fraction(1, 2) + own * Fraction(group.weight, self.weight))
            for group in self._groups
        )

    def assign(self, turns: Indices, rows: Indices, sources: Indices, numbers: Indices) -> None:
        """Writes source and number of the record at each turn into its row."""
        if not len(turns):
            return
        if self._groups is None:
            sources[rows] = self.sources[0]
            numbers[rows] = turns
            return
        left, right = self._groups
        lefts, is_left = self._split(turns, left.weight)
        is_right = ~is_left
        left.assign(lefts[is_left], rows[is_left], sources, numbers)
        right.assign((turns - lefts)[is_right], rows[is_right], sources, numbers)

    def _split(self, turns: Indices, weight: int) -> tuple[Indices, NDArray[np.bool_]]:
        """How many turns before each are the left group's, and whether it is."""
        total = self.weight
        if total <= _MAX_PRODUCT:
            rounds, rest = np.divmod(turns, total)
            lefts, over = np.divmod(2 * weight * rest + total, 2 * total)
            return rounds * weight + lefts, over + 2 * weight >= 2 * total
        exact = turns.astype(object) * (2 * weight) + total  # Python's integers have no bound
        counts = exact // (2 * total)
        over = exact - counts * (2 * total)
        is_left: NDArray[np.bool_] = (over + 2 * weight >= 2 * total).astype(np.bool_)
        return counts.astype(np.int64), is_left

    def position_of(self, source: int, number: int) -> int:
        """The turn of this node at which record ``number`` of a source is."""
        if self._groups is None:
            return number
        left, right = self._groups
        if source in left.sources:
            number = left.position_of(source, number)
            return -(-self.weight * (2 * number + 1) // (2 * left.weight)) - 1
        number = right.position_of(source, number)
        return self.weight * (2 * number + 1) // (2 * right.weight)


def _halves(weights: Sequence[int], sources: list[int], most: int) -> tuple[list[int], list[int]]:
    """Two groups of ``most`` sources at most, each of which goes where there is less weight."""
    groups: tuple[list[int], list[int]] = ([], [])
    sums = [0, 0]
    for source in sources:
        to = 0 if sums[0] <= sums[1] else 1
        if len(groups[to]) == most:
            to = 1 - to
        groups[to].append(source)
        sums[to] += weights[source]
    return groups
