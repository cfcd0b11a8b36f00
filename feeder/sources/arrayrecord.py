"""ArrayRecord files: bytes, record by record, at random."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from feeder import arguments
from feeder.sources import files
from feeder.sources.kept import Kept
from feeder.sources.parts import Parts, checked

_MOST_OPEN = 256
"""Files that a process keeps open."""

_AT_RANDOM = "readahead_buffer_size:0,max_parallelism:0"
"""What the library's documentation asks for where records are read at random."""


class ArrayRecord:
    """The records of ArrayRecord files, one file after the other.

    A record is the bytes that were written, or what ``decode`` makes of them. The records of a
    chunk are read by one call for each file, by the threads of the `array_record` package. Files
    are opened by each process when it first needs them, 256 at a time. They should be written with
    ``group_size:1``: with larger groups each record costs the decoding of its whole group, unless
    ``shuffle=feeder.BlockShuffle(group_size)`` asks for neighbours.

    Args:
        paths: A file, a pattern such as ``"train.array_record-*"``, a folder (all
            ``*.array_record*`` in and below it), or a list of such. The files of a pattern or a
            folder come in the order of their names.
        decode: ``decode(data)`` → record, of a record's bytes. None: records are bytes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no file, or one is no ArrayRecord file, or is cut short.
        ImportError: The package `array_record` is not installed.
    """

    def __init__(self, paths: Any, *, decode: Callable[[bytes], Any] | None = None) -> None:
        self.paths = files.all_of("paths", paths, "*.array_record*")
        self._decode = arguments.optional_callable("decode", decode, "decode(data)")
        lengths = files.opened(self.paths, lambda path: len(_Reader(path)), (RuntimeError,))
        self._parts = Parts(lengths)
        self._readers = Kept(self._opened, _MOST_OPEN)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The records at ``indices``, in that order."""
        found = checked(indices, len(self))
        records: list[Any] = [None] * len(found)
        for part, places, rows in self._parts.of(found):
            for place, data in zip(places.tolist(), self._read(part, rows), strict=True):
                records[place] = data
        if self._decode is None:
            return records
        return [
            self._decoded(index, data) for index, data in zip(found.tolist(), records, strict=True)
        ]

    def __repr__(self) -> str:
        return f"ArrayRecord({len(self)} records of {len(self.paths)} files)"

    def _read(self, part: int, rows: NDArray[np.int64]) -> list[bytes]:
        try:
            return self._readers(part).read(rows)
        except (RuntimeError, ValueError) as error:
            self._blame(part, rows, error)

    def _blame(self, part: int, rows: NDArray[np.int64], error: Exception) -> NoReturn:
        """Raises the error of the first record that cannot be read by itself either."""
        found, row = error, int(rows[0])
        for each in rows:
            try:
                self._readers(part).read(np.array([each]))
            except (RuntimeError, ValueError) as alone:
                found, row = alone, int(each)
                break
        index = int(self._parts.starts[part]) + row
        raise files.unreadable(self.paths[part], index, found) from found

    def _decoded(self, index: int, data: bytes) -> Any:
        try:
            return self._decode(data)
        except Exception as error:
            part, _, _ = next(self._parts.of(np.array([index])))
            error.add_note(f"`decode` raised this for record {index}, of {self.paths[part]}")
            raise

    def _opened(self, part: int) -> tuple[_Reader, int]:
        path = self.paths[part]
        reader = _Reader(path)
        expected = int(np.diff(self._parts.starts)[part])
        if len(reader) != expected:
            raise files.changed(path, expected, len(reader))
        return reader, 1


class _Reader:
    """One file.

    Raises:
        RuntimeError: It is no ArrayRecord file.
    """

    def __init__(self, path: str) -> None:
        module = files.package(
            "array_record.python.array_record_module", "ArrayRecord", "array_record", "arrayrecord"
        )
        self._path = path
        self._reader = module.ArrayRecordReader(path, _AT_RANDOM)
        if not self._reader.ok():
            self._reader.read([0])  # raises what is wrong, which ok() does not say
            raise RuntimeError("it is no ArrayRecord file")

    def __len__(self) -> int:
        return int(self._reader.num_records())

    def read(self, rows: NDArray[np.int64]) -> list[bytes]:
        """The records at ``rows``.

        Raises:
            RuntimeError: One of them cannot be read.
        """
        records: list[bytes] = self._reader.read(rows.tolist())
        if not all(records):
            # A file that was cut short since gives empty records, without an error.
            type(self)(self._path)
        return records
