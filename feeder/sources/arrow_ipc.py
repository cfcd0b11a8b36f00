"""Arrow IPC and Feather files, mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder import arguments
from feeder.sources import files
from feeder.sources.arrow_columns import Layout
from feeder.sources.kept import Kept
from feeder.sources.row_groups import CACHE_BYTES, RowGroups, fields

_MOST_OPEN = 256
"""Files that a process keeps mapped."""


class _Found(NamedTuple):
    schema: Any
    lengths: list[int]
    is_mapped: bool


class Arrow:
    """The rows of Arrow IPC (Feather version 2) files, one after the other, as dicts of columns.

    The files are mapped into memory: records of files that are not compressed are taken where they
    are, in any order, and no process holds a copy. Feather files are compressed unless they are
    written with ``compression="uncompressed"``: then a record batch is decompressed as a whole, and
    `Parquet` says what that means for the order of records. What becomes of columns is told there
    too. Of compressed files the constructor decompresses one column, to count the rows.

    Args:
        paths: A file, a pattern such as ``"train-*.arrow"``, a folder (all ``*.arrow`` in and
            below it), or a list of such. The files of a pattern or a folder come in the order of
            their names.
        columns: Names of the columns to read. None: all.
        fill_nulls: As of `Parquet`.
        cache_bytes: Most bytes of decompressed record batches that one process keeps.

    Raises:
        TypeError: An argument has the wrong type, or a column has a type that NumPy has not.
        ValueError: There is no file, or one is no Arrow file of random access (a stream is not), or
            is cut short, or lacks a column, or has it in another type than the first file.
        ImportError: The package `pyarrow` is not installed.
    """

    def __init__(
        self,
        paths: Any,
        *,
        columns: Sequence[str] | None = None,
        fill_nulls: Mapping[str, Any] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.paths = files.all_of("paths", paths, "*.arrow")
        cache_bytes = arguments.integer("cache_bytes", cache_bytes, 0)
        pyarrow = files.package("pyarrow", "Arrow", "pyarrow", "parquet")
        found = files.opened(self.paths, _look, (pyarrow.ArrowException, OSError, ValueError))
        wanted = fields(self.paths, [each.schema for each in found], columns)
        layout = Layout(wanted, fill_nulls)
        self._names = [name for name, _ in wanted]
        self._are_mapped = [each.is_mapped for each in found]
        self._readers = Kept(self._opened, _MOST_OPEN)
        lengths = [each.lengths for each in found]
        self._groups = RowGroups(
            self.paths, lengths, self._load, layout, cache_bytes, all(self._are_mapped)
        )
        if not layout.has_lists:
            self.read = self._batch

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> Any:
        return self._groups.record(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The records at ``indices``, in that order."""
        return self._groups.records(indices)

    def __repr__(self) -> str:
        return f"Arrow({len(self)} records of {len(self.paths)} files, {self._names})"

    def _batch(self, indices: NDArray[np.int64]) -> Any:
        return self._groups.batch(indices)

    def _load(self, file: int, group: int) -> tuple[Any, int]:
        reader, memory = self._readers(file)
        batch = reader.get_batch(group)
        return batch, 0 if _lies_in(memory, batch) else batch.nbytes

    def _opened(self, file: int) -> tuple[tuple[Any, Any], int]:
        import pyarrow.ipc

        memory = pyarrow.memory_map(self.paths[file]).read_buffer()
        reader = pyarrow.ipc.open_file(memory)
        if not self._are_mapped[file]:
            included = [reader.schema.get_field_index(name) for name in self._names]
            options = pyarrow.ipc.IpcReadOptions(included_fields=included)
            reader = pyarrow.ipc.open_file(memory, options=options)
        return (reader, memory), 1


def _look(path: str) -> _Found:
    import pyarrow.ipc

    memory = pyarrow.memory_map(path).read_buffer()
    # To leave columns out would copy the others.
    one_column = pyarrow.ipc.IpcReadOptions(included_fields=[0])
    with pyarrow.ipc.open_file(memory) as reader:
        schema, count = reader.schema, reader.num_record_batches
        is_mapped = all(
            _lies_in(memory, reader.get_batch(number)) for number in range(min(count, 1))
        )
    with pyarrow.ipc.open_file(memory, options=None if is_mapped else one_column) as reader:
        lengths = [reader.get_batch(number).num_rows for number in range(count)]
    return _Found(schema, lengths, is_mapped)


def _lies_in(memory: Any, batch: Any) -> bool:
    """Whether a record batch is where the file is mapped: it was not decompressed."""
    end = memory.address + memory.size
    return all(
        memory.address <= buffer.address < end
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    )
