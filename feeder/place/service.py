"""JAX's own key-value service, which every process of a job reaches once JAX is distributed.

Guarantees:
    * No wait is longer than it was asked to be, and Ctrl-C ends it within a second.
    * No devices and no collectives take part: a process that is missing makes nobody hang.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
import zlib
from typing import Any, Self

_SLICE_S = 1.0
"""Python handles signals between waits of so many seconds."""

_SILENT_S = 10.0
"""A wait that is longer is logged."""

_log = logging.getLogger("feeder")


class Service:
    """The service, as seen by the processes that share one loader's batches.

    Their loaders are told apart by counting: the first that such processes make is the same one
    on all of them. The count is kept by the service, so it needs no global here.

    Attributes:
        processes: Numbers of the processes, in rising order.
        own: Number of this one.
        number: Which of their loaders this is, from 1.

    Args:
        client: JAX's client of the service.
        processes: Numbers of the processes that share the batches.
        own: Number of this one.
    """

    def __init__(self, client: Any, processes: tuple[int, ...], own: int) -> None:
        self.processes = processes
        self.own = own
        self._client = client
        group = zlib.crc32(repr(processes).encode())
        self.number = client.key_value_increment(f"feeder/{group:08x}/loaders_of/{own}", 1)
        self._prefix = f"feeder/{group:08x}/{self.number}"
        self._runs = itertools.count()

    @classmethod
    def of(cls, processes: tuple[int, ...]) -> Self | None:
        """The service for these processes; None where there is one, or JAX is not distributed."""
        if len(processes) < 2 or "jax" not in sys.modules:
            return None
        try:
            # JAX has no public name for it; multihost_utils works by collectives, which hang.
            from jax._src.distributed import global_state

            client = global_state.client
        except (ImportError, AttributeError) as error:
            _log.warning("this JAX hides its service: processes are not compared (%s)", error)
            return None
        return (
            None if client is None else cls(client, processes, sys.modules["jax"].process_index())
        )

    def next_run(self) -> int:
        """A number for an iterator of the loader, the same on all processes."""
        return next(self._runs)

    def put(self, key: str, value: str) -> None:
        """Tells every process ``value``, in place of what was told before."""
        self._client.key_value_set(f"{self._prefix}/{key}", value, allow_overwrite=True)

    def get(self, key: str, deadline: float) -> str | None:
        """What a process has told, or tells in time; None: nothing.

        Args:
            key: As in `put`.
            deadline: When to wait no longer, in seconds of `time.monotonic`.
        """
        began, silent = time.monotonic(), True
        while True:
            if silent and time.monotonic() - began > _SILENT_S:
                silent = False
                _log.warning(
                    "process %d waits for another: %s of loader number %d",
                    self.own,
                    key,
                    self.number,
                )
            left = min(_SLICE_S, max(deadline - time.monotonic(), 0.001))
            try:
                found: str = self._client.blocking_key_value_get(
                    f"{self._prefix}/{key}", int(left * 1000)
                )
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() >= deadline:
                    return None
            else:
                return found

    def entries(self, key: str) -> list[str]:
        """What was told so far under ``key/…``, without waiting."""
        return [value for _, value in self._client.key_value_dir_get(f"{self._prefix}/{key}/")]

    def forget(self, key: str) -> None:
        """Takes back what was told."""
        self._client.key_value_delete(f"{self._prefix}/{key}")
