"""Counts, lists and logs the records that are missing from delivered batches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from feeder.errors import BadRecordsError
from feeder.produce.bad import BadRecord

KEPT = 1000
"""Records listed, at most; an endless run may meet any number."""

_log = logging.getLogger("feeder")


class BadRecords:
    """The bad records of one run.

    Attributes:
        count: How many there were.
        last: The last `KEPT` of them.

    Args:
        limit: How many there may be; None: any number.
    """

    def __init__(self, limit: int | None) -> None:
        self.count = 0
        self.last: deque[BadRecord] = deque(maxlen=KEPT)
        self._limit = limit

    def check(self, bad: Sequence[BadRecord]) -> None:
        """Sees whether those of the batch that comes next are too many.

        Raises:
            BadRecordsError: They are too many.
        """
        if self._limit is not None and self.count + len(bad) > self._limit:
            listed = "; ".join(f"record {record.index}: {record.error}" for record in bad[:8])
            raise BadRecordsError(
                f"at most `max_bad_records` = {self._limit} records may be bad in one run, got "
                f"{self.count + len(bad)} up to step {bad[0].step}, where {listed}; mend or leave "
                "out these records, or raise `max_bad_records`",
                step=bad[0].step,
                indices=[record.index for record in bad],
                limit=self._limit,
            )

    def add(self, bad: Sequence[BadRecord]) -> None:
        """Takes note of those of a batch that is delivered."""
        self.count += len(bad)
        self.last.extend(bad)
        for record in bad:
            became = "left out"
            if record.replaced_by is not None:
                became = f"replaced by record {record.replaced_by}"
            _log.warning(
                "record %s%s (step %s, position %s) is %s: %s",
                record.index,
                "" if record.shard is None else f" of shard {record.shard}",
                record.step,
                record.position,
                became,
                record.error,
            )
