"""Pickling on the way home: a worker's values, for the process that its classes come from.

A class of the user's ``__main__``, or of a notebook, reached the worker by value: there is no
such name there, and plain pickle refuses it. It is sent back by name, and is then the user's
own class again, not a copy of it.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and value.__module__ == "__main__":
            return _find, (value.__module__, value.__qualname__)
        return NotImplemented


def dumps(value: object) -> bytes:
    """Pickles a value for the parent.

    Raises:
        Exception: Whatever pickling raises.
    """
    file = io.BytesIO()
    _Pickler(file, 5).dump(value)
    return file.getvalue()


def _find(module: str, qualname: str) -> Any:
    found: Any = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found
