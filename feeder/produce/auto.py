"""``num_workers="auto"``: measured when the first batch is asked for.

A batch is built here, as far as it takes to know its price. Where that is less than handing it
over would cost, batches are built in this process; else by as many workers as there are
processors for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from feeder.errors import ClosedError
from feeder.plan.batches import BatchPlan
from feeder.produce import here
from feeder.produce.cpus import available_cpus
from feeder.produce.recipe import Recipe
from feeder.produce.session import Locate, Producer, Session
from feeder.produce.workforce import Workforce

HANDOVER_S = 0.0003
"""What a batch from a worker costs this process and the worker, about, with waking up."""

MOST_WORKERS = 32
"""Beyond it, one Python process has its hands full with taking the batches."""

_SAMPLED_ROWS = 16

_log = logging.getLogger("feeder")


class Auto:
    """A producer that is chosen at the first session.

    Args:
        recipe: What builds a batch.
        first: Plans the first batch, to measure by.
        make: Makes a producer of so many workers.
    """

    def __init__(
        self, recipe: Recipe, first: Callable[[], BatchPlan], make: Callable[[int], Producer]
    ) -> None:
        self._recipe = recipe
        self._first = first
        self._make = make
        self._lock = threading.Lock()
        self._chosen: Producer | None = None
        self._closed = False

    @property
    def window(self) -> int:
        """Batches that one session should have under way."""
        return self._choose().window

    def workforce(self) -> Workforce:
        """Who builds batches now; nobody before the choice."""
        return Workforce() if self._chosen is None else self._chosen.workforce()

    def start(self) -> None:
        """Chooses, and starts the workers."""
        self._choose().start()

    def session(self, locate: Locate | None = None) -> Session:
        """Opens a session; the first one measures."""
        return self._choose().session(locate)

    def close(self) -> None:
        """Ends all processes and gives all memory back. Idempotent."""
        self._closed = True  # at once: a measurement may take its time
        with self._lock:
            if self._chosen is not None:
                self._chosen.close()

    def _choose(self) -> Producer:
        with self._lock:
            if self._closed:
                raise ClosedError
            if self._chosen is None:
                chosen = self._make(self._num_workers())
                if self._closed:
                    chosen.close()
                    raise ClosedError
                self._chosen = chosen
            return self._chosen

    def _num_workers(self) -> int:
        chunk = self._first().chunk
        rows = len(chunk.indices)
        sampled = here.alone(chunk.rows(0, min(rows, _SAMPLED_ROWS)))
        seconds = here.seconds(self._recipe, sampled) * rows / max(1, len(sampled.indices))
        # What `worker_init` prepares is there in workers alone.
        here_too = seconds < HANDOVER_S and self._recipe.worker_init is None
        chosen = 0 if here_too else min(available_cpus(), MOST_WORKERS)
        _log.info('`num_workers="auto"`: a batch takes %.2g s: %s workers', seconds, chosen)
        return chosen
