"""The documents of one shard of a stream, as they are read, and places among them."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from feeder.errors import StreamError
from feeder.packing.documents import Form, Leaves, Name, leaves_of
from feeder.packing.sizes import Sizing
from feeder.plan.packing import Pieces
from feeder.produce.shard import Shard
from feeder.sources.stream import Stream

Record: TypeAlias = dict[str, Any]


class Mark(NamedTuple):
    """A place between two documents of a shard.

    Attributes:
        num_read: Documents before it.
        state: What their iterator said of itself there, pickled; None: nothing.
    """

    num_read: int = 0
    state: bytes | None = None


class Document(NamedTuple):
    """A document that was read, and how many tokens of it are packed."""

    name: Name
    leaves: Leaves
    size: int


class Documents:
    """The documents of one shard, from a place on.

    Owner:
        Owns the iterator of the stream's shard; `close` closes it.

    Attributes:
        begin: The place.
        is_over: Whether all of them were read.
    """

    def __init__(self, stream: Stream, sizing: Sizing, shard: int, epoch: int, state: Any) -> None:
        self.begin = Mark()
        self._form: Form | None = None
        self.is_over = False
        self._sizing = sizing
        self._decode = stream.decode
        if state is not None:
            inner = state["documents"]
            self.begin = Mark(state["read"], None if inner is None else pickle.dumps(inner, 5))
        self._shard = Shard(stream, shard, epoch, *self.begin)
        missing = self.begin.num_read - self._shard.num_read  # it had no state there
        if missing and self._shard.read([], missing):
            raise StreamError(
                f"shard {shard} must give the same documents each time it is opened, got only "
                f"{self._shard.num_read} of the {self.begin.num_read} that were read of it before; "
                "seed it",
                epoch=epoch,
            )

    @property
    def is_stateful(self) -> bool:
        """Whether they can be opened again where they are."""
        return self._shard.is_stateful

    def mark(self) -> Mark:
        """Where they are."""
        if self._shard.num_read == self.begin.num_read:
            return self.begin  # what it was opened with says it best
        return Mark(self._shard.num_read, self._shard.state())

    def read(self, count: int) -> list[Document]:
        """The next documents that have tokens, of so many."""
        records: list[Any] = []
        first = self._shard.num_read
        self.is_over = self._shard.read(records, count)
        found: list[tuple[Name, Leaves]] = []
        for number, record in enumerate(records, start=first):
            name = Name(number, self._shard.number)
            if self._decode is not None:
                record = self._decode(record)
            if self._form is None:
                leaves = leaves_of(record, self._sizing.keys, name)
                if not len(next(iter(leaves.values()))):
                    continue  # an empty list has no dtype
                self._form = self._sizing.form(leaves, name)
            found.append((name, self._form.leaves(record, *name)))
        lengths = np.array([len(leaves[0]) for _, leaves in found], np.int64)
        sizes = self._sizing.sizes(lengths, lambda place: found[place][0]).tolist()
        return [
            Document(name, leaves, size)
            for (name, leaves), size in zip(found, sizes, strict=True)
            if size
        ]

    def packed(self, pieces: Pieces, documents: list[Document], num_rows: int) -> list[Record]:
        """Packed records of pieces of documents that were read."""
        assert self._form is not None
        leaves = [documents[place].leaves for place in pieces.documents.tolist()]
        batch = self._form.batch(pieces, leaves, num_rows)
        rows = zip(*batch.values(), strict=True)
        return [dict(zip(batch, row, strict=True)) for row in rows]

    def close(self) -> None:
        """Closes the iterator, where it can be closed."""
        self._shard.close()
