"""How a composed source reads its children: in batches where they can, else record by record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from feeder.plan.order import Indices
from feeder.plan.schedule import MAX_POSITIONS
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import RandomAccess, as_source, offers_list
from feeder.sources.stream import Stream

ReadRow = Callable[[int], Any]
"""Row of a chunk → its record."""

_NAMED = 8
"""Records that an error of a whole batch lists."""


def child_of(name: str, value: object) -> RandomAccess:
    """The source that a user gave to be composed.

    Args:
        name: What to call it in messages: ``sources[1]``.
        value: Anything that a loader takes as a source with random access.

    Raises:
        TypeError: It is none.
        ValueError: It is one whose arrays differ in length, or holds too many records.
    """
    try:
        source = as_source(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{name}` must be a source of records, got an error: {error}") from None
    if isinstance(source, Stream | FromCallable):
        remedy = "compose what makes the stream, as the items of feeder.stream_of"
        if isinstance(source, FromCallable):
            remedy = "compose the batches in the function"
        raise TypeError(
            f"`{name}` must have len() and [], to be composed with random access, got "
            f"{source!r}; {remedy}"
        )
    if len(source) > MAX_POSITIONS:
        raise ValueError(f"`{name}` must hold 2**62 records at most, got {len(source)}")
    return source


def children_of(sources: Any) -> tuple[list[RandomAccess], list[str]]:
    """The sources that a user gave as a list, and what to call them.

    Raises:
        TypeError: It is no list, or one of them is no source with random access.
        ValueError: There is none.
    """
    if not isinstance(sources, list | tuple):
        raise TypeError(f"`sources` must be a list of sources, got {type(sources).__name__}")
    if not sources:
        raise ValueError("`sources` must name at least one source, got none")
    names = [f"sources[{number}]" for number in range(len(sources))]
    return [child_of(name, one) for name, one in zip(names, sources, strict=True)], names


def reads_batches(source: object) -> bool:
    """Whether it has ``read(indices)``."""
    return hasattr(source, "read")


def read_batch(source: Any, name: str, indices: Indices) -> Any:
    """The batch that a child reads.

    Raises:
        ValueError: It has not a row for each index.
        Exception: Whatever the child raises, with a note that names it.
    """
    try:
        batch = source.read(indices)
    except Exception as error:
        add_note(error, f"It was raised while {listed(indices, name)} were read.")
        raise
    for leaf in optree.tree_leaves(batch):
        shape = np.shape(leaf)
        if not shape or shape[0] != len(indices):
            raise ValueError(
                f"`read(indices)` of `{name}` must return {len(indices)} rows for {len(indices)} "
                f"indices in every leaf, got shape {shape}"
            )
    return batch


def open_rows(source: Any, name: str, indices: Indices) -> ReadRow:
    """Opens a chunk of a child's records.

    What reads many records at once is read now, any other record when it is asked for.

    Raises:
        ValueError: The child returns another number of records.
        Exception: Whatever the child raises, with a note that names it.
    """
    if reads_batches(source):
        leaves, treespec = optree.tree_flatten(read_batch(source, name, indices))
        return lambda row: treespec.unflatten([leaf[row] for leaf in leaves])
    if hasattr(source, "open_rows"):
        opened: ReadRow = source.open_rows(indices)
        return opened
    asked = indices.tolist()
    if not offers_list(source):
        return lambda row: source[asked[row]]
    try:
        records = list(source.__getitems__(asked))
    except Exception as error:
        add_note(error, f"It was raised while {listed(indices, name)} were read.")
        raise
    if len(records) != len(asked):
        raise ValueError(
            f"`__getitems__(indices)` of `{name}` must return {len(asked)} records for "
            f"{len(asked)} indices, got {len(records)}"
        )
    return records.__getitem__


def add_note(error: BaseException, note: str) -> None:
    """Adds a note once, however often the same exception is raised."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def listed(indices: Indices, name: str) -> str:
    """Records of a child, for a message."""
    shown = ", ".join(map(str, indices[:_NAMED].tolist()))
    more = f", … ({len(indices)} in all)" if len(indices) > _NAMED else ""
    return f"records {shown}{more} of {name}"
