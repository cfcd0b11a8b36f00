"""Transforms of one record that the library itself provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class RandomMap:
    """A transform that draws random numbers: ``function(record, rng)`` → record.

    The `numpy.random.Generator` that it gets is keyed by (seed, position of the record, place
    among the loader's transforms), so its draws are the same for any number of workers, after
    any crash or resume, and another epoch draws anew.

    Args:
        function: Called with the record and its Generator; returns the new record.

    Raises:
        TypeError: ``function`` is not callable.
    """

    function: Callable[[Any, np.random.Generator], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"`function` must be callable as function(record, rng), got {self.function!r}"
            )
