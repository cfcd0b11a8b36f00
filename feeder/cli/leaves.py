"""The leaves of a batch: their names, and arrays of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray


def named_leaves(batch: Any) -> dict[str, Any]:
    """Every leaf of a batch, by its name as an expression: ``batch['image']``."""
    leaves, treespec = optree.tree_flatten(batch)
    names = [accessor.codify("batch") for accessor in treespec.accessors()]
    return dict(zip(names, leaves, strict=True))


def as_array(leaf: Any) -> NDArray[Any]:
    """A leaf as NumPy array; of a `jax.Array` the rows that this process holds."""
    if getattr(leaf, "is_fully_addressable", True):
        return np.asarray(leaf)
    parts = {str(shard.index): np.asarray(shard.data) for shard in leaf.addressable_shards}
    return np.concatenate(list(parts.values()))


def num_bytes(batch: Any) -> int:
    """Bytes of the arrays of a batch."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in optree.tree_leaves(batch))


def num_rows(batch: Any) -> int:
    """Rows of a batch: those of its first leaf that has rows."""
    for leaf in optree.tree_leaves(batch):
        if getattr(leaf, "ndim", 0):
            return int(leaf.shape[0])
    return 0


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether values can be seen as floats: the narrow floats of ml_dtypes, of kind V, too."""
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.type is not np.void)
