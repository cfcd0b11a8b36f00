"""HDF5 files: rows of their datasets."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import optree
from numpy.typing import NDArray

from feeder import arguments
from feeder.sources import files
from feeder.sources.kept import Kept
from feeder.sources.parts import checked, records

CACHE_BYTES = 64 * 2**20
_ROWS_PER_RUN = 4
"""A selection of points costs about this much less per row than a slice costs."""

_WRONG = (OSError, RuntimeError, ValueError, KeyError)
"""What h5py raises where a file is damaged; texts that are no UTF-8 are a ValueError."""


class HDF5:
    """The rows of datasets of one HDF5 file, all of one length.

    Every process opens the file itself when it first reads. The rows of a chunk are read in the
    order of the file, each once, neighbours as one slice. A dataset that is stored in chunks is
    read a chunk at a time, and a chunk that is compressed is decompressed as a whole: where one
    holds many rows, use ``shuffle=feeder.BlockShuffle(rows of a chunk)`` and a cache that holds the
    16 chunks of its window. The library takes one lock for all that it does, so that threads read
    one after the other; processes do not.

    Numbers, fixed-length bytes and compound types keep their dtype; texts are objects (str). Rows
    of variable length are arrays of each record's own length: where there are such, records are
    stacked one by one, and must get equal lengths in a transform, or a ``collate`` that can join
    them.

    Args:
        path: The file.
        datasets: A name, as ``"train/images"``: records are its rows. A list of names: records are
            dicts of them. A dict or (named) tuple of names, nested or not: records have that
            structure. None: all datasets of the file, groups being dicts.
        cache_bytes: Most bytes of chunks that one process keeps decompressed, for each dataset.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no file, or it is no HDF5 file, or is cut short; or a dataset is not
            there, has no rows, or has objects that NumPy has not; or the datasets differ in length.
        ImportError: The package `h5py` is not installed.
    """

    def __init__(self, path: Any, datasets: Any = None, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = files.one("path", path)
        self._cache_bytes = arguments.integer("cache_bytes", cache_bytes, 0)
        h5py = files.package("h5py", "HDF5", "h5py", "hdf5")
        try:
            file = h5py.File(self.path, "r")
        except OSError as error:
            raise files.bad(self.path, error) from error
        with file:
            wanted = _wanted(self.path, file, datasets)
            names, self._treespec = optree.tree_flatten(wanted)
            self._names = [_name(name) for name in names]
            found = [_dataset(self.path, file, name) for name in self._names]
            lengths = {name: len(each) for name, each in zip(self._names, found, strict=True)}
            has_lists = any(
                h5py.check_vlen_dtype(each.dtype) and not h5py.check_string_dtype(each.dtype)
                for each in found
            )
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
            raise ValueError(
                f"`datasets` must be of one length, got {listed} of {self.path}; name those that "
                "belong together"
            )
        self._length = next(iter(lengths.values()))
        self._opened = Kept(self._open, 1)
        if not has_lists:
            self.read = self._batch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The records at ``indices``, in that order."""
        return records(self._batch(indices), len(indices))

    def __repr__(self) -> str:
        return f"HDF5({self.path!r}, {self._names})"

    def _batch(self, indices: Any) -> Any:
        found, places = np.unique(checked(indices, self._length), return_inverse=True)
        columns = []
        for name, dataset in zip(self._names, self._opened(0), strict=True):
            try:
                rows = _rows(dataset, found)
            except _WRONG as error:
                self._blame(name, dataset, found, error)
            columns.append(rows if _counts_up(places) else rows.take(places, axis=0))
        return self._treespec.unflatten(columns)

    def _blame(
        self, name: str, dataset: Any, indices: NDArray[np.int64], error: Exception
    ) -> NoReturn:
        """Raises the error of the first row that cannot be read by itself either."""
        found, index = error, int(indices[0])
        for each in indices:
            try:
                _rows(dataset, np.array([each]))
            except _WRONG as alone:
                found, index = alone, int(each)
                break
        raise files.unreadable(self.path, index, found, f"dataset {name!r}") from found

    def _open(self, _: int) -> tuple[list[Any], int]:
        import h5py

        file = h5py.File(self.path, "r", rdcc_nbytes=self._cache_bytes)
        found = [_dataset(self.path, file, name) for name in self._names]
        for dataset in found:
            if len(dataset) != self._length:
                raise files.changed(self.path, self._length, len(dataset))
        is_text = [h5py.check_string_dtype(dataset.dtype) for dataset in found]
        return [
            dataset.asstr() if text is not None and text.length is None else dataset
            for dataset, text in zip(found, is_text, strict=True)
        ], 1


def _wanted(path: str, file: Any, datasets: Any) -> Any:
    """Names of datasets, as a pytree of the structure of a record."""
    wanted: Any
    if isinstance(datasets, str | Mapping | tuple):
        wanted = datasets
    elif datasets is None:
        wanted = _everything(file)
    elif isinstance(datasets, Sequence) and not isinstance(datasets, bytes):
        wanted = {_name(name): name for name in datasets}
    else:
        raise TypeError(
            f"`datasets` must be names, or a dict or tuple of them, or None, got {datasets!r}"
        )
    if not optree.tree_leaves(wanted):
        raise ValueError(f"`datasets` must name at least one dataset of {path}, got none")
    return wanted


def _everything(group: Any) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    for name, item in group.items():
        if isinstance(item, h5py.Dataset):
            found[name] = item.name
        elif isinstance(item, h5py.Group) and (inside := _everything(item)):
            found[name] = inside
    return found


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"`datasets` must hold names, got {name!r}")
    return name


def _dataset(path: str, file: Any, name: str) -> Any:
    """A dataset that has rows.

    Raises:
        ValueError: It is none.
    """
    import h5py

    try:
        dataset = file.get(name)
    except _WRONG as error:
        raise files.bad(path, error) from error
    if not isinstance(dataset, h5py.Dataset):
        names: list[str] = []
        file.visititems(lambda at, item: names.append(at) if hasattr(item, "shape") else None)
        listed = ", ".join(map(repr, names)) or "none"
        raise ValueError(f"`datasets` must name datasets of {path}, got {name!r}; it has {listed}")
    if not dataset.shape:
        raise ValueError(f"`datasets` must have rows, got a single value, {name!r} of {path}")
    kind = dataset.dtype
    if kind.hasobject and not (h5py.check_string_dtype(kind) or h5py.check_vlen_dtype(kind)):
        raise ValueError(
            f"`datasets` must be of numbers or texts, got {h5py.check_ref_dtype(kind) or kind} in "
            f"{name!r} of {path}; leave it out"
        )
    return dataset


def _rows(dataset: Any, indices: NDArray[np.int64]) -> NDArray[Any]:
    """The rows at indices that grow, each of which occurs once."""
    if not len(indices):
        empty: NDArray[Any] = dataset[:0]
        return empty
    ends = np.flatnonzero(np.diff(indices) != 1) + 1
    if len(ends) and len(indices) < _ROWS_PER_RUN * (len(ends) + 1):
        rows: NDArray[Any] = dataset[indices]
        return rows
    runs = [
        dataset[first : last + 1]
        for first, last in zip(
            indices[[0, *ends]].tolist(), indices[[*(ends - 1), -1]].tolist(), strict=True
        )
    ]
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def _counts_up(places: NDArray[np.int64]) -> bool:
    return bool(np.array_equal(places, np.arange(len(places))))
