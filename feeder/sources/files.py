"""Which files a source is made of, and what is said of those that cannot be read.

Guarantees:
    * The order of the files is that of the list, and within a pattern or a folder that of their
      names: the same on every machine.
    * What is wrong with files is a ValueError in a source's constructor, and a `SourceError` once
      records are read; both name the file.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from feeder.errors import SourceError

T = TypeVar("T")
Errors: TypeAlias = tuple[type[Exception], ...]

_OPENED_AT_ONCE = 16
"""Files whose sizes are asked for side by side, which counts where storage is far away."""


def package(module: str, source: str, name: str, extra: str) -> Any:
    """Imports what a source is read with.

    Args:
        module: What to import.
        source: The class that needs it.
        name: The package's name.
        extra: Ours, that installs it.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"feeder.sources.{source} needs the package {name}: pip install 'jax-feeder[{extra}]'"
        ) from error


def one(argument: str, given: object) -> str:
    """The absolute name of a file.

    Raises:
        TypeError: It is no path.
        ValueError: There is no such file.
    """
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"`{argument}` must be a path, got {given!r}")
    name = os.fspath(given)
    if "://" in name:
        raise ValueError(
            f"`{argument}` must name a file that is mounted here, got {name!r}; copy it, mount it, "
            "or use feeder.sources.TensorStore, which reads remote storage"
        )
    path = Path(name).absolute()
    if not path.exists():
        raise ValueError(f"`{argument}` must name a file that is there, got {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"`{argument}` must name a file, got the folder {str(path)!r}")
    return str(path)


def all_of(argument: str, given: object, pattern: str) -> tuple[str, ...]:
    """The absolute names of the files that the user means.

    Args:
        argument: Name of the argument, for messages.
        given: A path, a pattern as of `glob` (``**`` for any folders), a folder, or a sequence of
            such.
        pattern: What counts in a folder, in the folders below it too.

    Raises:
        TypeError: It is none of these.
        ValueError: A file is not there, or there is none.
    """
    if isinstance(given, str | os.PathLike):
        return _expanded(argument, os.fspath(given), pattern)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise TypeError(
            f"`{argument}` must be a path, a pattern, a folder or a list of them, got {given!r}"
        )
    if not given:
        raise ValueError(f"`{argument}` must name at least one file, got none")
    return tuple(path for item in given for path in all_of(argument, item, pattern))


def _expanded(argument: str, name: str, pattern: str) -> tuple[str, ...]:
    path = Path(name)
    if path.is_dir():
        found = sorted(str(each.absolute()) for each in path.rglob(pattern) if each.is_file())
        if not found:
            raise ValueError(f"`{argument}` must name files, got {name!r}, without any {pattern}")
        return tuple(found)
    if path.exists() or not glob.has_magic(name) or "://" in name:
        return (one(argument, name),)
    matches = map(Path, glob.glob(name, recursive=True))  # noqa: PTH207 - it may be absolute
    found = sorted(str(each.absolute()) for each in matches if each.is_file())
    if not found:
        raise ValueError(f"`{argument}` must match at least one file, got {name!r}")
    return tuple(found)


def opened(paths: Iterable[str], look: Callable[[str], T], wrong: Errors) -> list[T]:
    """What ``look`` finds in each file, in their order.

    Args:
        paths: The files.
        look: Opens one, and says what is in it.
        wrong: What it raises for a file that is no good.

    Raises:
        ValueError: One of them is no good.
    """

    def checked(path: str) -> T:
        try:
            return look(path)
        except wrong as error:
            raise bad(path, error) from error

    with ThreadPoolExecutor(_OPENED_AT_ONCE) as threads:
        return list(threads.map(checked, paths))


def bad(path: str, error: BaseException) -> ValueError:
    """The error of a constructor whose file is no good."""
    return ValueError(f"{path} cannot be read, got {_said(error)}; write it anew, or leave it out")


def unreadable(path: str, index: int, error: BaseException, part: str = "") -> SourceError:
    """The error of a record that cannot be read.

    Args:
        path: Its file.
        index: Its index in the source.
        error: What the library raised.
        part: Which part of the file that is, in words.
    """
    where = f"{part} of {path}" if part else path
    return SourceError(
        f"record {index} cannot be read from {where}, got {_said(error)}; write the file anew, or "
        "set `on_bad_record`",
        path=path,
        index=index,
    )


def changed(path: str, expected: int, got: int) -> ValueError:
    """The error of a file that holds another number of records than it did at first."""
    return ValueError(
        f"{path} must stay as it is while it is read, got {got} records where there were {expected}"
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
