"""Which rows of each global batch this process holds.

Guarantees:
    * Pure: the answer follows from the map of rows to devices, never from ids.
    * Each row once, in rising order, also where several local devices hold it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feeder.plan.order import Indices


def rows_of_process(num_rows: int, process_index: int, process_count: int) -> Indices:
    """The rows of one process where no sharding says otherwise: equal runs, in process order.

    Args:
        num_rows: Rows of the global batch, a multiple of ``process_count``.
        process_index: Number of this process.
        process_count: Processes of the job.
    """
    share = num_rows // process_count
    return np.arange(process_index * share, (process_index + 1) * share, dtype=np.int64)


def rows_of_slices(num_rows: int, slices: Iterable[slice]) -> Indices:
    """The rows that the addressable devices hold.

    Args:
        num_rows: Rows of the global batch.
        slices: The first index of every value of
            ``sharding.addressable_devices_indices_map((num_rows,))``.
    """
    held = np.zeros(num_rows, dtype=bool)
    for rows in slices:
        held[rows] = True
    return np.flatnonzero(held)
