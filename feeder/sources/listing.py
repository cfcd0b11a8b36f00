"""The names of many files, found below a folder and held in a few arrays.

ImageNet's 14 million names take 400 MB, once for all processes of a machine: arrays are shared
with workers, where a list of Python's strings would be copied into each of them, at three times
that size.

Guarantees:
    * The order is the same on every machine and file system: of each folder its files, by the
      bytes of their names, then the folders in it, in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Names:
    """Many short strings of bytes, one after the other in one array.

    Args:
        groups: Lists of them.
    """

    def __init__(self, groups: Iterable[list[bytes]]) -> None:
        blob = bytearray()
        lengths = [np.zeros(1, np.int64)]
        for names in groups:
            blob += b"".join(names)
            lengths.append(np.fromiter(map(len, names), np.int64, len(names)))
        self._bytes = np.frombuffer(bytes(blob), np.uint8)
        self._ends = np.concatenate(lengths).cumsum()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()


class Listing:
    """Files below a folder.

    Args:
        found: What `scan` yields.
    """

    def __init__(self, found: Iterable[tuple[bytes, list[bytes]]]) -> None:
        folders: list[bytes] = []
        counts: list[int] = []

        def names() -> Iterator[list[bytes]]:
            for folder, files in found:
                folders.append(folder)
                counts.append(len(files))
                yield files

        self._files = Names(names())
        self._folders = Names([folders])
        self._ends = np.cumsum(np.array(counts, np.int64))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> str:
        """The path of a file, below the folder."""
        folder = self._folders[int(np.searchsorted(self._ends, index, "right"))]
        return os.fsdecode(_joined(folder, self._files[index]))

    def starts(self, folders: list[str]) -> NDArray[np.int64]:
        """The first file in each of some folders at the top, and behind it.

        Args:
            folders: All that were scanned, in order; some may hold no file.
        """
        counts: dict[bytes, int] = {}
        lengths = np.diff(self._ends, prepend=0)
        for number, length in enumerate(lengths.tolist()):
            top = self._folders[number].split(b"/", 1)[0]
            counts[top] = counts.get(top, 0) + length
        return np.cumsum([0, *(counts.get(os.fsencode(name), 0) for name in folders)])


def scan(
    root: str, extensions: frozenset[bytes], below: str = ""
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yields each folder that holds such files, and their names.

    Links are followed. What begins with a dot is hidden, and left out.

    Args:
        root: Where.
        extensions: Of the files that count, in lower case, without the dot.
        below: Only in this folder of it.

    Yields:
        The folder's path below ``root``, and the sorted names of the files in it.

    Raises:
        ValueError: A link leads to a folder that it lies in.
        OSError: A folder cannot be read.
    """
    start = os.fsencode(below)
    base = os.fsencode(root)
    left: list[tuple[bytes, tuple[Any, ...]]] = [(start, ())]
    while left:
        folder, above = left.pop()
        path = _joined(base, folder)
        stat = Path(os.fsdecode(path)).stat()
        of = (stat.st_dev, stat.st_ino)
        if of in above:
            raise ValueError(
                "`root` must not hold a link to a folder that the link lies in, got "
                f"{os.fsdecode(path)!r}"
            )
        files, folders = [], []
        with os.scandir(path) as entries:
            for entry in entries:
                name: Any = entry.name
                if name.startswith(b"."):
                    continue
                if entry.is_dir():
                    folders.append(_joined(folder, name))
                elif _extension(name) in extensions and _is_file(entry):
                    files.append(name)
        if files:
            yield folder, sorted(files)
        left += [(inner, (*above, of)) for inner in sorted(folders, reverse=True)]


def folders_in(root: str) -> list[str]:
    """The names of the folders in a folder, but for hidden ones, in the order of `scan`."""
    with os.scandir(os.fsencode(root)) as entries:
        names: list[Any] = [entry.name for entry in entries if entry.is_dir()]
    return [os.fsdecode(name) for name in sorted(names) if not name.startswith(b".")]


def _joined(folder: bytes, name: bytes) -> bytes:
    return b"/".join(filter(None, (folder, name)))


def _extension(name: bytes) -> bytes:
    _, dot, extension = name.rpartition(b".")
    return extension.lower() if dot else b""


def _is_file(entry: os.DirEntry[bytes]) -> bool:
    # A link that leads nowhere counts: it is found out where it is read, not left out in silence.
    return entry.is_file() or (entry.is_symlink() and not Path(os.fsdecode(entry.path)).exists())
