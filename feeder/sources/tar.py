"""Samples in a tar file: its files in turn, those of one name together.

Guarantees:
    * What is cut short or damaged is an error that names the shard and the last key, never an end:
      the archive must end with its marker.
    * A state is where the next sample begins. It is sought in an archive that is not compressed;
      one that is, is decompressed up to there.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from feeder.errors import SourceError

_READ_AHEAD = 128 * 1024

_WRONG = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, OverflowError)
"""What reading a damaged archive raises."""

_COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""What opens a file that begins so."""

_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$", re.DOTALL)
"""Key and suffix: WebDataset's rule. The key ends with the first dot of the last part."""

_META = re.compile(r"__[^/]*__($|/)")


class Samples:
    """Iterates over the samples of one shard: ``{"__key__": str, suffix: bytes, …}``.

    Args:
        name: The shard.
        opener: ``opener(name)`` → a binary file that can be sought.
        state: What `get_state` returned; None: from the beginning.

    Raises:
        SourceError: It cannot be opened, or is no tar file.
    """

    def __init__(self, name: str, opener: Callable[[str], Any], state: Any = None) -> None:
        self._name = name
        number, at = (0, 0) if state is None else state
        self._number: int = number
        self._at: int = at
        self._last: str | None = None
        self._pending: tuple[str, str, tarfile.TarInfo] | None = None
        self._opened: list[Any] = []
        try:
            self._file = self._decompressed(opener(name))
            self._file.seek(self._at)
            self._tar = _Tar(fileobj=self._file, mode="r")
        except _WRONG as error:
            self.close()
            raise self._error(error) from error
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Samples:
        return self

    def __next__(self) -> dict[str, Any]:
        try:
            sample = self._sample()
        except _WRONG as error:
            raise self._error(error) from error
        if sample is None:
            raise StopIteration
        self._number += 1
        self._last = sample["__key__"]
        return sample

    def get_state(self) -> list[int]:
        """Samples before the next one, and the byte of the archive at which that begins."""
        return [self._number, self._at]

    def close(self) -> None:
        """Closes the file."""
        for file in reversed(self._opened):
            file.close()

    def _sample(self) -> dict[str, Any] | None:
        sample: dict[str, Any] | None = None
        while (found := self._next_file()) is not None:
            key, suffix, info = found
            if sample is None:
                sample = {"__key__": key}
            elif key != sample["__key__"]:
                self._at = info.offset
                return sample
            if suffix in sample:
                raise tarfile.ReadError(f"two files are called {key}.{suffix}")
            data = self._tar.extractfile(info).read()  # type: ignore[union-attr]  # a regular file
            if len(data) < info.size:
                raise tarfile.ReadError(f"unexpected end of data in {info.name}")
            sample[suffix] = data
            self._pending = None
        self._at = self._tar.offset
        return sample

    def _next_file(self) -> tuple[str, str, tarfile.TarInfo] | None:
        """The next file that is part of a sample, until it was taken; None at the end."""
        while self._pending is None:
            info = self._tar.next()
            if info is None:
                return None
            match = _NAME.match(info.name)
            if info.isreg() and match and not _META.match(info.name):
                self._pending = (match[1], match[2].lower(), info)
        return self._pending

    def _decompressed(self, file: Any) -> IO[bytes]:
        self._opened.append(file)
        magic = file.read(6)
        file.seek(0)
        opened: Any = file
        for begin, kind in _COMPRESSED.items():
            if magic.startswith(begin):
                opened = kind(file, "rb")
        if magic[:4] == b"\x28\xb5\x2f\xfd":
            raise tarfile.ReadError("it is compressed by zstd; decompress it, or use gzip")
        if opened is not file:
            self._opened.append(opened)
        return opened  # type: ignore[no-any-return]

    def _error(self, error: BaseException) -> SourceError:
        after = "its beginning" if self._last is None else f"the key {self._last!r}"
        if self._last is None and self._at:
            after = f"byte {self._at}, where it was resumed"
        return SourceError(
            f"record {self._number} cannot be read from {self._name}, after {after}: it is cut "
            f"short or damaged, got {type(error).__name__}: {error}; write the file anew",
            path=self._name,
            index=self._number,
        )


def open_file(name: str) -> IO[bytes]:
    """Opens a shard that is a file here."""
    return Path(name).open("rb", _READ_AHEAD)


class _Tar(tarfile.TarFile):
    """Keeps no list of its members, and takes no end for one but the marker of it."""

    def next(self) -> tarfile.TarInfo | None:
        first: tarfile.TarInfo | None = self.__dict__.get("firstmember")
        if first is not None:  # it was read by the constructor
            self.firstmember = None
            return first
        file: Any = self.fileobj
        if file.tell() != self.offset:
            file.seek(self.offset)
        try:
            return self.tarinfo.fromtarfile(self)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            return None
        except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends without the two empty blocks of an end") from error
