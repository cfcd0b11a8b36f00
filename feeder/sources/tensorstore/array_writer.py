"""Writes one array: whole chunks, asynchronously; its metadata once all of them are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.sources.tensorstore.rows import by_rows
from feeder.sources.tensorstore.specs import Spec, reason

if TYPE_CHECKING:
    import tensorstore as ts

_SMALL_CHUNK_BYTES = 256 * 2**10
"""Chunks of small leaves hold a multiple of the records of the others, up to this size."""

_WHOLE = ("n5", "neuroglancer_precomputed", "zarr", "zarr3")
"""Formats that leave out chunks of zeros, unless they are told to write them."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of all records.

    Attributes:
        name: The leaf, as an expression: ``record['image']``.
        shape: Its shape.
        dtype: Its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Bytes of the leaf of one record."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def check(self) -> None:
        """Checks that there are arrays of such elements.

        Raises:
            TypeError: There are none.
        """
        import tensorstore as ts

        try:
            if not self.dtype.hasobject and self.dtype.kind not in "SU" and ts.dtype(self.dtype):
                return
        except ValueError:
            pass
        kind = "an object" if self.dtype.hasobject else str(self.dtype)
        raise TypeError(
            f"`source` must have records of numbers, got {kind} at {self.name}; turn it into an "
            "array of numbers in a transform, or leave it out"
        )

    def chunk_rows(self, chunk_records: int, largest: int) -> int:
        """Records in a chunk: ``chunk_records``, and a multiple where a leaf is the larger one."""
        rows = chunk_records
        while self.num_bytes < largest and 2 * rows * max(self.num_bytes, 1) <= _SMALL_CHUNK_BYTES:
            rows *= 2
        return rows


class Write(NamedTuple):
    """A write that is under way.

    Attributes:
        future: Done once it is on disk.
        num_bytes: Its size.
        what: What is written, for messages.
    """

    future: ts.WriteFutures
    num_bytes: int
    what: str

    def wait(self) -> None:
        """Waits for its end.

        Raises:
            OSError: It failed.
        """
        try:
            self.future.result()
        except Exception as error:
            raise OSError(f"{self.what} cannot be written: {reason(error)}") from error


class ArrayWriter:
    """Writes the rows of one array in order.

    Args:
        leaf: What the rows are.
        name: What the array is called, once it is in its place.
        spec: The array's spec; chunks that it says nothing of hold ``chunk_rows`` rows.
        axis: Which axis the rows are slices of.
        num_records: How many will come.
        chunk_rows: See above.
        context: TensorStore's resources.

    Attributes:
        block: Rows that are written together: those of a chunk, or shard.

    Raises:
        ValueError: There can be no such array.
    """

    def __init__(
        self,
        leaf: Leaf,
        name: str,
        spec: Spec,
        axis: int | str,
        num_records: int,
        chunk_rows: int,
        context: ts.Context,
    ) -> None:
        import tensorstore as ts

        self._what = f"{leaf.name} to {name}"
        self._context = context
        rank = len(leaf.shape) + 1
        domain = ts.Spec(spec).domain
        labels = [] if domain is None else list(domain.labels)
        number = labels.index(axis) if axis in labels else axis
        if isinstance(number, str) or not -rank <= number < rank:
            raise ValueError(f"`axis` must be a dimension of {name}, of rank {rank}, got {axis!r}")
        number %= rank
        shape, chunk = list(leaf.shape), [max(size, 1) for size in leaf.shape]
        shape.insert(number, num_records)
        chunk.insert(number, chunk_rows)
        if spec["driver"] in _WHOLE:
            spec = {"store_data_equal_to_fill_value": True, **spec}
        try:
            self._store = ts.open(
                spec,
                open=True,
                assume_metadata=True,  # it is written at the end
                read=True,
                write=True,
                context=context,
                dtype=ts.dtype(leaf.dtype),
                shape=shape,
                chunk_layout=ts.ChunkLayout(chunk_shape_soft_constraint=chunk),
            ).result()
        except Exception as error:
            raise ValueError(
                f"`spec` must name an array that can hold {leaf.dtype}{shape} of {leaf.name}, got "
                f"{name}: {reason(error)}"
            ) from error
        self._view = by_rows(self._store, number)
        self.block = (self._store.chunk_layout.write_chunk.shape or ())[number] or 1
        self._start = 0
        self._held: list[NDArray[Any]] = []

    def append(self, rows: NDArray[Any]) -> Iterator[Write]:
        """Takes rows, and begins to write those that fill chunks.

        Args:
            rows: Kept until their write is done, where it is begun; else copied.
        """
        num_held = sum(map(len, self._held))
        num_whole = (num_held + len(rows)) // self.block * self.block - num_held
        if num_whole <= 0:
            self._held.append(rows.copy())  # it may be a view of a large slot
            return
        whole, rest = rows[:num_whole], rows[num_whole:]
        yield self._begin(np.concatenate([*self._held, whole]) if self._held else whole)
        self._held = [rest.copy()] if len(rest) else []

    def flush(self) -> Iterator[Write]:
        """Begins to write the last rows, which fill no chunk."""
        if self._held:
            yield self._begin(np.concatenate(self._held))
            self._held = []

    def finish(self) -> None:
        """Writes the metadata: from now on there is an array.

        Raises:
            OSError: It cannot be written.
        """
        import tensorstore as ts

        spec = self._store.spec().to_json()
        spec.pop("transform", None)
        try:
            ts.open(spec, create=True, open=False, context=self._context).result()
        except Exception as error:
            raise OSError(
                f"the metadata of {self._what} cannot be written: {reason(error)}"
            ) from error

    def _begin(self, rows: NDArray[Any]) -> Write:
        start, stop = self._start, self._start + len(rows)
        self._start = stop
        return Write(
            self._view[start:stop].write(rows),
            rows.nbytes,
            f"records {start} to {stop - 1} of {self._what}",
        )
