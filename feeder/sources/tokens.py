"""Windows of equal length over long arrays of tokens: what a language model is trained on."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feeder import arguments
from feeder.errors import SourceError
from feeder.sources import files
from feeder.sources.token_arrays import IN_PLACE, CutFileError, TokenArray, token_array
from feeder.spec import ArraySpec

Tokens: TypeAlias = Any
"""An array, the name of a file, or an object with ``len()`` and ``read(indices)`` or slices."""


class TokenWindows:
    """A source of windows of ``length`` tokens: record k begins at token k · ``stride``.

    A record is an array of shape (length,) and of the tokens' own dtype. What is left at the end,
    and is shorter than a window, is dropped. Windows are read by one gather for a batch.

    For a model that predicts the next token, inputs are ``window[:-1]`` and targets ``window[1:]``:
    ``length`` is then one more than the context, and ``stride=length - 1`` makes every token a
    target once.

    Args:
        tokens: One long array of integers: in memory; an `np.memmap`; the name of a ``.npy`` file,
            or of a file of bare tokens of ``dtype``; an object with ``len()`` that has
            ``read(indices)`` or slices, such as `feeder.sources.TensorStore` or an array of h5py,
            Zarr or TensorStore. Or a list of those, such as the shards of a data set. Files,
            memmaps too, are opened by their names in each process, one descriptor each, and
            copied nowhere; arrays in memory are shared with the workers.
        length: Tokens in a window.
        stride: Tokens from the beginning of a window to that of the next one; None: ``length``.
        dtype: Of the tokens in files without a header.
        across_files: Whether the items of a list are one long array. Otherwise each has windows
            of its own, and drops what is left at its end.
        separator: The token that ends each document. Records are then dicts, as those of
            `feeder.pack`: ``tokens``, ``segment_ids`` (1 in the first document of the window, 2 in
            the next one, …; the separator belongs to the document that it ends) and ``positions``
            (from 0 in each of them), both int32. None: records are arrays.

    Raises:
        TypeError: An argument has the wrong type, or ``tokens`` are no integers.
        ValueError: A number is below 1, ``tokens`` have more than one axis, or no window is full.
        OSError: A file cannot be opened.
    """

    def __init__(
        self,
        tokens: Tokens | Sequence[Tokens],
        length: int,
        *,
        stride: int | None = None,
        dtype: DTypeLike | None = None,
        across_files: bool = False,
        separator: int | None = None,
    ) -> None:
        self.length = arguments.integer("length", length, 1)
        given = arguments.optional_integer("stride", stride, 1)
        self.stride = self.length if given is None else given
        self._across = arguments.boolean("across_files", across_files)
        self._separator = arguments.optional_integer("separator", separator, 0)
        self._arrays = _token_arrays(tokens, dtype)
        _check_separator(self._separator, self._arrays[0].dtype)
        sizes = np.array([len(array) for array in self._arrays], np.int64)
        # Windows, or with `across_files` tokens, up to the end of each array.
        self._ends = np.cumsum(sizes if self._across else self._windows_in(sizes))
        total = int(self._ends[-1])
        self._num_windows = int(self._windows_in(np.array([total]))[0]) if self._across else total
        if not self._num_windows:
            longest = int(sizes.sum() if self._across else sizes.max())
            raise ValueError(
                f"`length` must be at most the number of tokens, {longest}, got {self.length}"
            )

    def _windows_in(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.maximum((sizes - self.length) // self.stride + 1, 0)

    def __len__(self) -> int:
        return self._num_windows

    def __repr__(self) -> str:
        return (
            f"TokenWindows({len(self)} windows of {self.length} tokens, stride={self.stride}, "
            f"{len(self._arrays)} arrays)"
        )

    def __getitem__(self, index: int) -> Any:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"window {number} is out of range: there are {len(self)}")
        batch = self.read(np.array([number % len(self)]))
        if isinstance(batch, dict):
            return {name: leaf[0] for name, leaf in batch.items()}
        return batch[0]

    def read(self, indices: NDArray[np.int64]) -> Any:
        """The windows at some indices, in new arrays of shape (rows, length).

        Raises:
            IndexError: There is no such window.
            SourceError: A file is shorter than it was; ``index`` is the first of those asked for.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"windows must be in range({len(self)}), got {indices}")
        windows = self._read(indices)
        return windows if self._separator is None else _segmented(windows, self._separator)

    @functools.cached_property
    def record_spec(self) -> Any:
        """What `read_into` writes; None where windows are read by code of others."""
        dtype = self._arrays[0].dtype
        if dtype is None or not all(isinstance(array, IN_PLACE) for array in self._arrays):
            return None
        tokens, number = (ArraySpec((self.length,), np.dtype(kind)) for kind in (dtype, np.int32))
        if self._separator is None:
            return tokens
        return {"tokens": tokens, "segment_ids": number, "positions": number}

    def read_into(self, indices: NDArray[np.int64], out: Sequence[NDArray[Any]]) -> None:
        """Writes the windows at some indices, every one of them in range, into a batch."""
        windows = self._read(indices)
        if self._separator is None:
            out[0][...] = windows  # to gather row by row into `out` takes longer than this copy
            return
        batch = _segmented(windows, self._separator)
        for name, target in zip(sorted(batch), out, strict=True):
            target[...] = batch[name]

    def _read(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        try:
            return self._gathered(indices)
        except CutFileError as error:
            path, message = error.args
            raise SourceError(message, path=path, index=int(indices[0])) from None

    def _gathered(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        if len(self._arrays) == 1:
            return self._arrays[0].windows(indices * self.stride, self.length)
        firsts = indices * self.stride if self._across else indices
        numbers = np.searchsorted(self._ends, firsts, side="right")
        offsets = firsts - np.where(numbers > 0, self._ends[numbers - 1], 0)
        starts = offsets if self._across else offsets * self.stride
        crossing = firsts + self.length > self._ends[numbers] if self._across else None
        out: NDArray[Any] | None = None
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            if crossing is not None:
                rows &= ~crossing
            if not rows.any():
                continue
            found = self._arrays[number].windows(starts[rows], self.length)
            out = _into(out, rows, len(indices), found)
        if crossing is not None:
            for row in np.flatnonzero(crossing).tolist():
                found = self._joined(int(numbers[row]), int(starts[row]))
                out = _into(out, np.array([row]), len(indices), found[None])
        assert out is not None or not len(indices)
        return self._arrays[0].windows(indices, self.length) if out is None else out

    def _joined(self, number: int, start: int) -> NDArray[Any]:
        """A window that begins in one array and ends in another."""
        parts: list[NDArray[Any]] = []
        missing = self.length
        while missing:
            array = self._arrays[number]
            count = min(missing, len(array) - start)
            if count:
                parts.append(array.windows(np.array([start]), count)[0])
                _check_dtype(parts[0].dtype, parts[-1].dtype)
            missing -= count
            number, start = number + 1, 0
        return np.concatenate(parts)


def _check_separator(separator: int | None, dtype: np.dtype[Any] | None) -> None:
    """Refuses a token that no array of this dtype can hold."""
    if separator is None or dtype is None or dtype.kind not in "iu":
        return
    if separator > np.iinfo(dtype).max:
        raise ValueError(f"`separator` must fit the tokens' dtype, {dtype}, got {separator}")


def _token_arrays(tokens: Any, dtype: DTypeLike | None) -> list[TokenArray]:
    if isinstance(tokens, str | os.PathLike):
        found = files.all_of("tokens", tokens, "*")
        tokens = list(found) if len(found) > 1 else found[0]
    if not isinstance(tokens, list | tuple):
        return [token_array("tokens", tokens, dtype)]
    if not tokens:
        raise ValueError("`tokens` must name at least one array or file, got none")
    if all(isinstance(item, int | np.integer) for item in tokens):
        raise TypeError(
            "`tokens` must be an array, the name of a file, or a list of those, got a list of "
            "numbers; use numpy.asarray"
        )
    arrays = [token_array(f"tokens[{place}]", item, dtype) for place, item in enumerate(tokens)]
    dtypes = [array.dtype for array in arrays if array.dtype is not None]
    for place, array in enumerate(arrays):
        if array.dtype is not None and array.dtype != dtypes[0]:
            raise TypeError(
                f"`tokens` must be of one dtype, got {dtypes[0]} and {array.dtype}, of "
                f"`tokens[{place}]`"
            )
    return arrays


def _into(
    out: NDArray[Any] | None, rows: NDArray[Any], num_rows: int, found: NDArray[Any]
) -> NDArray[Any]:
    """Windows in their rows of the batch, which is made for the first of them."""
    if out is None:
        out = np.empty((num_rows, found.shape[1]), found.dtype)
    _check_dtype(out.dtype, found.dtype)
    out[rows] = found
    return out


def _check_dtype(expected: np.dtype[Any], found: np.dtype[Any]) -> None:
    """Compares arrays that did not say beforehand what they hold."""
    if found != expected:
        raise TypeError(f"`tokens` must be of one dtype, got {expected} and {found}")


def _segmented(windows: NDArray[Any], separator: int) -> dict[str, NDArray[Any]]:
    """Windows, and which document each token is of, and its place in that."""
    begins = np.zeros(windows.shape, bool)
    begins[:, 1:] = windows[:, :-1] == separator
    places = np.arange(windows.shape[1], dtype=np.int32)
    first = np.maximum.accumulate(np.where(begins, places, np.int32(0)), axis=1)
    return {
        "tokens": windows,
        "segment_ids": np.cumsum(begins, axis=1, dtype=np.int32) + np.int32(1),
        "positions": places - first,
    }
