"""The lengths of documents: given, offered by the source, or found out by reading them all once."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feeder.loader import DataLoader
from feeder.packing.documents import Name, leaves_of, listed

_BATCH = 256
"""Documents that a worker measures at a time."""


def checked_lengths(name: str, lengths: Any, num_documents: int) -> NDArray[Any]:
    """Lengths that were given, as an array of integers.

    Args:
        name: How they are called.
        lengths: What was given.
        num_documents: How many there must be.

    Raises:
        TypeError: They are no integers.
        ValueError: There are more or fewer of them, or one is negative.
    """
    array = np.asarray(lengths)
    if array.ndim != 1 or len(array) != num_documents:
        raise ValueError(
            f"`{name}` must be one number for each of the {num_documents} documents, got shape "
            f"{array.shape}"
        )
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be integers, got {array.dtype}")
    if int(array.min()) < 0:
        place = int(np.argmin(array))
        raise ValueError(f"`{name}` must not be negative, got {array[place]} at {place}")
    return _compact(array)


def kept_lengths(
    path: Path,
    source: Any,
    keys: tuple[str, ...] | None,
    num_workers: int | Literal["auto"],
    progress: bool,
) -> NDArray[Any]:
    """The lengths that a file keeps; it is written where there is none.

    Args:
        path: The ``.npy`` file.
        source: The documents.
        keys: Their leaves; None: all.
        num_workers: As of a `DataLoader`.
        progress: Whether to show a bar.

    Raises:
        ValueError: The file is of other documents, or of no lengths, or there is no such folder.
        Exception: What `measured_lengths` raises.
    """
    if not path.exists():
        if not path.parent.is_dir():  # known before they are read
            raise ValueError(f"`lengths` must be in a folder that exists, got {path}")
        found = measured_lengths(source, keys, num_workers, progress)
        _write(path, found)
        return found
    try:
        kept = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"`lengths` must be the name of a .npy file, got {path}: {error}; remove it"
        ) from None
    try:
        return checked_lengths("lengths", kept, len(source))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}; remove {path}, or name another file") from None


def measured_lengths(
    source: Any,
    keys: tuple[str, ...] | None,
    num_workers: int | Literal["auto"],
    progress: bool,
) -> NDArray[Any]:
    """The lengths of all documents, which are read.

    Args:
        source: The documents.
        keys: Their leaves; None: all.
        num_workers: As of a `DataLoader`.
        progress: Whether to show a bar.

    Raises:
        DocumentError: A document is no sequence of tokens.
        Exception: Whatever the source raises.
    """
    lengths = _Lengths(source, keys)
    if type(source) is list:  # in memory already
        return _compact(np.array(lengths.__getitems__(list(range(len(source))))))
    found = np.empty(len(source), np.int64)
    place = 0
    # Each process of a job measures all of them.
    alone: dict[str, Any] = {"process_index": 0, "process_count": 1}
    with (
        DataLoader(lengths, _BATCH, last_batch="keep", num_workers=num_workers, **alone) as loader,
        _bar(len(source), progress) as advance,
    ):
        for batch in loader:
            found[place : place + len(batch)] = batch
            place += len(batch)
            advance(len(batch))
    return _compact(found)


def _compact(lengths: NDArray[Any]) -> NDArray[Any]:
    """In the smallest dtype: workers get them."""
    return lengths.astype(np.min_scalar_type(max(int(lengths.max()), 1)))


@dataclass(frozen=True)
class _Lengths:
    """The lengths of a source's documents, as a source."""

    source: Any
    keys: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> np.int64:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[np.int64]:
        return [
            np.int64(len(next(iter(leaves_of(document, self.keys, Name(index)).values()))))
            for index, document in zip(indices, listed(self.source, indices), strict=True)
        ]


@contextlib.contextmanager
def _bar(total: int, progress: bool) -> Any:
    """Shows progress on a terminal, where tqdm is installed."""
    if not progress or importlib.util.find_spec("tqdm") is None:
        yield lambda _count: None
        return
    tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    with tqdm(total=total, desc="measuring documents", unit="document", disable=None) as bar:
        yield bar.update


def _write(path: Path, lengths: NDArray[Any]) -> None:
    """Writes a file that is there whole, or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            np.save(file, lengths)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
