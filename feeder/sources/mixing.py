"""Several sources in fixed proportions."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

from feeder import arguments
from feeder.plan.blocks import BlockShuffle, BlockShuffled
from feeder.plan.interleave import Interleaving, interleaving
from feeder.plan.order import Indices, Order, Sequential, Shuffled
from feeder.plan.schedule import MAX_POSITIONS
from feeder.sources.composed import Composed
from feeder.sources.reading import children_of

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted"]
_STOPS: tuple[Stop, ...] = ("first_exhausted", "all_exhausted")

_TIES_KEY = 4  # tells these numbers from others of the same seed
_SOURCES_KEY = 5


def mix(
    sources: Sequence[object],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    shuffle: bool | BlockShuffle = True,
    stop: Stop = "first_exhausted",
    length: int | None = None,
) -> Composed:
    """A source that takes records of several sources in turn, in proportion to weights.

    The proportions are exact at every prefix: of the first n records a source of weight w gives
    n · w / Σw, to within 1. (With five sources or more, whose weights as coprime integers sum to
    more than 2**17, to within half of the binary logarithm of their number, rounded up.) Each
    source has passes of its own: none of its records comes twice before all have come once; then
    its next pass begins, in another order. All of it is computed for any index, in O(1) memory.

    Args:
        sources: At least one, none of them empty; each as for a loader, with random access.
        weights: One for each source, above 0: integers, floats or fractions, of any scale. A float
            counts as the decimal number that it is printed as. None: all the same.
        seed: Of the sources' orders, and of who comes first where several may.
        shuffle: The order within each pass of a source. True: a permutation; a `BlockShuffle`: for
            storage that reads best in runs; False: the order of the source.
        stop: Where the mix ends: ``"first_exhausted"``, before any source would begin its second
            pass; ``"all_exhausted"``, once every source has had its first.
        length: Records of the mix, in place of ``stop``: any number.

    Returns:
        The source. A loader reads it in this order with ``shuffle=False``; with ``shuffle=True``
        it permutes the mix, and the proportions hold for the whole of it alone.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a value that cannot work.
    """
    children, names = children_of(sources)
    lengths = [len(child) for child in children]
    for name, size in zip(names, lengths, strict=True):
        if not size:
            raise ValueError(f"`{name}` must hold at least one record, to be mixed, got none")
    whole = _integers(weights, len(children))
    seed = arguments.integer("seed", seed, 0)
    if not isinstance(shuffle, bool | BlockShuffle):
        raise TypeError(f"`shuffle` must be True, False or a feeder.BlockShuffle, got {shuffle!r}")
    stop = arguments.choice("stop", stop, _STOPS)
    length = arguments.optional_integer("length", length, 1)
    if length is not None and stop != "first_exhausted":
        raise ValueError(f"`stop` must be left out with `length`, got {stop!r}")
    ties = np.argsort(_words(seed, len(children), _TIES_KEY), kind="stable").tolist()
    turns = interleaving(whole, ties)
    if length is None:
        length = _length(turns, lengths, stop)
    if length > MAX_POSITIONS:
        rule = "`length`" if stop == "first_exhausted" else '`stop="all_exhausted"`'
        shown = f"about 2**{length.bit_length() - 1}"
        raise ValueError(f"{rule} must come to at most 2**62 records, got {shown}")
    return Composed("mix", children, names, _Turns(turns, lengths, seed, shuffle, length))


class _Turns:
    """The route of `mix`.

    Args:
        turns: Whose record is at each index, and which number it has.
        lengths: Records of each source.
        seed: Of the sources' orders.
        shuffle: The order within a pass.
        length: Records of the mix.
    """

    def __init__(
        self,
        turns: Interleaving,
        lengths: list[int],
        seed: int,
        shuffle: bool | BlockShuffle,
        length: int,
    ) -> None:
        self._arguments = (turns, lengths, seed, shuffle, length)
        self._turns = turns
        self._length = length
        seeds = _words(seed, len(lengths), _SOURCES_KEY).tolist()
        self._orders = [_order(*one, shuffle) for one in zip(lengths, seeds, strict=True)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Turns, self._arguments  # orders keep the permutations at hand, by functions

    def __len__(self) -> int:
        return self._length

    def __call__(self, indices: Indices) -> tuple[Indices | None, Indices]:
        if len(self._orders) == 1:
            return None, self._orders[0](indices)
        sources, numbers = self._turns(indices)
        for source, order in enumerate(self._orders):
            if len(rows := np.flatnonzero(sources == source)):
                numbers[rows] = order(numbers[rows])
        return sources, numbers


def _order(length: int, seed: int, shuffle: bool | BlockShuffle) -> Order:
    """Which record of a source is its n-th, over all its passes."""
    if isinstance(shuffle, BlockShuffle):
        return BlockShuffled(length, seed, shuffle)
    return Shuffled(length, seed) if shuffle else Sequential(length)


def _words(seed: int, count: int, purpose: int) -> Any:
    """A random 64-bit word for each source."""
    sequence = np.random.SeedSequence(seed, spawn_key=(0, 0, 0, purpose))
    return sequence.generate_state(count, np.uint64)


def _length(turns: Interleaving, lengths: list[int], stop: Stop) -> int:
    """Records of the mix up to where ``stop`` says."""
    if stop == "first_exhausted":
        return min(turns.position_of(source, size) for source, size in enumerate(lengths))
    return 1 + max(turns.position_of(source, size - 1) for source, size in enumerate(lengths))


def _integers(weights: Any, count: int) -> list[int]:
    """The weights as integers in the same proportions."""
    if weights is None:
        return [1] * count
    if isinstance(weights, np.ndarray):
        weights = list(weights)
    if not isinstance(weights, list | tuple):
        raise TypeError(f"`weights` must be a list of numbers, got {weights!r}")
    if len(weights) != count:
        raise ValueError(
            f"`weights` must be one for each of the {count} `sources`, got {len(weights)}"
        )
    fractions = [_fraction(place, weight) for place, weight in enumerate(weights)]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * scale) for fraction in fractions]


def _fraction(place: int, weight: Any) -> Fraction:
    rule = f"`weights[{place}]` must be a finite number above 0"
    if isinstance(weight, bool | np.bool_) or not isinstance(weight, numbers.Real):
        raise TypeError(f"{rule}, got {weight!r}")
    if not 0 < weight < math.inf:  # type: ignore[operator]  # Real says nothing of <
        remedy = "; leave its source out" if weight == 0 else ""
        raise ValueError(f"{rule}, got {weight}{remedy}")
    if isinstance(weight, numbers.Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))
    return Fraction(str(weight))  # as the user wrote it: 0.1 is a tenth
