"""What several tests need: a source whose records say who they are, and comparisons to the bit."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import optree

import feeder


def rows(num_records: int) -> dict[str, np.ndarray]:
    """A source of ``num_records`` rows; ``index`` says which record a row is."""
    image = np.arange(num_records * 12, dtype=np.float32).reshape(num_records, 3, 4)
    return {"image": image, "index": np.arange(num_records, dtype=np.int32)}


def noisy(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A random transform."""
    return {**record, "image": record["image"] + rng.random(dtype=np.float32)}


def as_bytes(batch: Any) -> bytes:
    """A batch, with its structure, shapes and dtypes, as bytes."""
    leaves, treespec = optree.tree_flatten(batch)
    arrays = [np.asarray(leaf) for leaf in leaves]
    described = repr((treespec, [(array.shape, str(array.dtype)) for array in arrays]))
    contents = [
        repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        for array in arrays
    ]
    return described.encode() + b"".join(contents)


def digest(batches: Iterable[Any]) -> str:
    """A digest of batches and of their order."""
    hashed = hashlib.sha256()
    for batch in batches:
        hashed.update(as_bytes(batch))
    return hashed.hexdigest()


def indices_of(batches: Iterable[Any]) -> list[list[int]]:
    """Which records each batch holds."""
    return [np.asarray(batch["index"]).tolist() for batch in batches]


def run(source: Any, batch_size: int, **options: Any) -> list[Any]:
    """All batches of a loader that is closed afterwards."""
    with feeder.DataLoader(source, batch_size, **options) as loader:
        return list(loader)


def kill_one(batches: feeder.BatchIterator, number: int, which: int = 0) -> None:
    """Sends a signal to a worker of an iterator; all of them may have gone before."""
    pids = batches.stats().worker_pids
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[which % len(pids)], number)
