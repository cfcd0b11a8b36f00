"""What tells a function, or a record, from another one in a later run: short digests.

Guarantees:
    * Equal code with equal plain values has equal digests in every process of one Python version.
    * They are digests of what can be seen: a function's code, its defaults, and what its closure
      and the globals that it names hold, as far as these are plain values, arrays, or functions of
      the same module. Of anything else the name or the type alone counts.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import optree

_DIGEST_CHARACTERS = 24


def function_digest(function: Any) -> str:
    """The digest of a callable."""
    return _digest(_Walk(getattr(function, "__module__", None)).of(function))


def record_digest(record: Any) -> str:
    """The digest of a record: a pytree of arrays, numbers, strings and other objects."""
    leaves, treespec = optree.tree_flatten(record)
    return _digest([str(treespec), *_Walk(None).of(leaves)])


def _digest(pieces: Iterable[str | bytes]) -> str:
    hashed = hashlib.sha256()
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else piece.encode()
        hashed.update(b"%d:" % len(data) + data)  # where one ends, so that none run together
    return hashed.hexdigest()[:_DIGEST_CHARACTERS]


class _Walk:
    """Describes values, piece by piece, each of them once.

    Args:
        module: Name of the module whose functions are looked into.
    """

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._seen: dict[int, Any] = {}  # kept, so that no other object has the same id

    def of(self, value: Any) -> Iterator[str | bytes]:
        """What a value is."""
        yield type(value).__qualname__
        if isinstance(value, str | bytes | int | float | complex | np.generic | None):
            yield repr(value)
            return
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            yield f"{value.dtype} {value.shape}"
            yield value.tobytes()
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, set | frozenset):
            yield from sorted(map(repr, value))  # their own order differs between processes
        elif isinstance(value, dict):
            for key, item in value.items():
                yield repr(key)
                yield from self.of(item)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self.of(item)
        elif isinstance(value, types.CodeType):
            yield value.co_code
            yield repr((value.co_names, value.co_argcount, value.co_kwonlyargcount))
            yield from self.of(value.co_consts)
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, types.MethodType):
            yield from self.of(value.__func__)
            yield from self.of(getattr(value.__self__, "__dict__", None))
        elif isinstance(value, functools.partial):
            yield from self.of((value.func, value.args, value.keywords))
        elif isinstance(value, types.ModuleType | type | types.BuiltinFunctionType):
            yield value.__name__
        elif callable(value):
            yield from self.of(getattr(type(value), "__call__"))  # noqa: B004, B009
            yield from self.of(getattr(value, "__dict__", None))

    def _of_function(self, function: types.FunctionType) -> Iterator[str | bytes]:
        if function.__module__ != self._module:
            yield f"{function.__module__}.{function.__qualname__}"
            return
        yield from self.of(function.__code__)
        yield from self.of((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            yield from self.of(held)
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield from self.of(function.__globals__[name])


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals that a function may name, in those inside it too."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)
