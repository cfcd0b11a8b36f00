"""What counts as a source, and how the user's object becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feeder.sources.arrays import ArraySource
from feeder.sources.callable import FromCallable
from feeder.sources.stream import Stream, as_stream


@runtime_checkable
class RandomAccess(Protocol):
    """A source: ``len(source)`` records, ``source[index]`` for each index from 0 to len - 1.

    A source may also offer, to be called once per chunk instead of ``[]`` once per record:

    * ``read(indices)``: int64 indices, shape (rows,) → a batch, every leaf with ``rows`` rows;
    * ``__getitems__(indices)``: a list of ints → a list of records (PyTorch's protocol).
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class InPlace(Protocol):
    """A source that also writes its records straight into a batch, where nothing is done to them.

    It runs no code of others, so that nothing draws from the global generators meanwhile.

    Attributes:
        record_spec: A record, with an `ArraySpec` in the place of each leaf; None: it cannot write
            in place after all, as its records are not all alike.
    """

    record_spec: Any

    def read_into(self, indices: NDArray[np.int64], out: Sequence[NDArray[Any]], /) -> None:
        """Writes the records at ``indices`` into ``out``.

        Args:
            indices: Shape (rows,), every one in ``range(len(self))``.
            out: Arrays of shape (rows, *leaf shape), in the order of optree's leaves.
        """
        ...


Source: TypeAlias = RandomAccess | Stream | FromCallable


def as_source(source: object) -> Source:
    """Makes a source of what the user gave.

    Args:
        source: A NumPy or JAX array, or a dict, tuple or named tuple of them, nested or not:
            a source of its rows. A list: a source of its items. Anything with ``len()`` and
            ``[]`` as it is. Any other iterable, a function that returns an iterator, or an object
            with ``num_shards`` and ``open``: a stream.

    Raises:
        TypeError: It is none of these, or a leaf of a pytree is no array.
        ValueError: The arrays of a pytree differ in length.
    """
    if isinstance(source, np.ndarray | dict | tuple) or _is_jax_array(source):
        return ArraySource(source)
    if isinstance(source, str | bytes | set | frozenset | type):
        raise TypeError(f"`source` must be a collection of records, got {_kind(source)}")
    if isinstance(source, FromCallable):
        return source
    if _has_items(source):
        assert isinstance(source, RandomAccess)
        return source
    if (stream := as_stream(source)) is not None:
        return stream
    raise TypeError(
        "`source` must have len() and [], or be a stream: an iterable, a function that returns an "
        f"iterator, or an object with num_shards and open(), got {_kind(source)}"
    )


def _has_items(source: object) -> bool:
    """Whether any of its records can be had at once."""
    kind = type(source)
    if any(base.__name__ == "IterableDataset" for base in kind.__mro__):
        return False  # PyTorch's, which inherits a [] that only raises
    if callable(getattr(source, "open", None)) and hasattr(source, "num_shards"):
        return False
    return callable(getattr(kind, "__len__", None)) and callable(getattr(kind, "__getitem__", None))


def _is_jax_array(value: object) -> bool:
    # By name: `import feeder` must not import jax.
    return type(value).__module__.split(".")[0] in ("jax", "jaxlib") and hasattr(value, "__array__")


def _kind(source: object) -> str:
    return f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
