"""One batch, here and now: for debugging, and to learn what batches look like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optree

from feeder.plan.batches import Chunk
from feeder.produce.ambient import preserved
from feeder.produce.failures import Failure
from feeder.produce.layout import Buffer
from feeder.produce.recipe import Builder, Recipe


def build_alone(recipe: Recipe, chunk: Chunk) -> Any:
    """Builds one batch in this thread, in memory of its own.

    Raises:
        Exception: Whatever the recipe raises, as an iterator would.
    """
    memory: Buffer = None

    def reserve(num_bytes: int) -> tuple[Buffer, int]:
        nonlocal memory
        memory = bytearray(num_bytes)
        return memory, 0

    with preserved():
        outcome = Builder(recipe).build(chunk, reserve)
    if isinstance(outcome, Failure):
        raise outcome.to_raise(chunk)
    assert isinstance(outcome.objects, list)
    return outcome.layout.batch(memory, outcome.objects)


def build_sample(recipe: Recipe, chunk: Chunk) -> Any:
    """A batch with the shapes and dtypes of the one that ``chunk`` asks for; reads one record.

    Raises:
        Exception: Whatever the recipe raises, as an iterator would.
    """
    first = np.zeros_like(chunk.indices)
    first[:] = chunk.indices[0]
    source = _OneRecord(recipe.source, int(chunk.indices[0]))
    return build_alone(replace(recipe, source=source), replace(chunk, indices=first))


class _OneRecord:
    """A source that has one record at every index, and reads it once."""

    def __init__(self, source: Any, index: int) -> None:
        if hasattr(source, "read"):
            batch = source.read(np.array([index]))
            self.read = lambda indices: optree.tree_map(
                lambda leaf: np.repeat(leaf, len(indices), axis=0), batch
            )
        elif hasattr(source, "__getitems__"):
            (self._record,) = source.__getitems__([index])
        else:
            self._record = source[index]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self._record
