"""The rows of one array of TensorStore's, or of a pytree of arrays of one length, as a source."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optree
from numpy.typing import NDArray

from feeder import arguments
from feeder.sources.tensorstore.reader import Indices, Limits, Reader, begin_open
from feeder.sources.tensorstore.rows import REMEDY_MEMORY, Rows, place_of
from feeder.sources.tensorstore.specs import Spec, as_json, expanded, is_spec, opened, reason
from feeder.spec import ArraySpec

if TYPE_CHECKING:
    import tensorstore as ts

_SLABS = 32
_LEAST_BYTES, _MOST_BYTES = 256 * 2**20, 2**30
"""Chunks that are kept, unless `cache_bytes` says otherwise: of every array, within bounds."""

_POOL_BYTES = 16 * 2**20
"""The same for what TensorStore keeps."""


class TensorStore:
    """The slices of an array along one axis, or of a pytree of arrays of one length.

    Every format and storage that TensorStore knows: zarr, zarr3, n5, neuroglancer_precomputed and
    others; files, Google Cloud Storage, S3, HTTP. Metadata is read at once; the arrays are opened
    again, lazily, in each process that reads records, with threads and caches of its own. Reads are
    asynchronous, all of a batch at a time; all leaves are read side by side.

    Where a chunk of the storage holds many records, whole chunks are read, and kept in memory while
    there is room: shuffle with ``feeder.BlockShuffle(source.chunk_records)``, and each is read
    about once. The data must not change while it is read.

    Args:
        spec: A TensorStore spec: a dict with a ``"driver"``; a URL, such as
            ``"gs://bucket/path/|zarr3:"`` (the format may be left out); a path; a
            `tensorstore.Spec`, or an open `tensorstore.TensorStore`, which this process and its
            threads use as it is. Or a pytree of them, one for each leaf of a record. Or the path or
            URL that was given to `write_tensorstore`: all leaves of its records. A spec's
            ``"transform"`` gives a part of an array.
        axis: Of which axis the records are slices: a number, or a dimension's label; or a pytree of
            them, one for each spec.
        cache_bytes: Decoded chunks that each process keeps, in bytes; None: 32 chunks of every
            array, from 256 MiB to 1 GiB, and 16 MiB of what TensorStore keeps by itself, as chunks
            of one record. A `BlockShuffle` needs room for its window.
        concurrency: Files and requests read at a time by each process, and threads that decode;
            None: TensorStore's own limits.

    Attributes:
        record_spec: A record with a `feeder.ArraySpec` in the place of each leaf; None where a leaf
            is no number.
        chunk_records: Records that the storage keeps together, in the array whose records are
            largest.

    Raises:
        TypeError: An argument has the wrong type, or an array holds no numbers.
        ValueError: A spec or an axis is wrong, or the arrays differ in length.
        FileNotFoundError: An array is not there, or was not written to its end.
        TimeoutError: A server has not answered within a minute.
        SourceError: Raised while reading: records could not be read, or an array is no longer what
            it was; the message names the array and the records.
    """

    def __init__(
        self,
        spec: Any,
        *,
        axis: Any = 0,
        cache_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        cache_bytes = arguments.optional_integer("cache_bytes", cache_bytes, 0)
        concurrency = arguments.optional_integer("concurrency", concurrency, 1)
        if isinstance(spec, str | os.PathLike):
            spec = expanded(spec)
        leaves, self._treespec = optree.tree_flatten(spec, is_leaf=is_spec)
        if not leaves:
            raise ValueError(f"`spec` must name at least one array, got {spec!r}")
        self._leaves = [accessor.codify("record") for accessor in self._treespec.accessors()]
        specs = [as_json(leaf) for leaf in leaves]
        self._stores: list[ts.TensorStore | None] = [_if_open(leaf) for leaf in leaves]
        self._arrays = _looked_at(self._leaves, specs, axes_of(axis, self._treespec), self._stores)
        lengths = {array.leaf: array.length for array in self._arrays}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{array.length} in {array.where}" for array in self._arrays)
            raise ValueError(f"`spec` must name arrays of one length, got {listed}")
        self._limits = _limits(self._arrays, cache_bytes, concurrency)
        self._reader: Reader | None = None
        self._pid: int | None = os.getpid()
        self._lock = threading.Lock()

    @property
    def record_spec(self) -> Any:
        """A record with the shape and dtype of each leaf in its place."""
        if any(array.dtype.hasobject for array in self._arrays):
            return None
        return self._treespec.unflatten(
            [ArraySpec(array.shape, array.dtype) for array in self._arrays]
        )

    @property
    def chunk_records(self) -> int:
        """Records that the storage keeps together: the block size to shuffle with."""
        return max(self._arrays, key=lambda array: array.row_bytes).chunk_rows

    def __len__(self) -> int:
        return self._arrays[0].length

    def __getitem__(self, index: int) -> Any:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"index {number} is out of range for {len(self)} records")
        batch = self.read([number % len(self)])
        return optree.tree_map(lambda leaf: leaf[0], batch)

    def read(self, indices: Sequence[int] | Indices) -> Any:
        """The batch of the records at ``indices``, in new arrays.

        Args:
            indices: Shape (rows,), every one in ``range(len(self))``, in any order.

        Raises:
            IndexError: One of them is not.
            SourceError: Some records cannot be read; the message names them.
        """
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(
                f"`indices` must be from 0 to {len(self) - 1}, got {numbers.min()} to "
                f"{numbers.max()}"
            )
        out = [np.empty((len(numbers), *array.shape), array.dtype) for array in self._arrays]
        self.read_into(numbers, out)
        return self._treespec.unflatten(out)

    def read_into(self, indices: Indices, out: Sequence[NDArray[Any]]) -> None:
        """Reads the records at ``indices`` into ``out``, one array per leaf.

        Args:
            indices: Shape (rows,), every one in ``range(len(self))``.
            out: Arrays of shape (rows, *record shape) and of the leaves' dtypes.

        Raises:
            SourceError: Some records cannot be read; the message names them.
            RuntimeError: The process was forked after the source was made.
        """
        if len(indices):
            self._opened().read_into(indices, out)

    def _opened(self) -> Reader:
        if self._pid not in (os.getpid(), None):  # TensorStore would end the process
            raise RuntimeError(
                f"{self!r} cannot be read in a process that was forked after it was made: "
                "TensorStore has threads; start processes by spawn or forkserver"
            )
        if self._reader is None:
            with self._lock:
                if self._reader is None:
                    self._pid = os.getpid()
                    self._reader = Reader(self._arrays, self._stores, self._limits)
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        # Names only: TensorStore's threads do not survive a fork, nor do stores in memory.
        return {
            **self.__dict__,
            "_stores": [None] * len(self._stores),
            "_reader": None,
            "_pid": None,
            "_lock": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        listed = ", ".join(array.where for array in self._arrays)
        return f"TensorStore({listed}; {len(self)} records)"


def _if_open(leaf: Any) -> ts.TensorStore | None:
    import tensorstore as ts

    return leaf if isinstance(leaf, ts.TensorStore) else None


def axes_of(axis: Any, treespec: optree.PyTreeSpec) -> list[int | str]:
    """The axis of each leaf.

    Raises:
        TypeError: One of them is neither a number nor a label, or there is not one for each.
    """
    axes: list[Any] = [axis] * treespec.num_leaves
    if not isinstance(axis, int | str | np.integer):
        with contextlib.suppress(ValueError, TypeError):  # else it is no axis itself
            axes = treespec.flatten_up_to(axis)
    if all(isinstance(one, int | str | np.integer) and type(one) is not bool for one in axes):
        return axes
    raise TypeError(
        f"`axis` must be a number, a dimension's label, or one of them for each spec, got {axis!r}"
    )


def _looked_at(
    leaves: Sequence[str],
    specs: Sequence[Spec],
    axes: Sequence[int | str],
    stores: Sequence[ts.TensorStore | None],
) -> list[Rows]:
    """Reads the metadata of all arrays, side by side.

    Raises:
        FileNotFoundError: An array is not there.
        ValueError: It cannot be opened, or is not as it should be.
    """
    context = Limits(0, 0, None, ()).context()
    opening = [
        begin_open(spec, context) if store is None else None
        for spec, store in zip(specs, stores, strict=True)
    ]
    arrays = []
    for leaf, spec, axis, store, future in zip(leaves, specs, axes, stores, opening, strict=True):
        if future is not None:
            try:
                store = opened(future, place_of(leaf, spec))
            except TimeoutError:
                raise
            except Exception as error:
                raise _not_there(leaf, spec, error) from error
        assert store is not None
        if not store.readable:
            raise ValueError(f"`spec` must be readable, got {place_of(leaf, spec)}")
        arrays.append(Rows.of(leaf, _in_its_format(spec, store), axis, store))
    return arrays


def _in_its_format(spec: Spec, store: ts.TensorStore) -> Spec:
    """A spec with the format that was found: "auto" would check what is cached at each read."""
    if spec["driver"] != "auto":
        return spec
    found = store.spec(minimal_spec=True).to_json()
    return {**spec, "driver": found["driver"], "kvstore": found["kvstore"]}


def _not_there(leaf: str, spec: Spec, error: Exception) -> Exception:
    text = reason(error)
    where = place_of(leaf, spec)
    message = f"`spec` must name an array that can be opened, got {where}: {text}"
    if "memory" in str(spec.get("kvstore")):
        return FileNotFoundError(f"{message}; {REMEDY_MEMORY}")
    if text.startswith("NOT_FOUND") or "Failed to detect format" in text:
        return FileNotFoundError(f"{message}; is the path right, and was it written to its end?")
    return ValueError(message)


def _limits(arrays: Sequence[Rows], cache_bytes: int | None, concurrency: int | None) -> Limits:
    """Which arrays are read in slabs, and what may be kept of them."""
    many = [array.chunk_rows > 1 and not array.dtype.hasobject for array in arrays]
    wanted = _SLABS * sum(a.slab_bytes for a, holds in zip(arrays, many, strict=True) if holds)
    slab_bytes = min(max(wanted, _LEAST_BYTES), _MOST_BYTES)
    pool_bytes = _POOL_BYTES
    if cache_bytes is not None:
        pool_bytes = cache_bytes // 16 if any(many) else cache_bytes
        slab_bytes = cache_bytes - pool_bytes
    slabbed = tuple(
        holds and array.slab_bytes <= slab_bytes for array, holds in zip(arrays, many, strict=True)
    )
    return Limits(slab_bytes, pool_bytes, concurrency, slabbed)
