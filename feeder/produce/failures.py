"""How an exception of user code crosses from a worker to the user."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from feeder.errors import (
    DocumentError,
    FeederError,
    RecordError,
    RecordMismatchError,
    SourceError,
)
from feeder.plan.chunks import Chunk
from feeder.produce import homing
from feeder.sources.reading import add_note

_MAX_TEXT = 16_000
"""Characters of a traceback, or bytes of a pickled exception, that fit a message."""

START = "start"
"""Stage of a failure before any batch: the worker could not load the recipe."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception, and where in the recipe it was raised.

    Attributes:
        exception: The exception itself; None where it could not cross processes.
        type_name: Its qualified type.
        message: ``str`` of it.
        traceback: Its traceback as text.
        stage: Stage of the recipe.
        row: Row of the chunk; None where the failure concerns all of them.
        place: Position, shard and number of the record, where it is one of a stream.
    """

    exception: BaseException | None
    type_name: str
    message: str
    traceback: str
    stage: str
    row: int | None
    place: tuple[int, int, int] | None = None

    @classmethod
    def of(
        cls,
        exception: BaseException,
        stage: str,
        row: int | None,
        place: tuple[int, int, int] | None = None,
    ) -> Failure:
        """Describes an exception that was just caught."""
        kind = type(exception)
        text = "".join(traceback.format_exception(exception))
        if len(text) > _MAX_TEXT:
            text = text[: _MAX_TEXT // 2] + "\n  [...]\n" + text[-_MAX_TEXT // 2 :]
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        return cls(exception, name, _message(exception), text, stage, row, place)

    def packed(self) -> tuple[Any, ...]:
        """The failure as a tuple that can be pickled, whatever the exception is."""
        return (
            _pickled(self.exception),
            self.type_name,
            self.message,
            self.traceback,
            self.stage,
            self.row,
            self.place,
        )

    @classmethod
    def unpacked(cls, packed: tuple[Any, ...]) -> Failure:
        """The failure that `packed` made a tuple of."""
        pickled, *rest = packed
        exception = None
        if pickled:
            try:
                exception = pickle.loads(pickled)
                if isinstance(exception, _Parts):
                    exception = exception.put_together()
            except Exception:  # importable in the worker, not here: it arrives as text
                exception = None
        return cls(exception, *rest)

    def to_raise(self, chunk: Chunk) -> BaseException:
        """The exception to raise in the user's loop.

        The user's own exception, caused by a `RecordError` that says where; that RecordError
        itself where the exception could not cross processes; a FeederError, but for those of a
        source, as it is.

        Args:
            chunk: The chunk of the batch that failed.
        """
        of_source = isinstance(self.exception, SourceError | DocumentError)
        if isinstance(self.exception, FeederError) and not of_source:
            return self.exception
        place = f"the {self.stage} of step {chunk.step} failed"
        if self.stage == START:
            place = "the start of a worker failed"
        position = index = shard = None
        if self.place is not None:
            position, shard, index = self.place
            place += f" at record {index} of shard {shard} (position {position})"
        elif self.row is not None:
            position, index = int(chunk.positions[self.row]), int(chunk.indices[self.row])
            place += f" at record {index} (position {position})"
        where = RecordError(
            f"{place}: {self.type_name}: {self.message}",
            step=chunk.step,
            stage=self.stage,
            position=position,
            index=index,
            shard=shard,
            worker_traceback=self.traceback,
        )
        if self.exception is None or isinstance(self.exception, StopIteration):
            # A StopIteration out of next() would be the end of the run: see PEP 479.
            return where
        self.exception.__cause__ = where
        return self.exception


def tell_origin(error: BaseException, source: object, chunk: Chunk, row: int | None) -> None:
    """Adds a note to an error at a record of a composed source: whose record it is."""
    origin_of = getattr(source, "origin_of", None)
    if row is None or not callable(origin_of):
        return
    indices = [chunk.indices[row]]
    if isinstance(error, RecordMismatchError):  # between two records
        indices = [error.index, chunk.indices[0]]
    for index in indices:
        add_note(error, f"Record {index} is {origin_of(int(index))}.")


def _pickled(exception: BaseException | None) -> bytes:
    """The exception, or its parts where it does not unpickle as it is; empty where nothing does."""
    try:
        pickled = pickle.dumps(exception, 5)
        # What pickles need not unpickle: an __init__ with more arguments than `args`.
        pickle.loads(pickled)
    except Exception:
        try:
            pickled = homing.dumps(_Parts.of(exception))
        except Exception:
            pickled = b""
    return pickled if len(pickled) <= _MAX_TEXT else b""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an exception is made of."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, exception: BaseException | None) -> _Parts:
        assert exception is not None
        return cls(type(exception), exception.args, vars(exception))

    def put_together(self) -> BaseException:
        """The exception, without a call of its ``__init__``."""
        exception = self.kind.__new__(self.kind, *self.args)
        exception.args = self.args
        vars(exception).update(self.fields)
        return exception


def _message(exception: BaseException) -> str:
    try:
        text = str(exception)
    except Exception:
        text = "(its str() fails)"
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "[...]"
