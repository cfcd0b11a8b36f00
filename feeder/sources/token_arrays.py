"""One-dimensional arrays of tokens, wherever they lie, that windows are cut from.

Guarantees:
    * A file is opened in the process that reads it, once, and by its name: workers get the name.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from feeder.spec import ArraySpec


class CutFileError(Exception):
    """A file is shorter than it was: its name, and a message."""


class TokenArray(Protocol):
    """So many tokens.

    Attributes:
        dtype: Their dtype; None: known once some were read.
    """

    dtype: np.dtype[Any] | None

    def __len__(self) -> int: ...

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """The ``length`` tokens from each start on, in a new array of shape (rows, length)."""
        ...


class HeldTokens:
    """An array in memory, or one that is mapped; workers share it."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.dtype: np.dtype[Any] | None = _checked(f"`{name}`", array.dtype, array.ndim)
        self._array = array
        self._sliding: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self._array)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sliding": None}  # it would be pickled in full

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        sliding = self._sliding
        if sliding is None or sliding.shape[1] != length:
            shape = (max(len(self._array) - length + 1, 0), length)
            sliding = as_strided(self._array, shape, self._array.strides * 2, writeable=False)
            self._sliding = sliding
        # One gather: NumPy copies whole windows, at a third of the cost of slices and np.stack.
        result: NDArray[Any] = sliding[starts]
        return result


class MappedTokens:
    """Tokens in a file.

    Args:
        name: How the argument is called, for a message.
        path: The file.
        dtype: Of its tokens.
        offset: Byte at which the first of them begins.
        length: How many.
        held: They are mapped in this process already.
    """

    def __init__(
        self,
        name: str,
        path: str | os.PathLike[str],
        dtype: np.dtype[Any],
        offset: int,
        length: int,
        held: HeldTokens | None = None,
    ) -> None:
        self.dtype: np.dtype[Any] | None = _checked(f"`{name}`", dtype, 1)
        self._name = name
        self._path = Path(path).absolute()  # a worker may have another folder
        self._offset = offset
        self._length = length
        self._held = held

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        """As of `TokenArray`.

        Raises:
            CutFileError: The file is shorter than it was.
        """
        if self._held is None:
            self._held = self._open()  # threads may both do it: either is as good
        return self._held.windows(starts, length)

    def _open(self) -> HeldTokens:
        assert self.dtype is not None
        needed = self._offset + self._length * self.dtype.itemsize
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found < needed:
                raise CutFileError(
                    str(self._path),
                    f"{self._path} must have the {needed:,} bytes that it had when `{self._name}` "
                    f"was opened, got {found:,}; was it cut, or written again? Make the source "
                    "anew",
                )
            mapping = mmap.mmap(file.fileno(), needed, prot=mmap.PROT_READ)
        return HeldTokens(
            self._name, np.ndarray(self._length, self.dtype, mapping, offset=self._offset)
        )


IN_PLACE = (HeldTokens, MappedTokens)
"""Kinds whose tokens are read by no code of others."""


class ReadTokens:
    """An object with ``len()`` and ``read(indices)``, which returns the token at each index."""

    def __init__(self, name: str, tokens: Any) -> None:
        self.dtype = _declared(name, tokens)
        self._name = name
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        indices = (starts[:, None] + np.arange(length)).reshape(-1)
        found = self._tokens.read(indices)
        if not isinstance(found, np.ndarray) or found.shape != indices.shape:
            got = f"shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            raise ValueError(
                f"`{self._name}` must give one token for each index, got {got} for {len(indices)} "
                "indices; its records must be single numbers"
            )
        return _as_declared(self._name, self.dtype, found).reshape(len(starts), length)


class SlicedTokens:
    """An object with ``len()`` and slices, such as an array of h5py, Zarr or TensorStore."""

    def __init__(self, name: str, tokens: Any) -> None:
        self.dtype = _declared(name, tokens)
        self._name = name
        self._tokens = tokens
        self._promises = _is_tensorstore(tokens)
        self._origin = tokens.domain.inclusive_min[0] if self._promises else 0
        self._length = tokens.shape[0] if self._promises else len(tokens)

    def __len__(self) -> int:
        return self._length

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        begins = (starts + self._origin).tolist()
        slices = [self._tokens[begin : begin + length] for begin in begins]
        if self._promises:  # all are read at once
            slices = [reading.result() for reading in [view.read() for view in slices]]
        rows = [np.asarray(row) for row in slices]
        for start, row in zip(starts.tolist(), rows, strict=True):
            if row.shape != (length,):
                raise ValueError(
                    f"`{self._name}[{start}:{start + length}]` must be {length} tokens, got shape "
                    f"{row.shape}"
                )
            _as_declared(self._name, rows[0].dtype, row)
        return _as_declared(self._name, self.dtype, np.stack(rows))


def token_array(name: str, tokens: Any, dtype: DTypeLike | None) -> TokenArray:
    """Makes a token array of what the user gave.

    Args:
        name: How the argument is called.
        tokens: An array, the name of a file, or an object with ``len()`` and ``read`` or slices.
        dtype: Of tokens in a file without a header; None where it is known.

    Raises:
        TypeError: It is none of these, or holds no integers.
        ValueError: It has another number of axes, or the file holds no whole number of tokens.
        OSError: The file cannot be opened.
    """
    if isinstance(tokens, str | os.PathLike):
        return _in_file(name, Path(tokens), dtype)
    found: TokenArray
    if isinstance(tokens, np.ndarray):
        found = _mapped(name, tokens) or HeldTokens(name, tokens)
    elif hasattr(tokens, "__array__") and type(tokens).__module__.startswith("jax"):
        found = HeldTokens(name, np.asarray(tokens))
    elif _is_tensorstore(tokens):
        found = SlicedTokens(name, tokens)
    elif isinstance(tokens, Mapping) or not (
        hasattr(tokens, "__len__") and hasattr(tokens, "__getitem__")
    ):
        raise TypeError(
            f"`{name}` must be an array, the name of a file, or an object with len() and slices, "
            f"got {type(tokens).__name__}"
        )
    elif callable(getattr(tokens, "read", None)):
        found = ReadTokens(name, tokens)
    else:
        found = SlicedTokens(name, tokens)
    if dtype is not None and found.dtype is not None and found.dtype != np.dtype(dtype):
        raise TypeError(
            f"`dtype` must be that of `{name}`, {found.dtype}, got {np.dtype(dtype)}; leave it out"
        )
    return found


def _is_tensorstore(tokens: Any) -> bool:
    """Whether it is an array of TensorStore's own, which has no len()."""
    return type(tokens).__module__.split(".")[0] == "tensorstore"


def _in_file(name: str, path: Path, dtype: DTypeLike | None) -> TokenArray:
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ValueError(
                f"`{name}` must be a .npy file of tokens, got {path}: {error}"
            ) from None
        _checked(f"`{name}`, {path},", array.dtype, array.ndim)
        if dtype is not None and array.dtype != np.dtype(dtype):
            raise TypeError(
                f"`dtype` must be that of {path}, {array.dtype}, got {np.dtype(dtype)}; leave "
                "it out"
            )
        return MappedTokens(name, path, array.dtype, array.offset, len(array))
    if dtype is None:
        raise TypeError(
            f"`dtype` must be given for a file without a header, such as {path}: "
            'dtype="uint16", perhaps'
        )
    kind = np.dtype(dtype)
    with path.open("rb") as file:
        length, rest = divmod(os.fstat(file.fileno()).st_size, kind.itemsize)
    if rest:
        raise ValueError(
            f"`{name}` must be a file of whole tokens of {kind.itemsize} bytes, got {path}, whose "
            f"size leaves {rest}; is `dtype` right, and the file complete?"
        )
    return MappedTokens(name, path, kind, 0, length)


def _mapped(name: str, array: NDArray[Any]) -> TokenArray | None:
    """Tokens of a memmap, to be opened by the name of its file; None where they cannot be."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    if owner is None or getattr(owner, "filename", None) is None or owner.mode == "c":
        return None
    if array.ndim != 1 or array.strides != (array.itemsize,) or not len(array):
        return None
    mapping: Any = owner._mmap
    if not isinstance(mapping, mmap.mmap) or not Path(owner.filename).is_file():
        return None
    # A slice of a memmap says the offset of the whole: where does this one begin?
    begin = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    offset = begin + array.ctypes.data - address
    held = HeldTokens(name, array.view(np.ndarray))
    return MappedTokens(name, owner.filename, array.dtype, offset, len(array), held)


def _declared(name: str, tokens: Any) -> np.dtype[Any] | None:
    """What an object says of itself, checked."""
    spec = getattr(tokens, "record_spec", None)
    if isinstance(spec, ArraySpec):  # a source of ours
        return _checked(f"`{name}`", spec.dtype, 1 + len(spec.shape))
    dtype = getattr(tokens, "dtype", None)
    dtype = getattr(dtype, "numpy_dtype", dtype)  # TensorStore's own has one of NumPy
    if dtype is None:
        return None
    return _checked(f"`{name}`", np.dtype(dtype), getattr(tokens, "ndim", 1))


def _as_declared(name: str, declared: np.dtype[Any] | None, found: NDArray[Any]) -> NDArray[Any]:
    _checked(f"`{name}`", found.dtype, 1)
    if declared is not None and found.dtype != declared:
        raise TypeError(f"`{name}` must give tokens of {declared}, got {found.dtype}")
    return found


def _checked(named: str, dtype: np.dtype[Any], ndim: int) -> np.dtype[Any]:
    if ndim != 1:
        raise ValueError(
            f"{named} must have one axis, got {ndim}; the rows of an array of two are records "
            "already: give it to the loader as it is"
        )
    if dtype.kind not in "iu":
        raise TypeError(f"{named} must hold integers, got {dtype}")
    return dtype
