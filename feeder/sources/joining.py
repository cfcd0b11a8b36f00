"""Batches of several sources, joined into one: leaf by leaf, each row in its place.

Guarantees:
    * Nothing is cast: what differs in structure, shape or dtype is an error that names the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import optree
from numpy.typing import NDArray

from feeder.spec import ArraySpec

Rows: TypeAlias = slice | NDArray[np.intp]
"""Rows of a batch, as an index of NumPy's."""


class Kind(NamedTuple):
    """What the records of a source are like.

    Attributes:
        name: What the source is called in messages.
        treespec: Structure of a record.
        specs: The leaves of a record.
    """

    name: str
    treespec: optree.PyTreeSpec
    specs: tuple[ArraySpec, ...]


def joined(parts: Sequence[tuple[str, Rows, Any]], num_rows: int) -> Any:
    """One batch of the rows of several.

    Args:
        parts: Name of the source, rows of the whole that it fills, and its batch; at least one.
        num_rows: Rows of the whole.

    Raises:
        ValueError: They differ in structure, or in shape or dtype of a leaf.
    """
    out: list[NDArray[Any]] = []
    first: Kind | None = None
    for name, rows, batch in parts:
        leaves, treespec = optree.tree_flatten(batch)
        arrays = [np.asarray(leaf) for leaf in leaves]
        specs = tuple(ArraySpec(array.shape[1:], array.dtype) for array in arrays)
        kind = Kind(name, treespec, specs)
        if first is None:
            first = kind
            out = [np.empty((num_rows, *spec.shape), spec.dtype) for spec in specs]
        check_alike(first, kind)
        for target, array in zip(out, arrays, strict=True):
            target[rows] = array
    assert first is not None
    return first.treespec.unflatten(out)


def check_alike(one: Kind, other: Kind) -> None:
    """Refuses records of two sources that do not fit one batch.

    Raises:
        ValueError: They differ in structure, or in shape or dtype of a leaf.
    """
    (name, treespec, specs), (other_name, other_treespec, other_specs) = one, other
    if treespec == other_treespec and specs == other_specs:
        return
    if treespec != other_treespec:
        what, expected, got = "structure", str(treespec), str(other_treespec)
    else:
        number = next(
            place
            for place, pair in enumerate(zip(specs, other_specs, strict=True))
            if pair[0] != pair[1]
        )
        leaf = treespec.accessors()[number].codify("record")
        expected_spec, got_spec = specs[number], other_specs[number]
        differ = "shape" if expected_spec.shape != got_spec.shape else "dtype"
        what = f"{differ} at {leaf}"
        expected, got = str(getattr(expected_spec, differ)), str(getattr(got_spec, differ))
    raise ValueError(
        f"records of all sources must have the same {what}, got {got} in {other_name} and "
        f"{expected} in {name}; make them equal in the sources, where nothing is cast silently"
    )
