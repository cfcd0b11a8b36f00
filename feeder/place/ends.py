"""Where do the lanes of a stream end? Each process of a job reads some, and tells the others.

Guarantees:
    * Every process knows the same ends before it delivers a step: all take the same steps, whatever
      their shards hold, and nobody waits in a collective for one that has no batch.
    * Nobody waits for others while a batch that is ready could be delivered: they may need it to
      come to where this one waits. Nor does anybody wait for longer than `PATIENCE_S`.

Owner:
    A feed owns its `Ends`, and with it two messages at the service at most.
"""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from feeder.errors import ProcessMismatchError
from feeder.place.agreement import listed
from feeder.place.service import Service
from feeder.plan.order import Indices
from feeder.plan.stream import Total

PATIENCE_S = 3600.0
"""Seconds that processes wait for the slowest; one that has died, JAX itself finds out sooner."""


class Job:
    """The processes that share the shards of a stream.

    Args:
        service: Theirs.
        rows_of: The rows of each process in a global batch of so many rows.
    """

    def __init__(self, service: Service, rows_of: Callable[[int], Mapping[int, Indices]]) -> None:
        self.service = service
        self._rows_of = rows_of

    def leaders(self, cycle: Indices, batch_size: int) -> Indices:
        """The process that reads each lane to its end, shape (lanes,)."""
        firsts = np.searchsorted(cycle, np.arange(int(cycle[-1]) + 1))
        return self._holders(batch_size)[firsts % batch_size]

    def num_shared(self, cycle: Indices, batch_size: int) -> int:
        """Lanes that several processes read, each for rows of its own."""
        holders = self._holders(batch_size)
        num_rows = np.lcm(len(cycle), batch_size)
        rows = np.arange(min(int(num_rows), 64 * len(cycle)))
        pairs = np.unique(np.stack([cycle[rows % len(cycle)], holders[rows % batch_size]]), axis=1)
        return int((np.bincount(pairs[0]) > 1).sum())

    def _holders(self, batch_size: int) -> Indices:
        """The first process that holds each row of a batch."""
        holders = np.zeros(batch_size, np.int64)
        for process, rows in sorted(self._rows_of(batch_size).items(), reverse=True):
            holders[rows] = process
        return holders


class Ends:
    """The exchange of one run; `tell` and then `heard` or `wait`, step by step.

    Args:
        service: Of the processes.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._run = service.next_run()
        self._key = self._before = ""
        self._step = 0

    def tell(self, step: int, attempt: int, totals: Mapping[int, Total]) -> None:
        """Tells the others what this process found while it built a step.

        Args:
            step: The step.
            attempt: How often ends were found in it before.
            totals: Of the lanes that end before or in it, and were not known to.
        """
        self._step = step
        self._put(f"stream{self._run}/{step}.{attempt}", json.dumps(totals))

    def heard(self) -> dict[int, Total] | None:
        """What all of them found; None: some have not told yet."""
        told = self._all_told()
        if told is None:
            return None
        found: dict[int, Total] = {}
        for message in told:
            found |= {int(lane): Total(*of) for lane, of in json.loads(message).items()}
        return found

    def share(self, value: Any) -> None:
        """Tells the others a value, after `heard`; then come `shared` or `wait`."""
        self._put(f"{self._key}s", base64.b64encode(pickle.dumps(value, 5)).decode())

    def shared(self) -> list[Any] | None:
        """The values of all; None: some have not told theirs yet."""
        told = self._all_told()
        return None if told is None else [pickle.loads(base64.b64decode(one)) for one in told]

    def wait(self) -> None:
        """Waits until all have told what this process has told last.

        Raises:
            ProcessMismatchError: Some have not, in time.
        """
        deadline = time.monotonic() + PATIENCE_S
        missing = [
            process
            for process in self._service.processes
            if self._service.get(f"{self._key}/{process}", deadline) is None
        ]
        if missing:
            raise ProcessMismatchError(
                f"every process must come to step {self._step}, got nothing of {listed(missing)} "
                f"within {PATIENCE_S:g} s; take the same batches on all of them",
                missing=missing,
                step=self._step,
            )

    def _all_told(self) -> list[str] | None:
        told = self._service.entries(self._key)
        if len(told) < len(self._service.processes):
            return None
        if self._before:  # who has told of this has read what was told before
            self._service.forget(f"{self._before}/{self._service.own}")
            self._before = ""
        return told

    def _put(self, key: str, value: str) -> None:
        if key != self._key:
            self._before, self._key = self._key, key
        self._service.put(f"{key}/{self._service.own}", value)
