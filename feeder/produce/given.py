"""Batches whose records this process was given by a callable: the recipe's other source.

The records, the functions that make them, or the ready batch travel with the chunk.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optree

from feeder.errors import StreamError
from feeder.plan.chunks import Chunk, PlannedChunk
from feeder.plan.order import Indices
from feeder.produce.ambient import Ambient
from feeder.produce.builder import Builder
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.failures import Failure
from feeder.produce.filling import Reserve
from feeder.produce.recipe import Recipe
from feeder.produce.session import Locate
from feeder.produce.streams import Streams
from feeder.sources.callable import FromCallable


class _Records:
    """A list of records, and of functions that return them."""

    given: Sequence[Any] = ()

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, index: int) -> Any:
        record = self.given[index]
        return record() if callable(record) else record


class _Batch:
    """A ready batch."""

    given: Any = None

    def __len__(self) -> int:
        return len(optree.tree_leaves(self.given)[0])

    def __getitem__(self, index: int) -> Any:
        return optree.tree_map(lambda leaf: leaf[index], self.given)

    def read(self, indices: Indices) -> Any:
        if len(indices) == len(self):  # all of it, in order
            return self.given
        return optree.tree_map(lambda leaf: leaf[indices], self.given)


class GivenBuilder:
    """Builds batches of what came with their chunks.

    Args:
        recipe: How.
        ambient: As of `Builder`.
    """

    keys_generators = True

    def __init__(self, recipe: Recipe, ambient: Ambient | None) -> None:
        self._records, self._batch = _Records(), _Batch()
        self._of_records = Builder(replace(recipe, source=self._records), ambient)
        self._of_batch = Builder(replace(recipe, source=self._batch), ambient)

    def build(
        self, chunk: Chunk, reserve: Reserve, _locate: Locate | None = None
    ) -> Built | Ended | Passed | Failure:
        """Builds the batch of ``chunk`` in the memory that ``reserve`` finds."""
        assert isinstance(chunk, PlannedChunk)
        try:
            given = _unpacked(chunk.given)
        except Exception as error:
            return Failure.of(error, "read", None)
        source: _Records | _Batch = self._records
        builder = self._of_records
        if not isinstance(given, list):
            source, builder = self._batch, self._of_batch
        source.given = given
        try:
            return builder.build(chunk, reserve)
        finally:
            source.given = ()

    def tell_busy(self, _tell: Callable[[], None]) -> None:
        """Nothing is read again."""

    def close(self) -> None:
        """Nothing is open."""


def builder_of(
    recipe: Recipe, ambient: Ambient | None, streams: Streams | None = None
) -> Builder | GivenBuilder:
    """What builds batches by a recipe; the arguments are those of `Builder`."""
    if isinstance(recipe.source, FromCallable):
        return GivenBuilder(recipe, ambient)
    return Builder(recipe, ambient, streams)


def packed(given: Any) -> bytes:
    """What a callable gave, for a worker.

    Raises:
        TypeError: It cannot be pickled.
    """
    import cloudpickle  # no worker needs it, unless what it unpickles does

    try:
        return bytes(cloudpickle.dumps(given, protocol=5))
    except Exception as error:
        raise TypeError(
            "what a FromCallable gives must be picklable to reach worker processes, got "
            f"{type(error).__name__}: {error}; set `num_workers=0`"
        ) from error


def checked(given: Any, num_rows: int, step: int) -> Any:
    """What a callable gave, as many rows as it was asked for.

    Raises:
        StreamError: It is something else.
    """
    if isinstance(given, list):
        if len(given) == num_rows:
            return given
        got = f"{len(given)} records"
    else:
        leaves, treespec = optree.tree_flatten(given)
        got = repr(given)[:80]
        for leaf, accessor in zip(leaves, treespec.accessors(), strict=True):
            name = accessor.codify("batch")
            if not hasattr(leaf, "__array__"):
                got = f"a {type(leaf).__name__} at {name}"
                break
            shape = np.shape(leaf)
            if not shape or shape[0] != num_rows:
                got = f"the shape {shape} at {name}"
                break
        else:
            if leaves:
                return given
    raise StreamError(
        f"a FromCallable must give {num_rows} rows for `batch_size` {num_rows}, as a list of "
        "records or of functions, or as a batch, a pytree of arrays with so many rows, got "
        f"{got} for step {step}; return None to end the run",
        step=step,
    )


def _unpacked(given: Any) -> Any:
    return pickle.loads(given) if isinstance(given, bytes) else given
