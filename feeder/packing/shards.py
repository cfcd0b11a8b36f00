"""Documents of a stream, packed shard by shard.

Guarantees:
    * A shard's records depend on its documents and on the arguments of `feeder.pack` alone, not on
      where it was opened.
    * A state holds no tokens: it says where the documents of the next record begin.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from feeder.errors import StateError
from feeder.packing.reading import Document, Documents, Mark, Record
from feeder.packing.sizes import Sizing
from feeder.plan.packing import PackingPlan, SplitPlan
from feeder.sources.stream import Stream

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
        self._packing = list(sizing.described.values())  # every shard's state has it

    def _check(self, packing: Any) -> None:
        """Refuses the state of a stream that was packed in another way."""
        present = self._sizing.described
        mismatches = {
            name: (saved, value)
            for (name, value), saved in zip(present.items(), packing, strict=True)
            if saved != value
        }
        if mismatches:
            listed = ", ".join(f"{name}={saved!r}" for name, (saved, _) in mismatches.items())
            raise StateError(
                f"`state` must be of a stream that was packed alike, got one with {listed}; pack "
                "it so, or start anew without the state",
                mismatches=mismatches,
            )

    def __call__(self, shard: int, epoch: int, state: Any) -> Iterator[Record]:
        if state is not None:
            self._check(state["packing"])
        documents = Documents(self._stream, self._sizing, shard, epoch, state)
        given = 0 if state is None else state["given"]
        split = self._sizing.strategy == "split"
        kind: type[SplitRecords | BestFitRecords] = SplitRecords if split else BestFitRecords
        records = kind(documents, self._sizing, given)
        return StatefulRecords(records, self._packing) if documents.is_stateful else records

    def __repr__(self) -> str:
        return f"PackedShards({self._stream})"


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
        self._ready = self._documents.packed(pieces, self._window, stop - self._given)[::-1]

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
        rows = documents.packed(pieces, [document for _, document in held], count)
        # Where the record after each of them begins: in the document that it ends in, or after it.
        last = np.cumsum(np.bincount(pieces.rows)) - 1
        stops = (pieces.starts + pieces.sizes)[last]
        places = list(zip(pieces.documents[last].tolist(), stops.tolist(), strict=True))
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

    def __init__(self, records: Records, packing: list[Any]) -> None:
        self._records = records
        self._packing = packing

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        return next(self._records)

    def state_dict(self) -> dict[str, Any]:
        (num_read, state), given = self._records.where()
        inner = None if state is None else pickle.loads(state)
        return {
            "packing": self._packing,
            "documents": inner,
            "read": num_read,
            "given": given,
        }

    def close(self) -> None:
        self._records.close()
