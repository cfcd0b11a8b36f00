"""The one function: what to pack, how, and with random access or as a stream."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from feeder import arguments
from feeder.packing.documents import Name, leaves_of
from feeder.packing.lengths import checked_lengths, kept_lengths, measured_lengths
from feeder.packing.packed import Packed
from feeder.packing.shards import PackedShards
from feeder.packing.sizes import STRATEGIES, TOO_LONG, Sizing, Strategy, TooLong
from feeder.plan.order import permutation
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import as_source
from feeder.sources.stream import Stream

WINDOW, STREAM_WINDOW = 65_536, 1024
"""Documents that are packed together; those of a stream are held in memory."""


def pack(
    source: Any,
    length: int,
    *,
    strategy: Strategy = "best_fit",
    window: int | None = None,
    too_long: TooLong = "split",
    separator: int | None = None,
    pad: int = 0,
    keys: str | Sequence[str] | None = None,
    lengths: ArrayLike | str | os.PathLike[str] | None = None,
    seed: int | None = None,
    num_workers: int | Literal["auto"] = "auto",
    progress: bool = True,
) -> Any:
    """Documents packed into records of ``length`` tokens.

    A document is an array or a list of integers, or a dict of those with one length; a dict's
    other leaves than ``"tokens"`` may hold floats and booleans too, such as weights of the loss. A
    record is a dict of arrays of shape (length,): the document's leaves (``tokens``, where it is an
    array), in their own dtype; ``segment_ids``, int32: 1 in the first document of the record, 2 in
    the next one, …, 0 where there is none; ``positions``, int32: 0, 1, 2, … in each segment.
    Attention must be kept within a segment: ``segment_ids[:, None] == segment_ids[None, :]``.

    Which pieces of which documents a record holds depends on the documents' lengths and on these
    arguments alone. Every token is in one record exactly. Those that share a record do so in every
    epoch; ``shuffle=True`` of the loader changes the order of the records. To mix the documents
    themselves anew, pack with another ``seed``.

    Args:
        source: Documents: any source of a `DataLoader`. A stream becomes a stream of packed
            records, in which each shard packs its own documents; where its iterators have a
            state, so have these. A document must not depend on the global random generators there.
        length: Tokens of a record.
        strategy: ``"best_fit"``: documents are packed whole, by best-fit decreasing among the
            ``window`` documents that stand together, into records that end with padding;
            ``"split"``: all of them one after the other, cut every ``length`` tokens, with padding
            only at the very end.
        window: Documents that are packed together, with ``"best_fit"``: the more, the less padding,
            and the farther those of a record lie apart. None: 65 536; of a stream, whose shards
            each hold so many in memory, 1024.
        too_long: With ``"best_fit"``, what becomes of a document longer than a record: ``"split"``,
            it is cut into full records and a rest; ``"truncate"``; ``"drop"``; ``"raise"``.
        separator: Put after each document, such as an end-of-text token, as a part of it; None:
            nothing. Only for documents of one leaf.
        pad: Token where a record holds no document.
        keys: Leaf, or leaves, of a dict that are packed; the others are left out. None: all.
        lengths: The documents' lengths, shape (len(source),), without separators. None:
            ``source.lengths``, where it has that; otherwise all documents are read once, by
            workers. The name of a ``.npy`` file: it keeps what was read so, for the next time.
        seed: Documents are packed in a random order that this number makes; None: in their own.
        num_workers: Workers that read the lengths, as of a `DataLoader`.
        progress: Whether they show a bar, where tqdm is installed and stderr is a terminal.

    Returns:
        A `Packed`, whose ``fill_ratio`` says how much is no padding; of a stream, a `Stream`.

    Raises:
        TypeError: An argument has the wrong type, or ``source`` is none of documents.
        ValueError: An argument has a value that cannot work, or there is no token to pack.
        DocumentError: A document cannot be packed; those that are read later raise it then.
    """
    source = as_source(source)
    if isinstance(source, FromCallable):
        raise TypeError(
            "`source` must have len() and [], or be a stream, got a FromCallable, which gives "
            "batches of its own"
        )
    streamed = isinstance(source, Stream)
    sizing = Sizing(
        arguments.integer("length", length, 1),
        arguments.choice("strategy", strategy, STRATEGIES),
        arguments.optional_integer("window", window, 1) or (STREAM_WINDOW if streamed else WINDOW),
        arguments.choice("too_long", too_long, TOO_LONG),
        None if separator is None else arguments.integer("separator", separator, 0),
        _token("pad", pad),
        _names(keys),
    )
    if strategy == "split" and window is not None:
        raise ValueError(f'`window` must be left out with `strategy="split"`, got {window}')
    if strategy == "split" and too_long != "split":
        raise ValueError(f'`too_long` must be "split" with `strategy="split"`, got {too_long!r}')
    if isinstance(source, Stream):
        for name, given in (("lengths", lengths), ("seed", seed)):
            if given is not None:
                raise ValueError(
                    f"`{name}` must be left out with a stream, whose documents are packed as they "
                    f"come, got {given!r}"
                )
        return Stream(
            PackedShards(source, sizing),
            source.num_shards,
            cycle_length=source.cycle_length,
            block_length=source.block_length,
        )
    seed = arguments.optional_integer("seed", seed, 0)
    progress = arguments.boolean("progress", progress)
    num_documents = len(source)
    if not num_documents:
        raise ValueError("`source` must hold at least one document, got none")
    order = None if seed is None else permutation(num_documents, seed, 0)
    offered = getattr(source, "lengths", None)
    if isinstance(lengths, str | os.PathLike):
        found = kept_lengths(Path(lengths), source, sizing.keys, num_workers, progress)
    elif lengths is not None:
        found = checked_lengths("lengths", lengths, num_documents)
    elif offered is not None and not callable(offered):
        found = checked_lengths("source.lengths", offered, num_documents)
    else:
        found = measured_lengths(source, sizing.keys, num_workers, progress)
    sizes = sizing.sizes(found)
    total = int(sizes.sum(dtype=np.int64))
    if not total:
        raise ValueError(
            f"`source` must hold a token to pack, got {num_documents} documents of none"
        )
    first = int(np.argmax(sizes > 0))
    named = Name(first)
    form = sizing.form(leaves_of(source[first], sizing.keys, named), named)
    if order is not None:
        sizes = sizes[order(np.arange(num_documents))]
    return Packed(source, sizing, found, sizing.plan(sizes), total, order, form)


def _token(name: str, value: Any) -> int:
    """An integer, of any sign: whether it fits is seen at the first document."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be an integer, got {value!r}")
    return int(value)


def _names(keys: Any) -> tuple[str, ...] | None:
    if keys is None:
        return None
    names = (keys,) if isinstance(keys, str) else tuple(keys) if isinstance(keys, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`keys` must be the name of a leaf, or a list of names, got {keys!r}")
    return names
