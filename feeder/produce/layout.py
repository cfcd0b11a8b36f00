"""Where each leaf of a batch lies in its slot; leaves that are no numbers travel beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import optree
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes that each leaf is aligned to: what JAX asks for to use the memory in place on CPU."""

Buffer: TypeAlias = Any
"""A writable object with the buffer protocol; typing has a name for it from Python 3.12 on."""


class LeafSpec(NamedTuple):
    """Shape and dtype of one leaf of a batch; dtype None where the leaf is no array of numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None


@dataclass(frozen=True)
class Layout:
    """The leaves of a batch in a slot, one after the other.

    Attributes:
        treespec: Structure of the batch.
        leaves: Its leaves, in the order of the treespec; the mask last, where there is one.
        masked: Whether the batch gains a ``mask``.
        offsets: Byte offset in the slot of each leaf that is an array.
        num_bytes: Bytes of all arrays.
    """

    treespec: optree.PyTreeSpec
    leaves: tuple[LeafSpec, ...]
    masked: bool
    offsets: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(
        cls, treespec: optree.PyTreeSpec, leaves: Sequence[LeafSpec], mask_rows: int | None = None
    ) -> Layout:
        """Lays the leaves out.

        Args:
            treespec: Structure of the batch.
            leaves: Its leaves.
            mask_rows: Rows of the mask that the batch gains; None: no mask.
        """
        masked = mask_rows is not None
        if mask_rows is not None:
            leaves = [*leaves, LeafSpec((mask_rows,), np.dtype(bool))]
        offsets = []
        end = 0
        for shape, dtype in leaves:
            offsets.append(end)
            if dtype is not None:
                size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
                end += -(-size // ALIGNMENT) * ALIGNMENT
        return cls(treespec, tuple(leaves), masked, tuple(offsets), end)

    def arrays(self, slot: Buffer, start: int = 0) -> list[NDArray[Any] | None]:
        """The leaves as arrays over the slot's memory; None for those that are objects.

        Args:
            slot: The memory; it becomes the arrays' ``base``.
            start: Byte offset of the slot in it.
        """
        return [
            None if dtype is None else np.ndarray(shape, dtype, slot, start + offset)
            for (shape, dtype), offset in zip(self.leaves, self.offsets, strict=True)
        ]

    def batch(self, slot: Buffer, objects: Sequence[Any]) -> Any:
        """The batch over the slot's memory.

        Args:
            slot: The memory; it becomes the arrays' ``base``.
            objects: The leaves that are no arrays of numbers, in order.
        """
        leaves: list[Any] = self.arrays(slot)
        if objects:
            beside = iter(objects)
            leaves = [next(beside) if leaf is None else leaf for leaf in leaves]
        if not self.masked:
            return self.treespec.unflatten(leaves)
        *leaves, mask = leaves
        batch = self.treespec.unflatten(leaves)
        if isinstance(batch, dict):
            batch["mask"] = mask
            return batch
        return batch, mask
