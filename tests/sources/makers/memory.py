"""Arrays, pytrees of them and lists, in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def array(_folder: Path) -> tuple[Any, list[Any]]:
    rows = np.arange(90, dtype=np.float32).reshape(45, 2)
    return rows, list(rows)


def pytree(_folder: Path) -> tuple[Any, list[Any]]:
    tree = {"x": np.arange(60), "more": (np.arange(120).reshape(60, 2), np.arange(60) > 30)}
    x, (y, z) = tree["x"], tree["more"]
    return tree, [{"x": x[i], "more": (y[i], z[i])} for i in range(60)]


def names(_folder: Path) -> tuple[Any, list[Any]]:
    records = [{"name": f"number {i}", "id": i} for i in range(50)]
    return records, records


MAKERS = {"array": array, "pytree": pytree, "list": names}
