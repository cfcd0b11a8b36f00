"""Sources that can only be read from their beginning: streams of numbered shards."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

from feeder import arguments
from feeder.stateful import is_stateful

MOST_LANES = 64
"""Shards read side by side, unless `cycle_length` says otherwise: each is an open file, perhaps."""


class Stream:
    """A source of numbered shards: files, partitions, generators.

    Each shard is read in order, by one worker at a time. ``cycle_length`` shards are read side by
    side, and every batch has rows of all of them, or of as many as it has rows. A shard that ends
    is followed by another one in its place; where there is none left, its neighbours fill its rows.
    So the order of records depends on the shards and on the arguments alone, not on workers,
    processes or time.

    Args:
        open: ``open(shard, epoch, state)`` → iterator over the records of one shard; ``state`` is
            None at the beginning of the shard. An iterator with ``state_dict()`` or
            ``get_state()`` goes on from what that has returned, when it is opened with it as
            ``state``, which goes to its ``load_state_dict`` or ``set_state`` too, where it has
            one. Any other is opened at its beginning and read again up to the place. Each record
            must be an object of its own: what was handed out, the iterator must not change later.
        num_shards: How many.
        length: Records that all shards hold in an epoch, before transforms; None: unknown. It
            gives the loader a ``len()``, and is compared with what was read.
        cycle_length: Shards read side by side, over all processes; None: all, 64 at most.
        block_length: Records taken from one of them in a row, before the next one's turn; None:
            each of them fills the same rows of every batch, so that the processes of a job, and
            workers, each read shards of their own. A multiple of the batch size makes batches
            of one shard each.

    Attributes:
        decode: ``decode(record)`` → record: what a kind of stream does to each record that was
            read, before the loader's transforms, as they do: once its row is known, where it may
            be left out. None: nothing.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is below 1, or ``cycle_length`` above ``num_shards``.
    """

    decode: Callable[[Any], Any] | None = None

    def __init__(
        self,
        open: Callable[[int, int, Any], Iterable[Any]],  # noqa: A002 - what it does
        num_shards: int = 1,
        length: int | None = None,
        *,
        cycle_length: int | None = None,
        block_length: int | None = None,
    ) -> None:
        if not callable(open) or not takes(open, 3):
            raise TypeError(
                f"`open` must be callable as open(shard, epoch, state), got {shown(open)}"
            )
        self.open = open
        self.opens_at_state = True  # else the state does not reach the user's code through it
        self.num_shards = arguments.integer("num_shards", num_shards, 1)
        self.length = arguments.optional_integer("length", length, 0)
        lanes = arguments.optional_integer("cycle_length", cycle_length, 1)
        if lanes is not None and lanes > self.num_shards:
            raise ValueError(
                f"`cycle_length` must be at most `num_shards` = {self.num_shards}, got {lanes}"
            )
        self.cycle_length = lanes or min(self.num_shards, MOST_LANES)
        self.block_length = arguments.optional_integer("block_length", block_length, 1)

    def __repr__(self) -> str:
        return (
            f"Stream({shown(self.open)}, num_shards={self.num_shards}, length={self.length}, "
            f"cycle_length={self.cycle_length}, block_length={self.block_length})"
        )


def stream_of(
    items: Sequence[Any],
    read: Callable[[Any], Iterable[Any]] = iter,
    *,
    length: int | None = None,
    cycle_length: int | None = None,
    block_length: int | None = None,
) -> Stream:
    """A stream with one shard for each item, such as a file's name.

    Args:
        items: What names the shards.
        read: ``read(item)`` → iterator over the records of its shard, from the beginning. One that
            has ``state_dict()`` and ``load_state_dict()`` (or ``get_state()`` and
            ``set_state()``) goes on from its state; any other is read again up to the place. By
            default each item is an iterable of records, which begins anew each time.
        length: As of `Stream`.
        cycle_length: As of `Stream`.
        block_length: As of `Stream`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no item, or a number is wrong.
    """
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise TypeError(f"`items` must be a sequence of what names the shards, got {items!r}")
    if not callable(read) or not takes(read, 1):
        raise TypeError(f"`read` must be callable as read(item), got {shown(read)}")
    items = tuple(items)
    if not items:
        raise ValueError("`items` must name at least one shard, got none")
    return _without_state(
        functools.partial(_open_item, items, read),
        len(items),
        length,
        cycle_length=cycle_length,
        block_length=block_length,
    )


def _without_state(*arguments: Any, **options: Any) -> Stream:
    """A stream whose iterators are restored by their own methods, or read again."""
    stream = Stream(*arguments, **options)
    stream.opens_at_state = False
    return stream


def _open_item(
    items: Sequence[Any], read: Callable[[Any], Iterable[Any]], shard: int, _epoch: int, _state: Any
) -> Iterable[Any]:
    return read(items[shard])


def as_stream(source: Any) -> Stream | None:
    """Makes a stream of what the user gave; None where it is none.

    Raises:
        TypeError: It is an iterator, which can be read but once, or a function of arguments.
    """
    if isinstance(source, Stream):
        return source
    if isinstance(source, type | str | bytes | set | frozenset):
        return None
    if callable(getattr(source, "open", None)) and hasattr(source, "num_shards"):
        return Stream(
            source.open,
            source.num_shards,
            getattr(source, "length", None),
            cycle_length=getattr(source, "cycle_length", None),
            block_length=getattr(source, "block_length", None),
        )
    if isinstance(source, Iterator):
        raise TypeError(
            f"`source` must be readable more than once, got {shown(source)}, which is used up "
            "after one pass; give the function that makes it, or an object whose __iter__ begins "
            "anew"
        )
    if isinstance(source, Iterable):
        return _without_state(_Reopened(source), length=_length(source))
    if callable(source):
        if not takes(source, 0):
            raise TypeError(
                "`source` must be callable without arguments, where it is a function that returns "
                f"an iterator, got {shown(source)}; feeder.Stream takes open(shard, epoch, "
                "state), feeder.FromCallable fn(batch_size)"
            )
        return _without_state(_Called(source))
    return None


class _Reopened:
    """Opens an iterable, the only shard of its stream, by iterating over it anew."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __call__(self, _shard: int, epoch: int, _state: Any) -> Iterable[Any]:
        iterable: Any = self._iterable
        # Several runs may be open at once, each at a place, and in an epoch, of its own.
        if is_stateful(iterable):
            try:
                iterable = copy.deepcopy(iterable)
            except Exception as error:
                error.add_note(
                    "An iterable with a state of its own is copied for every run that reads it; "
                    "its __deepcopy__ may say what is shared."
                )
                raise
        elif hasattr(iterable, "set_epoch"):
            iterable = copy.copy(iterable)
        if hasattr(iterable, "set_epoch"):
            iterable.set_epoch(epoch)
        result: Iterable[Any] = iterable
        return result

    def __repr__(self) -> str:
        return shown(self._iterable)


class _Called:
    """Opens the only shard of a stream by a function without arguments."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def __call__(self, _shard: int, _epoch: int, _state: Any) -> Iterable[Any]:
        return self._function()

    def __repr__(self) -> str:
        return shown(self._function)


def takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many arguments, as far as can be told."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # built in: it has no signature
        return True
    return True


def _length(source: Any) -> int | None:
    try:
        return len(source) if isinstance(source, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def shown(value: Any) -> str:
    """A function with its arguments, or the type of what is none, for a message."""
    name = getattr(value, "__qualname__", None)
    if name is None:
        return type(value).__name__
    try:
        return f"{name}{inspect.signature(value)}"
    except (TypeError, ValueError):
        return str(name)
