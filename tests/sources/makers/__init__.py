"""Makers of sources, a module for each family: what `tests/sources/test_promise.py` runs over.

Each module has ``MAKERS``, of names and functions: ``make(folder)`` writes whatever files the
source needs below ``folder`` (empty at the first call, and the same at later ones, which must not
write again) and returns the source and its records as a list; for a stream, None in its place.
There are 40 to 200 records. A maker may bear a mark of pytest's, as ``@pytest.mark.matrix`` where
its workers take long to start.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Maker = Callable[[Path], tuple[Any, list[Any] | None]]

MAKERS: dict[str, Maker] = {
    name: make
    for module in pkgutil.iter_modules(__path__)
    for name, make in importlib.import_module(f"{__name__}.{module.name}").MAKERS.items()
}
