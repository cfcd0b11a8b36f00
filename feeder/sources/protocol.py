"""What counts as a source, and how the user's object becomes one."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from feeder import tensors
from feeder.sources.arrays import ArraySource
from feeder.sources.callable import FromCallable
from feeder.sources.stream import Stream, as_stream


@runtime_checkable
class RandomAccess(Protocol):
    """A source: ``len(source)`` records, ``source[index]`` for each index from 0 to len - 1.

    A source may also offer, to be called once per chunk instead of ``[]`` once per record:

    * ``read(indices)``: int64 indices, shape (rows,) → a batch, every leaf with ``rows`` rows;
    * ``__getitems__(indices)``: a list of ints → a list of records (PyTorch's protocol).

    And, as an attribute, a ``fingerprint``: a string that says which data these are. A state that
    was saved with another one is refused, and the processes of a job must have the same.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Source: TypeAlias = RandomAccess | Stream | FromCallable


def fingerprint_of(source: object) -> str | None:
    """The source's own fingerprint; None where it has none."""
    found = getattr(source, "fingerprint", None)
    return found if isinstance(found, str) else None


def offers_list(source: object) -> bool:
    """Whether it reads lists of records; a class may say that it does not, by None."""
    return callable(getattr(source, "__getitems__", None))


def as_source(source: object) -> Source:
    """Makes a source of what the user gave.

    Args:
        source: A NumPy or JAX array, a tensor of PyTorch's, or a dict, tuple or named tuple of
            them, nested or not: a source of its rows. A list: a source of its items. A data set of
            Hugging Face's: as `HuggingFace` says. Anything with ``len()`` and ``[]`` as it is. Any
            other iterable, a function that returns an iterator, or an object with ``num_shards``
            and ``open``: a stream.

    Raises:
        TypeError: It is none of these, or a leaf of a pytree is no array.
        ValueError: The arrays of a pytree differ in length.
    """
    if (
        isinstance(source, np.ndarray | dict | tuple)
        or _is_jax_array(source)
        or tensors.is_tensor(source)
    ):
        return ArraySource(source)
    if isinstance(source, str | bytes | set | frozenset | type):
        raise TypeError(f"`source` must be a collection of records, got {_kind(source)}")
    if isinstance(source, FromCallable):
        return source
    if (kind := _kind_of_table(source)) is not None:
        raise TypeError(
            f"`source` must be a collection of records, got a {kind}, a table of columns; give a "
            'dict of its columns as arrays, as {"x": table["x"].to_numpy()}, or write it to a file '
            "for feeder.sources.Parquet"
        )
    if _named(source, "tensorstore", "TensorStore"):
        from feeder.sources.tensorstore import TensorStore

        return TensorStore(source)
    if any(base.__module__.split(".")[0] == "datasets" for base in type(source).__mro__):
        from feeder.sources.huggingface import HuggingFace, kind_of

        if kind_of(source) is not None:
            found: Source = HuggingFace(source)
            return found
    if _has_items(source):
        assert isinstance(source, RandomAccess)
        return source
    if (stream := as_stream(source)) is not None:
        return stream
    raise TypeError(
        "`source` must have len() and [], or be a stream: an iterable, a function that returns an "
        f"iterator, or an object with num_shards and open(), got {_kind(source)}"
    )


def _named(value: object, package: str, name: str) -> bool:
    # By name: `import feeder` imports none of these packages.
    kind = type(value)
    return kind.__name__ == name and kind.__module__.split(".")[0] == package


def _kind_of_table(source: object) -> str | None:
    """The name of a table whose ``[]`` gives columns, not records."""
    for package, name in (("pyarrow", "Table"), ("pandas", "DataFrame"), ("polars", "DataFrame")):
        if _named(source, package, name):
            return f"{package}.{name}"
    return None


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
