"""Sources that write their records straight into a batch: no other copy is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import optree
from numpy.typing import NDArray

from feeder.spec import ArraySpec


@runtime_checkable
class InPlace(Protocol):
    """A source that also writes its records straight into a batch, where nothing is done to them.

    It runs no code of the user's, so that nothing draws from the global generators meanwhile, and
    writes to no batch once ``read_into`` has returned or raised.

    Attributes:
        record_spec: A record, with an `ArraySpec` in the place of each leaf; None: it cannot write
            in place after all, as its records are not all alike.
    """

    @property
    def record_spec(self) -> Any: ...

    def read_into(self, indices: NDArray[np.int64], out: Sequence[NDArray[Any]], /) -> None:
        """Writes the records at ``indices`` into ``out``.

        Args:
            indices: Shape (rows,), every one in ``range(len(self))``.
            out: C-contiguous arrays of shape (rows, *leaf shape), in the order of optree's leaves.
        """
        ...


class Placed(NamedTuple):
    """A source that writes in place, and what it writes.

    Attributes:
        source: The source.
        treespec: Structure of a record.
        specs: The leaves of a record.
    """

    source: InPlace
    treespec: optree.PyTreeSpec
    specs: list[ArraySpec]


def in_place(source: object) -> Placed | None:
    """The source, where it writes its records in place; else None."""
    if not isinstance(source, InPlace) or (record := source.record_spec) is None:
        return None
    specs, treespec = optree.tree_flatten(record)
    return Placed(source, treespec, specs)


def in_memory(source: object) -> bool:
    """Whether reading a few records costs no more for each than reading many: it says so."""
    return getattr(source, "in_memory", False) is True
