"""The loader that a command is about: ``module:loader`` or ``path/to/file.py:loader``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from feeder.loader import DataLoader
from feeder.sources.stream import shown


class UsageError(Exception):
    """The command was called in a way that cannot work: exit code 2."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A loader, or a function that makes one.

    Attributes:
        name: As the user wrote it.
        value: A `DataLoader`, or a function that returns one.
    """

    name: str
    value: DataLoader | Callable[..., Any]

    @property
    def makes_anew(self) -> bool:
        """Whether every `load` reads a source of its own."""
        return not isinstance(self.value, DataLoader)

    def load(self, **changes: Any) -> DataLoader:
        """The loader, with other arguments.

        A function gets those that it takes; what it does not take, or not heed, is replaced in the
        loader that it returns.

        Raises:
            UsageError: The function returns no loader.
            Exception: Whatever it raises, or the loader's constructor.
        """
        if isinstance(self.value, DataLoader):
            return self.value.replace(**changes)
        given = {name: value for name, value in changes.items() if _takes(self.value, name)}
        loader = self.value(**given)
        if not isinstance(loader, DataLoader):
            raise UsageError(
                f"`{self.name}` must return a feeder.DataLoader, got {shown(loader)} of "
                f"{shown(self.value)}"
            )
        arguments = loader.arguments
        missing = {name: value for name, value in changes.items() if arguments[name] != value}
        if not missing:
            return loader
        with loader:
            return loader.replace(**missing)


def find(name: str) -> Subject:
    """The subject of that name.

    The current folder is importable, and for a file its own folder. A file is run as a script is,
    but for its ``__name__``: its functions reach workers by value.

    Raises:
        UsageError: There is no such thing, or it is no loader.
        Exception: Whatever the module raises.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UsageError(
            f"the loader must be named module:loader or path/to/file.py:loader, got {name!r}"
        )
    _importable(Path.cwd())
    is_file = place.endswith(".py") or os.sep in place
    value: Any = _run_file(Path(place)) if is_file else _import(place)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UsageError(_no_attribute(name, place, part, value))
        value = getattr(value, part)
    if not isinstance(value, DataLoader):
        _check_function(name, value)
    return Subject(name, value)


def _importable(folder: Path) -> None:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module imports
        raise UsageError(
            f"there is no module {error.name!r} in {Path.cwd()}, nor among those installed; run "
            "the command where it is, or name the file: path/to/file.py:loader"
        ) from None
    except (TypeError, ValueError) as error:  # a relative name, or an empty one
        if error.__traceback__ is not None and _within_import(error):
            raise UsageError(f"the module must be named as in an import, got {name!r}") from None
        raise


def _within_import(error: BaseException) -> bool:
    """Whether the import system itself raised it, not the module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "importlib" in trace.tb_frame.f_code.co_filename


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} in {Path.cwd()}")
    _importable(path.parent)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_file"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"the file must be one of Python, with the ending .py, got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


def _no_attribute(name: str, place: str, part: str, value: Any) -> str:
    loaders = sorted(key for key, held in vars(value).items() if isinstance(held, DataLoader))
    functions = sorted(
        key
        for key, held in vars(value).items()
        if inspect.isfunction(held) and held.__module__ == getattr(value, "__name__", None)
    )
    offered = ", ".join((loaders + functions)[:8]) or "none"
    return f"{place!r} has no {part!r} of {name!r}; loaders and functions in it: {offered}"


def _check_function(name: str, value: Any) -> None:
    rule = (
        f"`{name}` must be a feeder.DataLoader, or a function without required arguments that "
        "returns one"
    )
    if not callable(value):
        raise UsageError(f"{rule}, got {shown(value)}")
    try:
        inspect.signature(value).bind()
    except TypeError:
        raise UsageError(f"{rule}, got {shown(value)}") from None
    except ValueError:  # built in: it has no signature
        return


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether it takes an argument of this name; what has no signature takes none."""
    try:
        inspect.signature(function).bind_partial(**{name: None})
    except (TypeError, ValueError):
        return False
    return True
