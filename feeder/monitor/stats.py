"""What an iterator measured of itself."""

from __future__ import annotations

from dataclasses import dataclass

from feeder.produce.bad import BadRecord


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the iterator began; times in seconds.

    The stages of the recipe run in the workers, next to each other and to the user's step:
    their sum may exceed ``elapsed_s``.

    Attributes:
        batches: Batches delivered.
        elapsed_s: From the first ``next()`` to now.
        wait_s: Time that the user spent in ``next()``: all that loading costs the loop.
        place_s: The part of it that placed batches on devices.
        read_s: Reading records, over all workers.
        transform_s: Transforming records, over all workers.
        collate_s: Collating batches, over all workers.
        batch_transform_s: Transforming batches, over all workers.
        restarts: Workers that died and were replaced, over the loader's life.
        worker_pids: Process ids of the workers that live now, for profilers.
        num_bad_records: Records left out or replaced in the batches delivered, since the run began
            or a state was set.
        bad_records: The last thousand of them, each with step, position, index and error.
    """

    batches: int = 0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    place_s: float = 0.0
    read_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    batch_transform_s: float = 0.0
    restarts: int = 0
    worker_pids: tuple[int, ...] = ()
    num_bad_records: int = 0
    bad_records: tuple[BadRecord, ...] = ()

    @property
    def wait_share(self) -> float:
        """Share of the elapsed time that the user waited for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0
