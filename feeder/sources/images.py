"""Folders of images, a sub-folder for each class."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder import arguments
from feeder.errors import SourceError
from feeder.sources import listing, pillow

_log = logging.getLogger("feeder")


class ImageFolder:
    """The images below a folder: ``{"image": uint8 (height, width, channels), "label": int32}``.

    ``root/cat/1.jpg`` and ``root/cat/more/2.png`` are of the class ``"cat"``. Classes are numbered
    in the order of their names. A class without images keeps its number. Images are ordered by
    class, then by path, whatever order the file system has them in. Links are followed; hidden
    files and folders, and files with other extensions, are left out.

    The folder is listed once, in the constructor, and its names are shared with the workers. An
    image is read and decoded where its record is: one that cannot be is a `feeder.SourceError`,
    or left out or replaced with ``on_bad_record``. Decoding releases Python's global lock, so that
    ``worker_type="thread"`` does as well as processes.

    Attributes:
        root: The folder.
        classes: Names of the classes, by label; none without labels.

    Args:
        root: A folder.
        mode: ``"RGB"``, ``"RGBA"``, ``"L"``, or None: as stored; as of `decode_image`.
        size: (height, width) to resize every image to; None: as it is. Records of a batch must
            have one shape, so a transform has to see to it where this does not.
        labels: False: ``root`` has no folders of classes, and records have no ``"label"``.
        paths: Whether records have a ``"path"`` too, a str, below ``root``.
        loader: ``loader(path)`` → the image, in place of Pillow's.
        extensions: Of the files that count; None: those of images. Case does not matter.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no such folder, no class in it, or no image; or a value cannot work.
        ImportError: Pillow is not installed, and there is no ``loader``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        mode: str | None = "RGB",
        size: Sequence[int] | None = None,
        labels: bool = True,
        paths: bool = False,
        loader: Callable[[str], Any] | None = None,
        extensions: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(root, str | os.PathLike):
            raise TypeError(f"`root` must be a path, got {root!r}")
        pillow.check(mode, size)
        self._mode, self._size = mode, size
        self._labelled = arguments.boolean("labels", labels)
        self._paths = arguments.boolean("paths", paths)
        self._loader = arguments.optional_callable("loader", loader, "loader(path)")
        wanted = _extensions(extensions)
        if loader is None:
            pillow.package("ImageFolder")
        elif size is not None or mode != "RGB":
            raise ValueError(
                "`loader` must be given without `mode` and `size`, which are Pillow's, got "
                f"{mode!r} and {size!r}"
            )
        self.root = str(Path(root).absolute())
        if not Path(self.root).is_dir():
            raise ValueError(f"`root` must be a folder that is there, got {self.root!r}")
        self.classes = self._classes() if labels else []
        tops = self.classes if labels else [""]
        encoded = frozenset(map(os.fsencode, wanted))
        self._files = listing.Listing(
            found for top in tops for found in listing.scan(self.root, encoded, top)
        )
        if not len(self._files):
            raise ValueError(
                f"`root` must hold files with the extension {' or '.join(wanted)}, got none in "
                f"{self.root!r}"
            )
        self._starts = self._files.starts(self.classes)
        empty = [name for name, n in zip(self.classes, np.diff(self._starts), strict=True) if not n]
        if empty:
            _log.warning("%d classes of %s have no image: %s", len(empty), self.root, empty[:10])

    @property
    def labels(self) -> NDArray[np.int32]:
        """The labels of all records, shape (len,): for a `feeder.WeightedSampler`."""
        return np.repeat(np.arange(len(self.classes), dtype=np.int32), np.diff(self._starts))

    def path(self, index: int) -> str:
        """The absolute path of a record's file."""
        return f"{self.root}/{self._files[self._checked(index)]}"

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = self._checked(index)
        name = self._files[index]
        path = f"{self.root}/{name}"
        record: dict[str, Any] = {"image": self._image(path, index)}
        if self._labelled:
            record["label"] = np.int32(np.searchsorted(self._starts, index, "right") - 1)
        if self._paths:
            record["path"] = name
        return record

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}: {len(self)} images, {len(self.classes)} classes)"

    def _image(self, path: str, index: int) -> Any:
        if self._loader is not None:
            loaded = self._loader(path)
            if loaded is None:
                raise TypeError(f"`loader` must return the image, got None for {path}")
            return loaded
        try:
            data = Path(path).read_bytes()
            return pillow.decode_image(data, mode=self._mode, size=self._size)
        except (OSError, ValueError) as error:
            got = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
            raise SourceError(
                f"record {index} cannot be read from {path}: {got}; write the file anew, or set "
                "`on_bad_record`",
                path=path,
                index=index,
            ) from error

    def _classes(self) -> list[str]:
        classes = listing.folders_in(self.root)
        if not classes:
            raise ValueError(
                f"`root` must hold a folder for each class, got none in {self.root!r}; "
                "set `labels=False` for images without classes"
            )
        return classes

    def _checked(self, index: int) -> int:
        number, length = operator.index(index), len(self)
        if not -length <= number < length:
            raise IndexError(
                f"a record's index must be below the number of records, {length}, got {number}"
            )
        return number % length


def _extensions(given: Any) -> tuple[str, ...]:
    if given is None:
        return pillow.EXTENSIONS
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"`extensions` must be a sequence of str, got {given!r}")
    found = tuple(str(one).lower().lstrip(".") for one in given)
    if not found or not all(found):
        raise ValueError(f"`extensions` must name at least one, and no empty one, got {given!r}")
    return found
