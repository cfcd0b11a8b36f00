"""What a worker may know of itself.

Guarantees:
    * Two loaders never see each other's: the value belongs to the thread that runs the worker.
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, as `worker_init` and `get_worker_info` describe it.

    Nothing that a record becomes may depend on it: any worker may build any batch.

    Attributes:
        worker_id: Number of the worker, from 0; a replacement has that of the worker it replaces.
        num_workers: Workers of the loader.
        seed: The loader's seed.
    """

    worker_id: int
    num_workers: int
    seed: int


_info: contextvars.ContextVar[WorkerInfo | None] = contextvars.ContextVar(
    "feeder.WorkerInfo", default=None
)


def get_worker_info() -> WorkerInfo | None:
    """The worker that this code runs in; None outside of workers.

    Known to the worker's own thread, not to threads that user code starts there.
    """
    return _info.get()


def enter(info: WorkerInfo) -> None:
    """Says that this thread runs a worker, from now on."""
    _info.set(info)
