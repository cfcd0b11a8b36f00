"""Documents of a source with random access, packed."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.packing.documents import Form, Leaves, Name, listed
from feeder.packing.sizes import Sizing
from feeder.plan.order import Indices
from feeder.plan.packing import PackingPlan
from feeder.sources.protocol import fingerprint_of

_PROBES = 64
"""Records that tell one packing from another."""


class Packed:
    """A source of packed records, which `feeder.pack` makes.

    A record is a dict of arrays of shape (length,): the documents' leaves (``tokens``, where a
    document is an array), ``segment_ids`` and ``positions``.

    Attributes:
        length: Tokens of a record.
        num_documents: Documents in the source, empty ones and those left out included.
        num_tokens: Tokens in all records, without padding.
        fill_ratio: Share of the records' tokens that is no padding.
    """

    def __init__(
        self,
        source: Any,
        sizing: Sizing,
        lengths: NDArray[Any],
        plan: PackingPlan,
        num_tokens: int,
        order: Callable[[Indices], Indices] | None,
        form: Form,
    ) -> None:
        self.length = sizing.length
        self.num_documents = len(lengths)
        self.num_tokens = num_tokens
        self.fill_ratio = num_tokens / (plan.num_records * sizing.length)
        self._source = source
        self._sizing = sizing
        self._lengths = lengths
        self._plan = plan
        self._order = order
        self._form = form

    def __len__(self) -> int:
        return self._plan.num_records

    @property
    def fingerprint(self) -> str:
        """What tells it from documents packed in another way: what is in some of the records.

        Those are 64, at equal distances.
        """
        last = max(0, len(self) - 1)
        probes = sorted({last * number // (_PROBES - 1) for number in range(_PROBES)})
        crc = zlib.crc32(repr((len(self), self.length, fingerprint_of(self._source))).encode())
        if len(self):
            pieces = self._plan.pieces(np.array(probes))
            for column in (self._documents(pieces.documents), *pieces[1:]):
                crc = zlib.crc32(np.asarray(column).astype("<i8").tobytes(), crc)
        return f"pack {crc:08x}"

    def __repr__(self) -> str:
        return (
            f"Packed({self.num_documents} documents in {len(self)} records of {self.length} "
            f"tokens, fill_ratio={self.fill_ratio:.4f})"
        )

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"packed record {number} is out of range: there are {len(self)}")
        batch = self.read(np.array([number % len(self)]))
        return {name: leaf[0] for name, leaf in batch.items()}

    def read(self, indices: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The records at some indices, in new arrays of shape (rows, length).

        Raises:
            IndexError: There is no such record.
            DocumentError: A document is not what it should be.
            Exception: Whatever the source raises.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"packed records must be in range({len(self)}), got {indices}")
        pieces = self._plan.pieces(indices)
        numbers, which = np.unique(self._documents(pieces.documents), return_inverse=True)
        read = self._read(numbers.tolist())
        documents = [read[number] for number in which.tolist()]
        return self._form.batch(pieces, documents, len(indices))

    def _documents(self, places: Indices) -> Indices:
        return places if self._order is None else self._order(places)

    def _read(self, numbers: list[int]) -> list[Leaves]:
        lengths = self._lengths[numbers].tolist()
        found = []
        for number, length, document in zip(
            numbers, lengths, listed(self._source, numbers), strict=True
        ):
            leaves = self._form.leaves(document, number)
            if len(leaves[0]) != length:
                raise Name(number).error(
                    f"document {number} must have the {length} tokens that its length was said to "
                    f"be, got {len(leaves[0])}; are `lengths` of this source?"
                )
            found.append(leaves)
        return found
