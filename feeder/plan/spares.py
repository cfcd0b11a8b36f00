"""Which records may replace a bad one: others of the same epoch, drawn from (seed, position)."""

from __future__ import annotations

import numpy as np

from feeder.plan.mix import random_bits, scaled, start_of
from feeder.plan.order import Indices, Order

SPARES = 16
"""Records tried in place of a bad one: where 1 in 3 is bad, all of them are 1 time in 1e8."""

_SPARES_KEY = 3  # tells these numbers from others of the same seed


class Spares:
    """Draws replacements.

    Args:
        seed: The loader's seed.
        num_positions: Positions of an epoch.
        order: Maps positions to record indices.
    """

    def __init__(self, seed: int, num_positions: int, order: Order) -> None:
        self._start = start_of(seed, _SPARES_KEY)
        self._num_positions = num_positions
        self._order = order

    def __call__(self, positions: Indices) -> Indices:
        """Indices of the spares of each position, shape (positions, `SPARES`)."""
        numbers = positions[:, None] * SPARES + np.arange(SPARES)
        offsets = scaled(random_bits(self._start, numbers), self._num_positions)
        begins = positions // self._num_positions * self._num_positions
        return self._order((begins[:, None] + offsets).reshape(-1)).reshape(-1, SPARES)
