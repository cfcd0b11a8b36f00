"""What a document is, and how pieces of documents become packed records.

Guarantees:
    * A document that differs in leaves or dtype from the first one is an error that names it,
      never a silent cast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.errors import DocumentError
from feeder.plan.packing import Pieces
from feeder.sources.protocol import offers_list

SEGMENTS, POSITIONS = "segment_ids", "positions"
"""Leaves that a packed record gains."""

Leaves: TypeAlias = list[NDArray[Any]]
"""The leaves of a document, all of one length, in the order of their names."""


class Name(NamedTuple):
    """Which document it is, for a message.

    Attributes:
        document: Its index in the source, or its number in its shard.
        shard: Its shard; None where the source is no stream.
    """

    document: int
    shard: int | None = None

    def __str__(self) -> str:
        of = "" if self.shard is None else f" of shard {self.shard}"
        return f"document {self.document}{of}"

    def error(self, message: str) -> DocumentError:
        """What is wrong with it."""
        return DocumentError(message, document=self.document, shard=self.shard)


def listed(source: Any, numbers: list[int]) -> list[Any]:
    """The documents of a source with random access at some indices, as it gives them."""
    if offers_list(source):
        documents = list(source.__getitems__(numbers))
        if len(documents) != len(numbers):
            raise ValueError(
                f"`__getitems__(indices)` must return {len(numbers)} documents for "
                f"{len(numbers)} indices, got {len(documents)}"
            )
        return documents
    documents = []
    for number in numbers:
        try:
            documents.append(source[number])
        except Exception as error:
            error.add_note(f"This was document {number} of the source that is packed.")
            raise
    return documents


def leaves_of(document: Any, keys: tuple[str, ...] | None, name: Name) -> dict[str, NDArray[Any]]:
    """The leaves of a document, checked.

    Args:
        document: An array or a list of integers; or a dict of arrays or lists of one length.
        keys: Which of a dict's; None: all.
        name: Which document it is.

    Raises:
        DocumentError: It is none of these.
    """
    if isinstance(document, Mapping):
        missing = [key for key in keys or () if key not in document]
        if missing:
            raise name.error(
                f"{name} must have the leaves of `keys`, got {sorted(map(str, document))} without "
                f"{missing[0]!r}"
            )
        named = {key: document[key] for key in keys or document}
        for taken in (SEGMENTS, POSITIONS):
            if taken in named:
                raise name.error(
                    f"{name} must have no leaf {taken!r}, which packed records gain; leave it out "
                    "with `keys`"
                )
    elif keys is None:
        named = {"tokens": document}
    else:
        raise name.error(
            f"{name} must be a dict where `keys` are given, got {type(document).__name__}"
        )
    leaves = {key: _array(leaf, key, name) for key, leaf in named.items()}
    lengths = {key: len(leaf) for key, leaf in leaves.items()}
    if len(set(lengths.values())) != 1:
        raise name.error(f"{name} must have leaves of one length, at least one, got {lengths}")
    return leaves


def _array(leaf: Any, key: str, name: Name) -> NDArray[Any]:
    if not isinstance(leaf, np.ndarray):
        rule = f"{key!r} of {name} must be an array or a list of integers, got "
        if isinstance(leaf, str | bytes) or not hasattr(leaf, "__len__"):
            remedy = (
                "feeder.TokenWindows cuts windows from one long array"
                if isinstance(leaf, int | np.integer)
                else "tokenize texts before, and choose leaves with `keys`"
            )
            raise name.error(f"{rule}{type(leaf).__name__}; {remedy}")
        try:
            leaf = np.asarray(leaf) if len(leaf) else np.zeros(0, np.int64)
        except ValueError:  # of lists of different lengths
            raise name.error(f"{rule}a {type(leaf).__name__} of other than numbers") from None
    if leaf.ndim != 1:
        raise name.error(f"{key!r} of {name} must have one axis, got shape {leaf.shape}")
    if leaf.dtype.kind not in ("iu" if key == "tokens" else "iubf"):
        raise name.error(f"{key!r} of {name} must hold integers, got {leaf.dtype}")
    array: NDArray[Any] = leaf
    return array


class Form:
    """Leaves and dtypes of all documents, as the first of them has them; makes packed records.

    Args:
        first: That document's leaves.
        name: Which document it is.
        keys: Which leaves of a dict are packed; None: all.
        length: Tokens of a record.
        pad: What stands where a record holds no document.
        separator: What is put after each document; None: nothing.

    Raises:
        ValueError: ``pad`` or ``separator`` does not fit the dtypes.
    """

    def __init__(
        self,
        first: dict[str, NDArray[Any]],
        name: Name,
        keys: tuple[str, ...] | None,
        length: int,
        pad: int,
        separator: int | None,
    ) -> None:
        self.names = tuple(first)
        self._first = name
        self._keys = keys
        self._length = length
        self._dtypes = [leaf.dtype for leaf in first.values()]
        self._pads = [np.full(length, _fitting("pad", pad, dtype)) for dtype in self._dtypes]
        self._separators: Leaves | None = None
        if separator is not None:
            if len(first) > 1:
                raise ValueError(
                    f"`separator` must be left out where documents have several leaves, got "
                    f"{separator} for {list(first)}; choose one with `keys`"
                )
            ends = [_fitting("separator", separator, dtype) for dtype in self._dtypes]
            self._separators = [end[None] for end in ends]

    def leaves(self, document: Any, number: int, shard: int | None = None) -> Leaves:
        """The leaves of a document.

        Args:
            document: As it was read.
            number: Its index in the source, or its number in its shard.
            shard: Its shard; None where the source is no stream.

        Raises:
            DocumentError: They are not those of the first one.
        """
        if (
            type(document) is np.ndarray
            and self.names == ("tokens",)
            and document.dtype == self._dtypes[0]
            and document.ndim == 1
        ):
            return [document]  # most often
        name = Name(number, shard)
        found = leaves_of(document, self._keys, name)
        if found.keys() != set(self.names):
            raise name.error(
                f"{name} must have the leaves of {self._first}, {list(self.names)}, got "
                f"{list(found)}"
            )
        leaves = [found[key] for key in self.names]
        for leaf, dtype, key in zip(leaves, self._dtypes, self.names, strict=True):
            if leaf.dtype != dtype and len(leaf):
                raise name.error(
                    f"{key!r} of {name} must be of the dtype of {self._first}, {dtype}, got "
                    f"{leaf.dtype}"
                )
        return leaves

    def batch(
        self, pieces: Pieces, documents: Sequence[Leaves], num_rows: int
    ) -> dict[str, NDArray[Any]]:
        """Packed records.

        Args:
            pieces: What they hold.
            documents: The document of each piece.
            num_rows: How many records.

        Returns:
            Arrays of shape (num_rows, length).
        """
        sizes, shape = pieces.sizes, (num_rows, self._length)
        counts = np.bincount(pieces.rows, minlength=num_rows)
        ends = np.cumsum(counts)
        held = np.bincount(pieces.rows, sizes, num_rows).astype(np.int64)
        gaps = self._length - held
        numbers = np.arange(1, len(sizes) + 1) - np.repeat(ends - counts, counts)
        # Each row ends with its padding, as one more piece.
        sizes = np.insert(sizes, ends, gaps)
        numbers = np.insert(numbers, ends, 0)
        segments = np.repeat(numbers.astype(np.int32), sizes)
        begins = np.repeat((np.cumsum(sizes) - sizes).astype(np.int32), sizes)
        positions = np.arange(len(segments), dtype=np.int32) - begins
        positions[segments == 0] = 0
        batch = {
            key: self._column(number, pieces, documents, ends.tolist(), gaps.tolist()).reshape(
                shape
            )
            for number, key in enumerate(self.names)
        }
        return {**batch, SEGMENTS: segments.reshape(shape), POSITIONS: positions.reshape(shape)}

    def _column(
        self,
        number: int,
        pieces: Pieces,
        documents: Sequence[Leaves],
        ends: list[int],
        gaps: list[int],
    ) -> NDArray[Any]:
        starts, stops = pieces.starts.tolist(), (pieces.starts + pieces.sizes).tolist()
        pad, first = self._pads[number], 0
        parts = [pad[:0]]
        for end, gap in zip(ends, gaps, strict=True):
            for piece in range(first, end):
                leaf = documents[piece][number]
                parts.append(leaf[starts[piece] : stops[piece]])
                if stops[piece] > len(leaf):
                    assert self._separators is not None
                    parts.append(self._separators[number])
            first = end
            if gap:
                parts.append(pad[:gap])
        return np.concatenate(parts)


def _fitting(argument: str, value: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        return np.array(value, dtype)
    except OverflowError:
        raise ValueError(
            f"`{argument}` must fit the documents' dtype, {dtype}, got {value}"
        ) from None
