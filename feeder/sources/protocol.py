"""What counts as a source, and how the user's object becomes one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from feeder.sources.arrays import ArraySource


@runtime_checkable
class RandomAccess(Protocol):
    """A source: ``len(source)`` records, ``source[index]`` for each index from 0 to len - 1.

    A source may also offer, to be called once per chunk instead of ``[]`` once per record:

    * ``read(indices)``: int64 indices, shape (rows,) → a batch, every leaf with ``rows`` rows;
    * ``__getitems__(indices)``: a list of ints → a list of records (PyTorch's protocol).
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def as_source(source: object) -> RandomAccess:
    """Makes a source of what the user gave.

    Args:
        source: A NumPy or JAX array, or a dict, tuple or named tuple of them, nested or not:
            a source of its rows. A list: a source of its items. Anything else with ``len()``
            and ``[]`` as it is.

    Raises:
        TypeError: It has no ``len()`` or no ``[]``, or a leaf of a pytree is no array.
        ValueError: The arrays of a pytree differ in length.
    """
    if isinstance(source, np.ndarray | dict | tuple) or _is_jax_array(source):
        return ArraySource(source)
    if isinstance(source, str | bytes | set | frozenset | type):
        raise TypeError(f"`source` must be a collection of records, got {_kind(source)}")
    missing = [
        offered
        for offered, method in (("len()", "__len__"), ("[]", "__getitem__"))
        if not callable(getattr(type(source), method, None))
    ]
    if not missing:
        assert isinstance(source, RandomAccess)
        return source
    remedy = (
        "; collect it with list(source) where it fits in memory"
        if isinstance(source, Iterable)
        else ""
    )
    raise TypeError(
        f"`source` must have len() and [], got {_kind(source)}, which has no "
        f"{' and no '.join(missing)}{remedy}"
    )


def _is_jax_array(value: object) -> bool:
    # By name: `import feeder` must not import jax.
    return type(value).__module__.split(".")[0] in ("jax", "jaxlib") and hasattr(value, "__array__")


def _kind(source: object) -> str:
    return f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
