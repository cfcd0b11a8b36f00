"""Random numbers by number: stateless, vectorised, the same on every platform."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feeder.plan.order import Indices

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def start_of(seed: int, purpose: int) -> np.uint64:
    """Where the numbers of one purpose begin, for a loader's seed."""
    sequence = np.random.SeedSequence(seed, spawn_key=(0, 0, 0, purpose))
    start: np.uint64 = sequence.generate_state(1, np.uint64)[0]
    return start


def random_bits(start: np.uint64, numbers: Indices) -> NDArray[np.uint64]:
    """A random 64-bit word for each number.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
    2014; Stafford's variant 13 of the mixing): its generator adds a constant to a counter at each
    draw, so that any draw is found at once.
    """
    values = start + numbers.astype(np.uint64) * _GOLDEN
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def scaled(bits: NDArray[np.uint64], size: int) -> Indices:
    """Random 64-bit words → ``range(size)``: the high half of a 128-bit product (Lemire 2019).

    A carry of the lower half is left out: the result is at most one too low, never out of range.
    """
    high, low = bits >> _HALF, bits & _LOW
    size_high, size_low = np.uint64(size >> 32), np.uint64(size & 0xFFFFFFFF)
    scaled = high * size_high + ((high * size_low) >> _HALF) + ((low * size_high) >> _HALF)
    indices: Indices = scaled.view(np.int64)
    return indices
