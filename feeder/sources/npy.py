"""Arrays in ``.npy`` files, mapped into memory."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from feeder.sources import files
from feeder.sources.arrays import ArraySource


class Npy(ArraySource):
    """The rows of one ``.npy`` file, or of a pytree of such files of one length.

    The files are mapped, not read: a record is what one row takes on disk, and what was read
    lately stays in the system's page cache, which all workers share. Every process maps them
    itself, by name; no array is copied to a worker. The files must stay as they are meanwhile: one
    that is cut short ends whoever reads behind its new end (by SIGBUS).

    Several files that are one sequence are ``feeder.concat([Npy(first), Npy(second)])``. An
    ``.npz`` archive cannot be mapped: give ``dict(numpy.load(path))`` itself as the source, or
    save its arrays one by one.

    Args:
        paths: A path; or a dict or (named) tuple of paths, nested or not: records then have that
            structure.

    Raises:
        TypeError: A leaf is no path.
        ValueError: A file is not there, or is no ``.npy`` file of rows, or is cut short; or the
            files differ in length.
    """

    def __init__(self, paths: Any) -> None:
        leaves, treespec = optree.tree_flatten(paths, is_leaf=lambda node: type(node) is list)
        names = [accessor.codify("`paths`") for accessor in treespec.accessors()]
        if not leaves:
            raise ValueError(f"`paths` must name at least one file, got {paths!r}")
        found = [_named(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        arrays = [_mapped(path) for path in found]
        if len({len(array) for array in arrays}) > 1:
            listed = ", ".join(
                f"{len(array)} in {path}" for path, array in zip(found, arrays, strict=True)
            )
            raise ValueError(f"`paths` must hold arrays of one length, got {listed}")
        self.paths = treespec.unflatten(found)
        super().__init__(treespec.unflatten(arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.paths, [(array.shape, array.dtype) for array in self.arrays])

    def __repr__(self) -> str:
        return f"Npy({self.paths!r})"


def _named(name: str, leaf: Any) -> str:
    if isinstance(leaf, list):
        raise TypeError(
            f"{name} must be a path, got a list; join files of one sequence by feeder.concat, one "
            "Npy for each"
        )
    if not isinstance(leaf, str | os.PathLike):
        raise TypeError(f"{name} must be a path, got {leaf!r}")
    return files.one("paths", leaf)


def _mapped(path: str) -> NDArray[Any]:
    if zipfile.is_zipfile(path):
        raise ValueError(
            f"`paths` must name .npy files, got the archive {path}; give dict(numpy.load(path)) as "
            "the source, or save its arrays one by one"
        )
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError) as error:
        raise files.bad(path, error) from error
    if array.ndim == 0:
        raise ValueError(f"`paths` must name arrays of rows, got a single value in {path}")
    return array


def _again(paths: Any, expected: list[Any]) -> Npy:
    """The same files in another process."""
    source = Npy(paths)
    for path, array, was in zip(
        optree.tree_leaves(source.paths), source.arrays, expected, strict=True
    ):
        if (array.shape, array.dtype) != was:
            raise ValueError(
                f"{path} must stay as it is while it is read, got shape and dtype "
                f"{(array.shape, array.dtype)} where they were {was}"
            )
    return source
