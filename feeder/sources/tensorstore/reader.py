"""Reads batches of rows: what one process has open of the arrays.

Rows of chunks that hold one row each are read at once, by an array of indices. Chunks that hold
many are read whole, kept as slabs, and their rows gathered by NumPy, as far as slabs have room. All
reads of a batch are under way before the first one is waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.errors import SourceError
from feeder.sources.tensorstore.rows import Rows, by_rows
from feeder.sources.tensorstore.slabs import Slabs
from feeder.sources.tensorstore.specs import opened, reason

if TYPE_CHECKING:
    import tensorstore as ts

    Read: TypeAlias = ts.Future[NDArray[Any]]

Indices: TypeAlias = NDArray[np.int64]

_CONCURRENCY = (
    "data_copy_concurrency",
    "file_io_concurrency",
    "gcs_request_concurrency",
    "http_request_concurrency",
    "s3_request_concurrency",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process may use.

    Attributes:
        slab_bytes: Bytes of slabs that are kept.
        pool_bytes: Bytes of TensorStore's own cache: the indices of shards, and chunks that are
            read past the slabs.
        concurrency: Files and requests at a time, and threads that decode; None: TensorStore's
            own limits.
        slabbed: Whether each array is read in slabs.
    """

    slab_bytes: int
    pool_bytes: int
    concurrency: int | None
    slabbed: tuple[bool, ...]

    def context(self) -> ts.Context:
        """A new context of TensorStore's with these limits."""
        import tensorstore as ts

        limits = {} if self.concurrency is None else {"limit": self.concurrency}
        return ts.Context(
            {"cache_pool": {"total_bytes_limit": self.pool_bytes}}
            | (dict.fromkeys(_CONCURRENCY, limits) if limits else {})
        )


@dataclass(slots=True)
class _Piece:
    """Rows of a batch that one read gives.

    Attributes:
        leaf: Of which array.
        places: Their rows in the batch.
        rows: Their rows in what is read; None: all of it, in order.
        read: The read, which is under way.
        slab: Which slab is read; None: the rows alone.
    """

    leaf: int
    places: slice | Indices
    rows: Indices | None
    read: Read
    slab: int | None = None


class Reader:
    """The arrays, open in this process.

    Args:
        arrays: What is to be read.
        stores: Those that are open already; None: opened here.
        limits: What may be used.

    Raises:
        SourceError: An array cannot be opened, or is not what it was.
    """

    def __init__(
        self, arrays: Sequence[Rows], stores: Sequence[ts.TensorStore | None], limits: Limits
    ) -> None:
        self._arrays = arrays
        self._limits = limits
        self._slabs = Slabs(limits.slab_bytes)
        context = limits.context()
        opening = [
            begin_open(array.spec, context) if store is None else None
            for array, store in zip(arrays, stores, strict=True)
        ]
        self._views = []
        for array, store, future in zip(arrays, stores, opening, strict=True):
            if future is not None:
                try:
                    store = opened(future, array.where)
                except Exception as error:
                    raise array.not_opened(error) from error
            assert store is not None
            array.check(store)
            self._views.append(by_rows(store, array.axis)[: array.length])

    def read_into(self, indices: Indices, out: Sequence[NDArray[Any]]) -> None:
        """Reads rows into one array per leaf.

        Raises:
            SourceError: Some of them cannot be read.
        """
        import tensorstore as ts

        self._slabs.tick()
        with ts.Batch() as batch:
            pieces = [
                piece
                for leaf in range(len(self._arrays))
                for piece in self._begin(leaf, indices, batch)
            ]
        for piece in pieces:
            self._finish(piece, indices, out[piece.leaf])

    def _begin(self, leaf: int, indices: Indices, batch: ts.Batch) -> Iterator[_Piece]:
        """Begins to read the rows of an array."""
        array, view = self._arrays[leaf], self._views[leaf]
        if not self._limits.slabbed[leaf]:
            yield _Piece(leaf, slice(None), None, view[_key(indices)].read(batch=batch))
            return
        slabs, rows = np.divmod(indices + array.phase, array.chunk_rows)
        rows[slabs == 0] -= array.phase  # the first slab is cut short
        order = None
        if (np.diff(slabs) < 0).any():
            order = np.argsort(slabs, kind="stable")
            slabs, rows = slabs[order], rows[order]
        starts = np.flatnonzero(np.diff(slabs, prepend=-1)).tolist()
        others: list[Indices] = []
        for start, stop in zip(starts, [*starts[1:], len(slabs)], strict=True):
            slab = int(slabs[start])
            start_read = functools.partial(self._read_slab, leaf, slab, batch)
            read = self._slabs.get((leaf, slab), array.slab_bytes, start_read)
            places = slice(start, stop) if order is None else order[start:stop]
            if read is not None:
                yield _Piece(leaf, places, rows[start:stop], read, slab)
            else:
                others.append(np.arange(start, stop) if order is None else order[start:stop])
        if others:
            places = np.concatenate(others)
            yield _Piece(leaf, places, None, view[_key(indices[places])].read(batch=batch))

    def _read_slab(self, leaf: int, slab: int, batch: ts.Batch) -> Read:
        return self._views[leaf][self._arrays[leaf].slab(slab)].read(batch=batch)

    def _finish(self, piece: _Piece, indices: Indices, out: NDArray[Any]) -> None:
        try:
            rows = piece.read.result()
        except Exception as error:
            raise self._failed(piece, indices, error) from error
        if piece.rows is None:
            # TensorStore could read into `out` itself, but would go on doing so after an interrupt.
            out[piece.places] = rows
        elif isinstance(piece.places, slice):
            rows.take(piece.rows, axis=0, out=out[piece.places], mode="clip")
        else:
            out[piece.places] = rows[piece.rows]

    def _failed(self, piece: _Piece, indices: Indices, error: Exception) -> SourceError:
        """Finds out which records it is that cannot be read."""
        array = self._arrays[piece.leaf]
        bad = indices[piece.places]
        if piece.slab is not None:
            self._slabs.drop((piece.leaf, piece.slab), piece.read)
        else:
            view = self._views[piece.leaf]
            reads = [(index, view[index].read()) for index in np.unique(bad).tolist()]
            found = [(index, again) for index, read in reads if (again := read.exception())]
            if found:
                bad, error = np.array([index for index, _ in found]), found[0][1]
        listed = np.unique(bad).tolist()
        named = ", ".join(map(str, listed[:8])) + (" and others" if len(listed) > 8 else "")
        return array.failed(
            f"record{'s' if len(listed) > 1 else ''} {named} of {array.where} cannot be read: "
            f"{reason(error)}",
            listed[0],
        )


def begin_open(spec: Any, context: ts.Context) -> ts.Future[ts.TensorStore]:
    """Begins to open an array for reading, which is taken not to change while it is open."""
    import tensorstore as ts

    return ts.open(
        spec,
        read=True,
        open=True,
        context=context,
        recheck_cached_metadata="open",
        recheck_cached_data="open",
    )


def _key(indices: Indices) -> slice | Indices:
    """What to index with: neighbours in order are a slice, which is read several times as fast."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first == len(indices) - 1 and (np.diff(indices) == 1).all():
        return slice(first, last + 1)
    return indices
