"""What a worker must know: the user's source and code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feeder.produce.bad import OnBadRecord
from feeder.produce.info import WorkerInfo, enter
from feeder.sources import RandomAccess


@dataclass(frozen=True)
class Recipe:
    """Everything that a worker must know; pickled once.

    Attributes:
        source: Where records come from.
        transforms: Per record, in order: callables, or `RandomMap`.
        collate: List of records → batch; None: stack every leaf.
        batch_transforms: Per local batch, in order.
        seed: Key of all randomness.
        worker_init: Called once in each new worker.
        on_bad_record: What becomes of a record that cannot be read or transformed.
    """

    source: RandomAccess
    transforms: tuple[Any, ...]
    collate: Callable[[list[Any]], Any] | None
    batch_transforms: tuple[Callable[[Any], Any], ...]
    seed: int
    worker_init: Callable[[WorkerInfo], object] | None = None
    on_bad_record: OnBadRecord = "raise"

    def start(self, worker_id: int, num_workers: int) -> None:
        """Makes this thread a worker."""
        info = WorkerInfo(worker_id, num_workers, self.seed)
        enter(info)
        if self.worker_init is not None:
            self.worker_init(info)
