"""Samplers that draw with replacement: each position's record on its own.

Guarantees:
    * Stateless: the draw at a position depends on (seed, position) alone, so that resuming and
      splitting over processes cost nothing.
    * A record of weight 0 is never drawn.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feeder.plan.mix import random_bits, scaled, start_of
from feeder.plan.order import Indices

_DRAWS_KEY = 1  # tells these numbers from the permutations' of the same seed


class WeightedSampler:
    """Draws records with replacement, in proportion to weights; for ``sampler=``.

    The draw at a position depends on the loader's seed and the position alone: a run resumes in
    O(1), and each epoch draws anew.

    Args:
        weights: One non-negative number per record, shape (records,); they need not sum to 1.
        num_samples: Draws in an epoch; None: as many as there are weights.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The weights are no weights, or ``num_samples`` is below 1.
    """

    def __init__(self, weights: ArrayLike, num_samples: int | None = None) -> None:
        self._cumulated = _cumulated(weights)
        if num_samples is None:
            num_samples = len(self._cumulated)
        if isinstance(num_samples, bool) or not isinstance(num_samples, int | np.integer):
            raise TypeError(
                f"`num_samples` must be an integer of at least 1, or None, got {num_samples!r}"
            )
        if num_samples < 1:
            raise ValueError(
                f"`num_samples` must be an integer of at least 1, or None, got {num_samples}"
            )
        self._num_samples = int(num_samples)

    def __len__(self) -> int:
        """Draws in an epoch."""
        return self._num_samples

    def __repr__(self) -> str:
        return f"WeightedSampler(<{len(self._cumulated)} weights>, num_samples={len(self)})"


class InfiniteSampler:
    """An endless stream of draws with replacement; for ``sampler=``.

    The loader then has no epochs and no last batch. The draw at a position depends on the loader's
    seed and the position alone.

    Args:
        weights: One non-negative number per record, shape (records,); None: all the same.

    Raises:
        TypeError: The weights are no numbers.
        ValueError: The weights are no weights.
    """

    def __init__(self, weights: ArrayLike | None = None) -> None:
        self._cumulated = None if weights is None else _cumulated(weights)

    def __repr__(self) -> str:
        weights = "" if self._cumulated is None else f"<{len(self._cumulated)} weights>"
        return f"InfiniteSampler({weights})"


class Drawn:
    """The order that such a sampler asks for.

    Args:
        sampler: The sampler.
        num_records: Records of the source.
        seed: The loader's seed.

    Raises:
        ValueError: There are not as many weights as records.
    """

    def __init__(
        self, sampler: WeightedSampler | InfiniteSampler, num_records: int, seed: int
    ) -> None:
        self._cumulated = sampler._cumulated
        if self._cumulated is not None and len(self._cumulated) != num_records:
            raise ValueError(
                f"`weights` of the sampler must be one for each of the {num_records} records of "
                f"`source`, got {len(self._cumulated)}"
            )
        self._num_records = num_records
        self._start = start_of(seed, _DRAWS_KEY)
        self._kind = type(sampler).__name__
        self._length = len(sampler) if isinstance(sampler, WeightedSampler) else None

    def __call__(self, positions: Indices) -> Indices:
        """Returns the record index at each position."""
        bits = random_bits(self._start, positions)
        if self._cumulated is None:
            return scaled(bits, self._num_records)
        at = (bits >> np.uint64(11)) * 2.0**-53 * self._cumulated[-1]
        # Without the last bound, so that no rounding of `at` can lead beyond the last record.
        found = np.searchsorted(self._cumulated[:-1], at, side="right")
        indices: Indices = found.astype(np.int64, copy=False)
        return indices

    def describe(self) -> dict[str, Any]:
        """What tells it from other samplers, JSON-able."""
        crc = None
        if self._cumulated is not None:
            crc = zlib.crc32(self._cumulated.astype("<f8").tobytes())
        return {"kind": self._kind, "length": self._length, "crc": crc}


def _cumulated(weights: ArrayLike) -> NDArray[np.float64]:
    """Cumulated weights, checked."""
    values = np.asarray(weights)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"`weights` must be numbers, got an array of dtype {values.dtype}")
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"`weights` must have the shape (records,), with at least one, got {values.shape}"
        )
    wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
    if len(wrong):
        raise ValueError(
            f"`weights` must be finite and not negative, got {values[wrong[0]]} for record "
            f"{wrong[0]}"
        )
    # One after the other, as the definition says: the same bits on every platform.
    cumulated = np.cumsum(values, dtype=np.float64)
    if not np.finfo(np.float64).tiny <= cumulated[-1] < np.inf:
        raise ValueError(f"`weights` must have a finite sum above 0, got {cumulated[-1]}")
    return cumulated
