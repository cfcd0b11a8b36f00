"""Parquet files: records at random, by row group."""

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

_FOOTERS_KEPT = 256
"""Parsed footers that a process keeps."""


class _Footer(NamedTuple):
    schema: Any
    lengths: list[int]


class Parquet:
    """The rows of Parquet files, one file after the other, as dicts of their columns.

    The constructor reads the files' footers, nothing else. A row group is decoded as a whole, by
    each process that needs a record of it, once for all records of a chunk, and only the columns
    asked for; ``cache_bytes`` of row groups are kept, the least recently used are given up. So

    * data that fits into ``cache_bytes`` is decoded once by each worker, in any order;
    * beyond that, use ``shuffle=feeder.BlockShuffle(rows of a row group)`` and a cache that holds
      the 16 row groups of its window: every row group is then decoded about once an epoch by each
      worker. With ``shuffle=True`` nearly every record costs the decoding of its row group.

    Row groups of 1 000 to 10 000 records, or 1 to 16 MB, suit that (``row_group_size`` of
    `pyarrow.parquet.write_table`, whose default of a million rows does not).

    What a column becomes depends on its type, not on its values: numbers, booleans, dates and
    timestamps become arrays of the same dtype; lists of a fixed size, and tensors, arrays with more
    axes; strings, bytes, decimals and times of day, objects; structs, dicts. Any other list is an
    array of each record's own length: where there is one, records are stacked one by one, and must
    get equal lengths in a transform, or a ``collate`` that can join them.

    Args:
        paths: A file, a pattern such as ``"train-*.parquet"``, a folder (all ``*.parquet`` in and
            below it), or a list of such. The files of a pattern or a folder come in the order of
            their names.
        columns: Names of the columns to read. None: all.
        fill_nulls: What stands for the nulls of a column, by its name (``"a.b"`` in a struct). A
            list that is null itself becomes empty. Any other null is an error.
        cache_bytes: Most bytes of decoded row groups that one process keeps.

    Raises:
        TypeError: An argument has the wrong type, or a column has a type that NumPy has not.
        ValueError: There is no file, or one is no Parquet file, or is cut short, or lacks a column,
            or has it in another type than the first file.
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
        self.paths = files.all_of("paths", paths, "*.parquet")
        cache_bytes = arguments.integer("cache_bytes", cache_bytes, 0)
        pyarrow = files.package("pyarrow", "Parquet", "pyarrow", "parquet")
        footers = files.opened(self.paths, _footer, (pyarrow.ArrowException, OSError, ValueError))
        found = fields(self.paths, [footer.schema for footer in footers], columns)
        layout = Layout(found, fill_nulls)
        self._names = [name for name, _ in found]
        lengths = [footer.lengths for footer in footers]
        self._metadata = Kept(self._parsed, _FOOTERS_KEPT)
        self._groups = RowGroups(self.paths, lengths, self._load, layout, cache_bytes)
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
        return f"Parquet({len(self)} records of {len(self.paths)} files, {self._names})"

    def _batch(self, indices: NDArray[np.int64]) -> Any:
        return self._groups.batch(indices)

    def _load(self, file: int, group: int) -> tuple[Any, int]:
        import pyarrow.parquet

        # Nothing stays open: a file's name and footer are all that is kept of it.
        path, metadata = self.paths[file], self._metadata(file)
        with pyarrow.parquet.ParquetFile(path, metadata=metadata) as opened:
            table = opened.read_row_group(group, columns=self._names)
        return table, table.nbytes

    def _parsed(self, file: int) -> tuple[Any, int]:
        import pyarrow.parquet

        return pyarrow.parquet.read_metadata(self.paths[file]), 1


def _footer(path: str) -> _Footer:
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    lengths = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return _Footer(metadata.schema.to_arrow_schema(), lengths)
