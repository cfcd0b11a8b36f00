"""Arrays in memory, and pytrees of them, as a source of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from feeder import tensors
from feeder.spec import ArraySpec


class ArraySource:
    """The rows of one array, or of a pytree of arrays of one length.

    The arrays are shared with the worker processes, not copied. A record is a copy of its
    rows: user code may write into it and the source stays as it is.

    Attributes:
        treespec: Structure of a record.
        arrays: One array per leaf, all of the same length.
        record_spec: Its `ArraySpec`, or a pytree of those; None where some leaf holds objects.
        in_memory: True: reading few records at a time costs no more.
    """

    in_memory = True

    def __init__(self, tree: Any) -> None:
        leaves, self.treespec = optree.tree_flatten(tree, is_leaf=lambda node: type(node) is list)
        names = [accessor.codify("source") for accessor in self.treespec.accessors()]
        if not leaves:
            raise TypeError(f"`source` must hold at least one array, got {tree!r}")
        self.arrays = [_as_array(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        lengths = {name: len(array) for name, array in zip(names, self.arrays, strict=True)}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"len({name}) = {length}" for name, length in lengths.items())
            raise ValueError(f"`source` must hold arrays of one length, got {listed}")
        specs = [ArraySpec(array.shape[1:], array.dtype) for array in self.arrays]
        has_objects = any(spec.dtype.hasobject for spec in specs)
        self.record_spec = None if has_objects else self.treespec.unflatten(specs)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> Any:
        return self.treespec.unflatten([array[index].copy() for array in self.arrays])

    def read(self, indices: NDArray[np.int64]) -> Any:
        """The batch of the rows at ``indices``, in new arrays."""
        return self.treespec.unflatten([array.take(indices, axis=0) for array in self.arrays])

    def read_into(self, indices: NDArray[np.int64], out: Sequence[NDArray[Any]]) -> None:
        """Copies the rows at ``indices`` into ``out``, one array per leaf.

        Args:
            indices: Shape (rows,), every one in ``range(len(self))``.
            out: Arrays of shape (rows, *row shape) and of the leaves' dtypes.
        """
        for array, target in zip(self.arrays, out, strict=True):
            # mode="raise" would gather into a temporary first.
            array.take(indices, axis=0, out=target, mode="clip")


def _as_array(name: str, leaf: Any) -> NDArray[Any]:
    if isinstance(leaf, list) or not (hasattr(leaf, "__array__") or isinstance(leaf, np.ndarray)):
        raise TypeError(
            f"`source` must be a pytree of arrays, got {type(leaf).__name__} at {name}; "
            "use numpy.asarray, or a list of records"
        )
    array = tensors.as_numpy(leaf) if tensors.is_tensor(leaf) else np.asarray(leaf)
    if array.ndim == 0:
        raise TypeError(f"`source` must hold arrays of rows, got a single value at {name}")
    return array
