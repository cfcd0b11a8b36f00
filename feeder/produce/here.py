"""One batch, here and now: for debugging, and to learn what batches look like."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Self

import numpy as np
import optree

from feeder.errors import RecordError
from feeder.plan.chunks import Chunk, PlannedChunk, StreamChunk
from feeder.produce.ambient import Ambient, preserved
from feeder.produce.builder import Builder
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.failures import Failure
from feeder.produce.layout import Buffer
from feeder.produce.recipe import Recipe
from feeder.sources.protocol import offers_list


def build_alone(recipe: Recipe, chunk: PlannedChunk) -> Any:
    """Builds one batch in this thread, in memory of its own.

    Raises:
        Exception: Whatever the recipe raises, as an iterator would.
    """
    outcome = _built(Builder(recipe, Ambient(recipe.seed)), chunk)
    assert not isinstance(outcome, Ended | Passed)
    return outcome


class StreamReader:
    """Builds batches of a stream in this thread, in step order.

    Owner:
        Owns what it has open of the stream; the end of its ``with`` block closes it.

    Args:
        recipe: Whose source is a stream.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._builder = Builder(recipe, Ambient(recipe.seed))

    def build(self, chunk: StreamChunk) -> Any:
        """The batch in memory of its own; `Ended` or `Passed` where there is none."""
        return _built(self._builder, chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._builder.close()


def _built(builder: Builder, chunk: Chunk) -> Any:
    memory: Buffer = None

    def reserve(num_bytes: int) -> tuple[Buffer, int]:
        nonlocal memory
        memory = bytearray(num_bytes)
        return memory, 0

    with preserved():
        outcome = builder.build(chunk, reserve)
    if isinstance(outcome, Failure):
        raise outcome.to_raise(chunk)
    if not isinstance(outcome, Built):
        return outcome
    assert isinstance(outcome.objects, list)
    return outcome.layout.batch(memory, outcome.objects)


def build_sample(recipe: Recipe, chunk: PlannedChunk) -> Any:
    """A batch with the shapes and dtypes of the one that ``chunk`` asks for; reads one record.

    Where nothing sees the whole batch, one record is all that is built. More than one is read
    where the first are bad, and bad records are left out or replaced.

    Raises:
        Exception: Whatever the recipe raises, as an iterator would.
    """
    strict = replace(recipe, on_bad_record="raise")
    for row, index in enumerate(chunk.indices.tolist()):
        same = replace(chunk, indices=np.full_like(chunk.indices, index), spares=None)
        one = replace(strict, source=_OneRecord(recipe.source, index))
        try:
            if recipe.collate or recipe.batch_transforms:
                return build_alone(one, same)
            rows = len(chunk.indices)
            return optree.tree_map(
                lambda leaf, rows=rows: np.broadcast_to(leaf, (rows, *leaf.shape[1:])),
                build_alone(one, alone(same.rows(0, 1))),
            )
        except Exception as error:
            last = row == len(chunk.indices) - 1
            cause = error if isinstance(error, RecordError) else error.__cause__
            bad = isinstance(cause, RecordError) and cause.stage in ("read", "transform")
            if last or not bad or recipe.on_bad_record == "raise":
                raise
    raise AssertionError("a batch has rows")


_SAMPLING_S = 0.05
_SAMPLES = 5


def seconds(recipe: Recipe, chunk: PlannedChunk) -> float:
    """What building a batch takes, once all is imported and warm; infinity where it fails.

    The least of a few, as far as they take next to nothing.
    """
    memory = bytearray(0)

    def reserve(num_bytes: int) -> tuple[Buffer, int]:
        nonlocal memory
        if len(memory) < num_bytes:
            memory = bytearray(num_bytes)
        return memory, 0

    builder = Builder(recipe, Ambient(recipe.seed))
    found: list[float] = []
    with preserved():
        if isinstance(builder.build(chunk, reserve), Failure):
            return math.inf
        while len(found) < _SAMPLES and sum(found) < _SAMPLING_S:
            began = time.perf_counter()
            builder.build(chunk, reserve)
            found.append(time.perf_counter() - began)
    return min(found)


def alone(chunk: PlannedChunk) -> PlannedChunk:
    """Rows of a batch as a batch of their own."""
    return replace(chunk, first_row=0, part_of=None)


class _OneRecord:
    """A source that has one record at every index, and reads it once."""

    def __init__(self, source: Any, index: int) -> None:
        self._source = source
        self._index = index
        self._record: list[Any] = []
        if hasattr(source, "read"):
            self.read = self._repeated

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        if not self._record:
            if offers_list(self._source):
                (record,) = self._source.__getitems__([self._index])
            else:
                record = self._source[self._index]
            self._record.append(record)
        return self._record[0]

    def _repeated(self, indices: Any) -> Any:
        batch = self._source.read(np.array([self._index]))
        return optree.tree_map(lambda leaf: np.repeat(leaf, len(indices), axis=0), batch)
