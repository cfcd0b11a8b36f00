"""One array as rows along one of its axes: what is known of it before any row is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.errors import SourceError
from feeder.sources.tensorstore.specs import Spec, name_of, reason

if TYPE_CHECKING:
    import tensorstore as ts

REMEDY_MEMORY = (
    "what is in memory:// lives in the process and the Context that made it: pass the open "
    'tensorstore.TensorStore, and use num_workers=0 or worker_type="thread"'
)


@dataclass(frozen=True, slots=True)
class Rows:
    """What is known of an array.

    Attributes:
        leaf: Which leaf of a record it is, as an expression: ``record['image']``.
        spec: Its spec.
        axis: The axis of which records are slices.
        length: How many.
        shape: Shape of a record.
        dtype: Its dtype.
        chunk_rows: Rows that the storage keeps together; 1 where this is not known.
        phase: Rows by which its first chunk is cut short.
    """

    leaf: str
    spec: Spec
    axis: int
    length: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    phase: int

    @property
    def where(self) -> str:
        """Its place, and the leaf that it is, for messages."""
        return place_of(self.leaf, self.spec)

    @property
    def row_bytes(self) -> int:
        """Bytes of a record."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def slab_bytes(self) -> int:
        """Bytes of the rows that the storage keeps together."""
        return self.chunk_rows * self.row_bytes

    def slab(self, number: int) -> slice:
        """The rows of a slab: what one chunk holds of them."""
        start = number * self.chunk_rows - self.phase
        return slice(max(start, 0), min(start + self.chunk_rows, self.length))

    @classmethod
    def of(cls, leaf: str, spec: Spec, axis: int | str, store: ts.TensorStore) -> Rows:
        """Looks at an open array.

        Raises:
            ValueError: It has no such axis, or no end along it.
            TypeError: Its elements are none of NumPy's.
        """
        where = place_of(leaf, spec)
        rank, labels = store.rank, store.domain.labels
        if isinstance(axis, str):
            if axis not in labels:
                named = ", ".join(filter(None, labels)) or "none: it has no labels"
                raise ValueError(f"`axis` must be a label of {where} ({named}), got {axis!r}")
            axis = labels.index(axis)
        if not -rank <= axis < rank:
            raise ValueError(f"`axis` must be a dimension of {where}, of rank {rank}, got {axis}")
        axis %= rank
        view = by_rows(store, axis)
        if not all(dimension.finite for dimension in view.domain):
            raise ValueError(
                f"`spec` must have an end in all dimensions, got {view.domain} of {where}; give "
                "the spec a transform"
            )
        dtype = np.dtype(store.dtype.numpy_dtype)
        if not dtype.itemsize:
            raise TypeError(
                f"`spec` must be of numbers, got {where} of {store.dtype}; wrap it: "
                '{"driver": "cast", "dtype": "uint8", "base": spec}'
            )
        length, *shape = view.shape
        layout = view.chunk_layout
        rows = min((layout.read_chunk.shape or (1,))[0] or 1, max(length, 1))
        origin = (layout.grid_origin or (0,))[0] or 0
        return cls(leaf, spec, axis, length, tuple(shape), dtype, rows, -origin % rows)

    def check(self, store: ts.TensorStore) -> None:
        """Checks that an array that was opened again is what it was.

        Raises:
            SourceError: It is not.
        """
        now = Rows.of(self.leaf, self.spec, self.axis, store)
        if now.length < self.length or (now.shape, now.dtype) != (self.shape, self.dtype):
            raise self.failed(
                f"{self.where} must stay as it is while it is read: it had {self.length} records "
                f"of {self.dtype}{list(self.shape)}, and now has {now.length} of "
                f"{now.dtype}{list(now.shape)}; make the source anew"
            )

    def failed(self, message: str, index: int = 0) -> SourceError:
        """An error at a record, or at all of them."""
        return SourceError(message, path=name_of(self.spec), index=index)

    def not_opened(self, error: Exception) -> SourceError:
        """Says that the array, which was there, cannot be opened again."""
        hint = f"; {REMEDY_MEMORY}" if "memory" in str(self.spec.get("kvstore")) else ""
        return self.failed(f"{self.where} cannot be opened: {reason(error)}{hint}")


def place_of(leaf: str, spec: Spec) -> str:
    """The place of an array and the leaf that it is, for messages."""
    return name_of(spec) if leaf == "record" else f"{name_of(spec)} ({leaf})"


def by_rows(store: ts.TensorStore, axis: int) -> ts.TensorStore:
    """A view of an array whose first dimension is the axis, and begins at 0."""
    import tensorstore as ts

    return store[ts.d[axis].transpose[0]][ts.d[0].translate_to[0]]
