"""Which record stands at which position: orders, and the permutation of an epoch.

Guarantees:
    * Pure: the index at a position depends on (seed, number of records, position) alone.
    * Every epoch is a permutation of its own: each record once, and the permutation of
      (seed 0, epoch 1) has nothing to do with that of (seed 1, epoch 0).
    * O(1) memory: nothing is stored per record beyond `TABLE_SIZE` of them.
"""

from __future__ import annotations

import functools
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]

TABLE_SIZE = 8192
"""Records up to which an epoch's permutation is a sorted table rather than a cipher."""

_ROUNDS = 6  # 4 already pass the tests in tests/plan/test_order.py; 3 fail
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, made odd (Knuth, TAOCP 6.4)
_HALF = np.uint64(32)


class Order(Protocol):
    """Maps positions of the global order to indices of the source."""

    def __call__(self, positions: Indices) -> Indices:
        """Returns the record index at each position, in a new array of the same length."""
        ...


class Sequential:
    """``shuffle=False``: every epoch in the order of the source."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records

    def __call__(self, positions: Indices) -> Indices:
        return positions % self._num_records


class Shuffled:
    """``shuffle=True``: one permutation of the whole epoch, another one in each epoch."""

    def __init__(self, num_records: int, seed: int) -> None:
        self._num_records = num_records
        # Batches come in order, so the epochs at hand are the last and the next one.
        self._permutation = functools.lru_cache(maxsize=2)(
            lambda epoch: permutation(num_records, seed, epoch)
        )

    def __call__(self, positions: Indices) -> Indices:
        if not len(positions):
            return positions.copy()
        first = int(positions.min()) // self._num_records
        last = int(positions.max()) // self._num_records
        if first == last:  # most often; and division costs as much as two rounds
            return self._permutation(first)(positions - first * self._num_records)
        epochs, offsets = np.divmod(positions, self._num_records)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            indices[rows] = self._permutation(epoch)(offsets[rows])
        return indices


class TablePermutation:
    """The uniform permutation that sorts random 64-bit keys; for short epochs."""

    def __init__(self, num_records: int, keys: np.random.Philox) -> None:
        # A stable argsort of raw Philox output: both are fixed by specification, while
        # Generator.permutation may change between NumPy's versions (NEP 19).
        self._table = np.argsort(keys.random_raw(num_records), kind="stable")

    def __call__(self, offsets: Indices) -> Indices:
        return self._table[offsets]


class FeistelPermutation:
    """A keyed permutation of ``range(num_records)``, computed for each offset on its own.

    A generalised Feistel network on pairs (left, right) of ``range(a) × range(2**k)``, where both
    sizes are about √num_records and their product is above num_records by less than ``2**k``;
    results beyond the range walk the cycle on (Black and Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002, methods 2 and 3). Rounds change the halves in turn, by a
    multiply-xorshift-multiply hash of the other half: brought into range by multiplication (Lemire,
    "Fast Random Integer Generation in an Interval", 2019) and added modulo ``a`` to the left one,
    its highest bits xored into the right one.

    It is no cryptography: six rounds are told apart from a true shuffle by none of the
    statistics in the tests, four already are not, and that is all that training asks for.
    """

    def __init__(self, num_records: int, keys: np.random.Philox) -> None:
        self._num_records = num_records
        bits = max(1, (num_records - 1).bit_length() // 2)
        self._bits = np.uint64(bits)
        self._unused_bits = np.uint64(64 - bits)
        self._left_size = np.uint64(-(-num_records // 2**bits))
        raw = keys.random_raw(2 * _ROUNDS).reshape(_ROUNDS, 2)
        self._keys = [(add, multiply | np.uint64(1)) for add, multiply in raw]

    def __call__(self, offsets: Indices) -> Indices:
        indices = self._encrypt(offsets)
        outside = np.flatnonzero(indices >= self._num_records)
        while len(outside):
            walked = self._encrypt(indices[outside])
            indices[outside] = walked
            outside = outside[walked >= self._num_records]
        return indices

    def _encrypt(self, values: Indices) -> Indices:
        left = values.view(np.uint64) >> self._bits
        right = values.view(np.uint64) - (left << self._bits)
        mixed, shifted = np.empty_like(left), np.empty_like(left)
        for number, (add, multiply) in enumerate(self._keys):
            changes_left = number % 2 == 0
            np.add(right if changes_left else left, add, out=mixed)
            np.multiply(mixed, multiply, out=mixed)
            np.right_shift(mixed, _HALF, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, _MULTIPLIER, out=mixed)
            if changes_left:
                np.right_shift(mixed, _HALF, out=mixed)
                np.multiply(mixed, self._left_size, out=mixed)
                np.right_shift(mixed, _HALF, out=mixed)
                np.add(left, mixed, out=left)
                # left < 2·size: where it is below size, the subtraction wraps to a huge number.
                np.subtract(left, self._left_size, out=mixed)
                np.minimum(left, mixed, out=left)
            else:
                np.right_shift(mixed, self._unused_bits, out=mixed)
                np.bitwise_xor(right, mixed, out=right)
        left <<= self._bits
        left |= right
        return left.view(np.int64)


Permutation: TypeAlias = TablePermutation | FeistelPermutation
"""Maps offsets in an epoch to record indices."""


def permutation(num_records: int, seed: int, epoch: int, *part: int) -> Permutation:
    """The permutation of one epoch, or of a part of it.

    Args:
        num_records: Records in it, 1 to 2**62: the cipher's two halves then still fit 32 bits.
        seed: The loader's seed, any non-negative integer.
        epoch: Number of the epoch, from 0.
        *part: What names the part, where it is one.
    """
    # SeedSequence hashes these numbers as separate words: (0, 1) is not (1, 0).
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, *part))
    keys = np.random.Philox(key=sequence.generate_state(2, np.uint64))
    if num_records <= TABLE_SIZE:
        return TablePermutation(num_records, keys)
    return FeistelPermutation(num_records, keys)
