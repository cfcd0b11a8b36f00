"""Records that could not be read or transformed, where they are left out or replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

OnBadRecord: TypeAlias = Literal["raise", "skip", "replace"]
ON_BAD_RECORD: tuple[OnBadRecord, ...] = get_args(OnBadRecord)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is not in its batch.

    Attributes:
        step: Step of the batch.
        position: Place of the record in the run's global order; in a stream, of the record that
            has its row.
        index: Index of the record in the source; in a stream, in its shard.
        error: Type and message of what it raised.
        replaced_by: Index of the record in its row; None where the row is left out.
        shard: Shard of the record; None where the source is no stream.
    """

    step: int
    position: int
    index: int
    error: str
    replaced_by: int | None
    shard: int | None = None
