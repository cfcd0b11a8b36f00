"""Converts any random-access source into arrays of TensorStore's, in one line."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np
import optree
from numpy.typing import NDArray

from feeder import arguments
from feeder.errors import RecordMismatchError
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import as_source
from feeder.sources.stream import Stream
from feeder.sources.tensorstore.array_writer import ArrayWriter, Leaf, Write
from feeder.sources.tensorstore.destination import Destination
from feeder.sources.tensorstore.source import TensorStore, axes_of
from feeder.sources.tensorstore.specs import name_of

_CHUNK_BYTES = 4 * 2**20
"""Size of a chunk of the largest leaf, unless `chunk_records` says otherwise."""

_BATCH_BYTES = 64 * 2**20
"""Most bytes that are read at a time, unless a record has more."""

_IN_FLIGHT_BYTES = 256 * 2**20
"""Most bytes that are being written at a time, beside one chunk of each array."""


class _Bar(Protocol):
    def update(self, n: int) -> object: ...


def write_tensorstore(
    source: Any,
    spec: Any,
    *,
    axis: Any = 0,
    transforms: Sequence[Callable[[Any], Any]] = (),
    num_workers: int = 0,
    chunk_records: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> TensorStore:
    """Writes all records of a source as arrays of TensorStore's, one for each leaf.

    Shapes and dtypes are those of the first record. Whole chunks are written, many at a time, in
    bounded memory. The end is atomic: until all is written nothing can be opened, and what an
    exception interrupts is deleted. In files, a killed run leaves a hidden folder beside the place,
    ``.<name>.partial-<number>``, and what was at the place before; in any other storage, chunks
    without metadata. One process writes a data set.

    Args:
        source: Anything with ``len()`` and ``[]``, as for `feeder.DataLoader`.
        spec: A path, or a URL without a format, such as ``"gs://bucket/path/"``: a zarr group with
            a zarr3 array for each leaf of a record, which is a dict or tuple, nested or not; or one
            zarr3 array, where a record is an array. `TensorStore` opens it by the same name. Or a
            TensorStore spec, or a pytree with one for each leaf, which may say more: format,
            codecs, shards.
        axis: The axis of each array that records are put along; as of `TensorStore`.
        transforms: As of `feeder.DataLoader`; a `feeder.RandomMap` has the seed 0.
        num_workers: Processes that read and transform; 0: this one.
        chunk_records: Records in a chunk of the largest leaf, where ``spec`` does not say; None: as
            many as make 2 to 4 MiB. Chunks of smaller leaves hold a multiple, up to 256 KiB.
        overwrite: Whether a data set that is there may be replaced: in files at the end; in any
            other storage it is deleted at the beginning.
        progress: Whether to show a progress bar on a terminal, where tqdm is installed.

    Returns:
        A source of the records that were written.

    Raises:
        TypeError: An argument has the wrong type, or a leaf holds no numbers.
        ValueError: An argument has a value that cannot work.
        FileExistsError: There is something at the place already.
        RecordMismatchError: A record differs from the first one in shape, dtype or structure.
        OSError: Something cannot be written.
    """
    from feeder.loader import DataLoader  # which stands on the sources

    chunk_records = arguments.optional_integer("chunk_records", chunk_records, 1)
    overwrite = arguments.boolean("overwrite", overwrite)
    make_bar = _bars(arguments.boolean("progress", progress))
    source = as_source(source)
    if isinstance(source, Stream | FromCallable):
        raise TypeError(f"`source` must have len() and [], got {source!r}; make a list of it")
    options: dict[str, Any] = {
        "transforms": transforms,
        "process_index": 0,
        "process_count": 1,
        "last_batch": "keep",
    }
    with DataLoader(source, 1, **options) as loader:
        num_records = len(loader)
        leaves, record = optree.tree_flatten(loader.element_spec)
    names = [accessor.codify("record") for accessor in record.accessors()]
    found = [
        Leaf(name, leaf.shape[1:], leaf.dtype.newbyteorder("="))
        for name, leaf in zip(names, leaves, strict=True)
    ]
    for leaf in found:
        leaf.check()
    largest = max(leaf.num_bytes for leaf in found)
    if chunk_records is None:
        fitting = max(_CHUNK_BYTES // max(largest, 1), 1)
        chunk_records = 1 << (fitting.bit_length() - 1)
    axes = axes_of(axis, record)
    destination = Destination.of(spec, record, overwrite)
    with destination:
        writers = [
            ArrayWriter(
                leaf,
                name_of(spec),
                staged,
                along,
                num_records,
                min(leaf.chunk_rows(chunk_records, largest), num_records),
                destination.context,
            )
            for leaf, spec, staged, along in zip(
                found, destination.specs, destination.staged, axes, strict=True
            )
        ]
        block = max(zip(found, writers, strict=True), key=lambda pair: pair[0].num_bytes)[1].block
        most = max(_BATCH_BYTES // max(sum(leaf.num_bytes for leaf in found), 1), 1)
        batch_size = min(block, most, num_records)
        with (
            DataLoader(source, batch_size, num_workers=num_workers, **options) as loader,
            make_bar(num_records) as bar,
            _Writes() as writes,
        ):
            for step, batch in enumerate(loader):
                rows = _checked(batch, record, found, step, batch_size)
                for writer, leaf_rows in zip(writers, rows, strict=True):
                    writes.extend(writer.append(leaf_rows))
                bar.update(len(rows[0]))
            for writer in writers:
                writes.extend(writer.flush())
        for writer in writers:
            writer.finish()
        destination.publish()
    return TensorStore(destination.written(), axis=record.unflatten(axes))


class _Writes:
    """Writes that are under way; at the end, none is."""

    def __init__(self) -> None:
        self._begun: deque[Write] = deque()
        self._bytes = 0

    def extend(self, writes: Iterator[Write]) -> None:
        """Adds writes, and waits for the first ones where there are too many.

        Raises:
            OSError: One of them failed.
        """
        for write in writes:
            self._begun.append(write)
            self._bytes += write.num_bytes
            while self._bytes > _IN_FLIGHT_BYTES and len(self._begun) > 1:
                self._wait()

    def _wait(self) -> None:
        write = self._begun.popleft()
        self._bytes -= write.num_bytes
        write.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._begun:
            if kind is None:
                self._wait()
            else:  # what it wrote is deleted, but not while it writes
                with contextlib.suppress(OSError):
                    self._wait()


def _checked(
    batch: Any, record: optree.PyTreeSpec, leaves: Sequence[Leaf], step: int, batch_size: int
) -> list[NDArray[Any]]:
    """The leaves of a batch, whose records are like those of its first one.

    Raises:
        RecordMismatchError: That one is not like the first of all.
    """
    index = step * batch_size

    def mismatch(name: str, what: str, got: object, expected: object) -> RecordMismatchError:
        return RecordMismatchError(
            f"{name} must have the same {what} in every record, got {got} in record {index} and "
            f"{expected} in record 0; make them equal in a transform",
            leaf=name,
            expected=expected,
            got=got,
            step=step,
            stage="collate",
            position=index,
            index=index,
        )

    try:
        rows: list[Any] = record.flatten_up_to(batch)
    except (ValueError, TypeError):
        other = optree.tree_structure(batch)
        raise mismatch("record", "structure", other, record) from None
    for leaf, array in zip(leaves, rows, strict=True):
        dtype = np.asarray(array).dtype.newbyteorder("=")
        if dtype != leaf.dtype:
            got = "an object" if dtype.hasobject else dtype
            raise mismatch(leaf.name, "dtype", got, leaf.dtype)
        if array.shape[1:] != leaf.shape:
            raise mismatch(leaf.name, "shape", array.shape[1:], leaf.shape)
    return rows


def _bars(progress: bool) -> Callable[[int], contextlib.AbstractContextManager[_Bar]]:
    """What makes a progress bar of so many records."""
    if not progress:
        return lambda _: contextlib.nullcontext(_NoBar())
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return lambda _: contextlib.nullcontext(_NoBar())
    return lambda total: tqdm(total=total, unit=" records", desc="write_tensorstore", disable=None)


class _NoBar:
    def update(self, n: int) -> None:
        """Shows nothing."""
