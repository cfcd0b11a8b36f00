"""What a batch looks like, leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one leaf of a batch on the host.

    Attributes:
        shape: As in NumPy.
        dtype: As in NumPy; object for leaves that are no numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, leaf: Any) -> ArraySpec:
        """The spec of a leaf."""
        if isinstance(leaf, np.ndarray):
            return cls(leaf.shape, leaf.dtype)
        return cls((), np.dtype(object))
