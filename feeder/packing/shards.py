"""Documents of a stream, packed shard by shard.

Guarantees:
    * A shard's records depend on its documents and on the arguments of `feeder.pack` alone, not on
      where it was opened.
    * A state holds no tokens: it says where the documents of the next record begin.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from feeder.errors import StreamError
from feeder.packing.documents import Form, Leaves, Name, leaves_of
from feeder.packing.sizes import Sizing
from feeder.plan.packing import PackingPlan, SplitPlan
from feeder.produce.shard import Shard
from feeder.sources import Stream

Record: TypeAlias = dict[str, Any]

_AT_ONCE = 32
"""Records that are made together: NumPy's calls cost more than what they do for one."""


class PackedShards:
    """Opens packed shards of a stream.

    Args:
        stream: The documents.
        sizing: How they are packed.
    """

    def __init__(self, stream: Stream, sizing: Sizing) -> None:
        self._stream = stream
        self._sizing = sizing

    def __call__(self, shard: int, epoch: int, state: Any) -> Iterator[Record]:
        documents = Documents(self._stream, self._sizing, shard, epoch, state)
        given = 0 if state is None else state["given"]
        split = self._sizing.strategy == "split"
        kind: type[SplitRecords | BestFitRecords] = SplitRecords if split else BestFitRecords
        records = kind(documents, self._sizing, given)
        return StatefulRecords(records) if documents.is_stateful else records

    def __repr__(self) -> str:
        return f"PackedShards({self._stream})"


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
        form: What they are like, once one was read.
        begin: The place.
        is_over: Whether all of them were read.
    """

    form: Form

    def __init__(self, stream: Stream, sizing: Sizing, shard: int, epoch: int, state: Any) -> None:
        self.begin = Mark()
        self.is_over = False
        self._sizing = sizing
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
            if not hasattr(self, "form"):
                leaves = leaves_of(record, self._sizing.keys, name)
                if not len(next(iter(leaves.values()))):
                    continue  # an empty list has no dtype
                self.form = self._sizing.form(leaves, name)
            found.append((name, self.form.leaves(record, *name)))
        lengths = np.array([len(leaves[0]) for _, leaves in found], np.int64)
        sizes = self._sizing.sizes(lengths, lambda place: found[place][0]).tolist()
        return [
            Document(name, leaves, size)
            for (name, leaves), size in zip(found, sizes, strict=True)
            if size
        ]

    def close(self) -> None:
        """Closes the iterator, where it can be closed."""
        self._shard.close()


class Records(Protocol):
    """An iterator over the packed records of a shard, which knows where it is."""

    def __iter__(self) -> Iterator[Record]: ...

    def __next__(self) -> Record: ...

    def where(self) -> tuple[Mark, int]:
        """A place in the documents, and the records, or tokens, that were given from there on."""
        ...

    def close(self) -> None: ...


class BestFitRecords:
    """The records of one window of documents after the other.

    Args:
        documents: At the beginning of a window.
        sizing: How they are packed.
        given: Records of that window that were given before.
    """

    def __init__(self, documents: Documents, sizing: Sizing, given: int) -> None:
        self._documents = documents
        self._sizing = sizing
        self._begin = documents.begin  # of the window
        self._given = given
        self._window: list[Document] = []
        self._plan: PackingPlan | None = None
        self._ready: list[Record] = []  # the next records, from the last one on

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while not self._ready:
            if self._plan is None:
                self._window = self._documents.read(self._sizing.window)
                self._plan = self._sizing.plan(np.array([each.size for each in self._window]))
            if self._given < self._plan.num_records:
                self._make(self._plan)
            elif self._documents.is_over:
                raise StopIteration
            else:
                self._go_on()
        record = self._ready.pop()
        self._given += 1
        assert self._plan is not None
        if self._given == self._plan.num_records and not self._documents.is_over:
            self._go_on()  # so that its state asks for no window to be read again
        return record

    def _make(self, plan: PackingPlan) -> None:
        stop = min(self._given + _AT_ONCE, plan.num_records)
        pieces = plan.pieces(np.arange(self._given, stop))
        leaves = [self._window[place].leaves for place in pieces.documents.tolist()]
        batch = self._documents.form.batch(pieces, leaves, stop - self._given)
        self._ready = _rows(batch)[::-1]

    def _go_on(self) -> None:
        """To the next window."""
        self._begin, self._given = self._documents.mark(), 0
        self._window, self._plan = [], None

    def where(self) -> tuple[Mark, int]:
        return self._begin, self._given

    def close(self) -> None:
        self._documents.close()


class SplitRecords:
    """All documents of a shard one after the other, cut every ``length`` tokens.

    Args:
        documents: At the one that the next record begins in.
        sizing: How they are packed.
        given: Tokens of that one that were given before.
    """

    def __init__(self, documents: Documents, sizing: Sizing, given: int) -> None:
        self._documents = documents
        self._length = sizing.length
        self._held: list[tuple[Mark, Document]] = []
        self._given = given
        self._begin = documents.begin, given
        self._ready: list[tuple[Record, tuple[Mark, int]]] = []  # with the place after each

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if not self._ready:
            self._make()
        if not self._ready:
            raise StopIteration
        record, self._begin = self._ready.pop()
        return record

    def _make(self) -> None:
        documents, held, given, length = self._documents, self._held, self._given, self._length
        num_tokens = sum(document.size for _, document in held) - given
        while num_tokens < _AT_ONCE * length and not documents.is_over:
            mark = documents.mark()
            for document in documents.read(1):
                num_tokens += document.size
                held.append((mark, document))
        sizes = np.array([document.size for _, document in held], np.int64)
        sizes[:1] -= given
        if (sizes < 0).any():
            raise held[0][1].name.error(
                f"{held[0][1].name} must be the same each time it is read, got "
                f"{held[0][1].size} tokens, of which {given} were given before"
            )
        plan = SplitPlan(sizes, length)
        count = plan.num_records if documents.is_over else num_tokens // length
        if not count:
            return
        pieces = plan.pieces(np.arange(count))
        pieces.starts[pieces.documents == 0] += given
        leaves = [held[place][1].leaves for place in pieces.documents.tolist()]
        rows = _rows(documents.form.batch(pieces, leaves, count))
        # Where the record after each of them begins: in the document that it ends in, or after it.
        last = np.cumsum(np.bincount(pieces.rows)) - 1
        ends = zip(
            pieces.documents[last].tolist(),
            (pieces.starts + pieces.sizes)[last].tolist(),
            strict=True,
        )
        places = [(place, end) for place, end in ends]
        self._ready = [
            (row, (held[place][0], end)) for row, (place, end) in zip(rows, places, strict=True)
        ][::-1]
        place, self._given = places[-1]
        self._held = held[place:]

    def where(self) -> tuple[Mark, int]:
        return self._begin

    def close(self) -> None:
        self._documents.close()


class StatefulRecords:
    """Records whose place can be saved: what a stream's iterator must be like."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        return next(self._records)

    def state_dict(self) -> dict[str, Any]:
        (num_read, state), given = self._records.where()
        inner = None if state is None else pickle.loads(state)
        return {"documents": inner, "read": num_read, "given": given}

    def close(self) -> None:
        self._records.close()


def _rows(batch: Record) -> list[Record]:
    return [dict(zip(batch, leaves, strict=True)) for leaves in zip(*batch.values(), strict=True)]
