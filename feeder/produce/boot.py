"""What the zygote's interpreter runs first: as much of this package as workers need, and no more.

``feeder/__init__`` imports what the user's process needs: the loader, the pool, and all they
stand on, which would double the time to the first batch. Here it is run only where user code in
a worker asks for one of its names.

Run as a script, by path, so that the package is not imported before.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """The package ``feeder``, whose own code runs at the first look at one of its names."""

    _asleep = True
    _waking = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        if PathFinder.find_spec(f"feeder.{name}", self.__path__) is not None:
            return importlib.import_module(f"feeder.{name}")  # a module, which needs no more
        if not name.startswith("__"):
            with self._waking:
                if self._asleep:
                    self._asleep = False  # first: what it imports looks for names here as well
                    assert self.__spec__ is not None
                    assert self.__spec__.loader is not None
                    self.__spec__.loader.exec_module(self)
                if name in vars(self):
                    return vars(self)[name]
        raise AttributeError(f"module 'feeder' has no attribute {name!r}")


def main() -> None:
    """Becomes the zygote: ``boot.py <sys.path as JSON> <numbers for zygote.main>``."""
    sys.path[:] = json.loads(sys.argv[1])
    init = Path(__file__).parents[1] / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "feeder", init, submodule_search_locations=[str(init.parent)]
    )
    assert spec is not None
    package = _Package("feeder")
    package.__spec__ = spec
    package.__path__ = [str(init.parent)]
    package.__file__ = str(init)
    sys.modules["feeder"] = package

    from feeder.produce.zygote import main

    main(*map(int, sys.argv[2:]))


if __name__ == "__main__":
    main()
