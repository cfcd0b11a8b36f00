"""Do processes that hold the same rows hold the same bytes? For ``debug_checks=True``.

Guarantees:
    * A difference in a batch is an error on every process that holds the rows, before any of them
      gets the batch.
    * The processes are at the same step of the same structure, or all of them get an error.
    * Nobody waits for longer than `PATIENCE_S` for another.

Owner:
    An iterator owns its `ReplicaCheck`, and with it two messages at the service at most.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optree

from feeder.errors import ProcessMismatchError
from feeder.place.agreement import PATIENCE_S, listed
from feeder.place.service import Service
from feeder.plan.order import Indices

_HEX = 16
"""Digits of a row's digest, of 64 bits."""

_SHOWN_ROWS = 8


class ReplicaCheck:
    """Compares the batches of one iterator with those of the other processes.

    Args:
        service: Of the processes that share the batches.
        rows_of: The rows of each process in a global batch of so many rows.
        patience_s: Seconds to wait for the others.
    """

    def __init__(
        self,
        service: Service,
        rows_of: Callable[[int], Mapping[int, Indices]],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._service = service
        self._rows_of = rows_of
        self._patience_s = patience_s
        self._run = service.next_run()
        self._count = 0  # of batches compared
        self._told = -1  # the last of them that the others were told of

    def fingerprint(self, batch: Any, num_rows: int) -> dict[str, Any]:
        """What the other processes are to know of a batch.

        Args:
            batch: The local batch.
            num_rows: Rows of the global one.
        """
        own = self._rows_of(num_rows)[self._service.own]
        shared = np.isin(own, self._shared(num_rows))
        leaves, treespec = optree.tree_flatten(batch)
        names = [accessor.codify("batch") for accessor in treespec.accessors()]
        return {
            "num_rows": num_rows,
            "leaves": {name: _described(leaf) for name, leaf in zip(names, leaves, strict=True)},
            "rows": {
                name: _digests(leaf, np.flatnonzero(shared))
                for name, leaf in zip(names, leaves, strict=True)
                if isinstance(leaf, np.ndarray) and len(leaf) == len(own)
            },
        }

    def compare(self, step: int, fingerprint: dict[str, Any]) -> None:
        """Waits for the same of the others, and compares.

        Args:
            step: The batch that is about to be delivered.
            fingerprint: What `fingerprint` said of it.

        Raises:
            ProcessMismatchError: Another process has another batch, or none.
        """
        service, deadline = self._service, time.monotonic() + self._patience_s
        ours = {"step": step, **fingerprint}
        if self._told < self._count:  # else an interrupt came after that
            service.put(self._key(self._count, service.own), json.dumps(ours))
            self._told = self._count
        others = [process for process in service.processes if process != service.own]
        told = {
            process: service.get(self._key(self._count, process), deadline) for process in others
        }
        # Who has told of this batch has read what we told of the one before.
        if self._count:
            service.forget(self._key(self._count - 1, service.own))
        self._count += 1
        for process, theirs in told.items():
            if theirs is None:
                raise self._missing(process, step)
            self._check(process, ours, json.loads(theirs))

    def _key(self, count: int, process: int) -> str:
        return f"run{self._run}/{count}/{process}"

    def _check(self, process: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        own, step = self._service.own, ours["step"]
        for name in ("step", "num_rows", "leaves"):
            if ours[name] != theirs[name]:
                values = {own: ours[name], process: theirs[name]}
                raise ProcessMismatchError(
                    f"the processes of a job must be at the same batch, got `{name}` "
                    f"{ours[name]} on process {own} and {theirs[name]} on process {process}",
                    differences={name: values},
                    step=step,
                )
        rows_of = self._rows_of(ours["num_rows"])
        shared = self._shared(ours["num_rows"])
        mine = np.intersect1d(rows_of[own], shared)
        other = np.intersect1d(rows_of[process], shared)
        both = np.intersect1d(mine, other)
        for name, digests in ours["rows"].items():
            left = _picked(digests, np.searchsorted(mine, both))
            right = _picked(theirs["rows"][name], np.searchsorted(other, both))
            bad = [row for row, a, b in zip(both.tolist(), left, right, strict=True) if a != b]
            if bad:
                raise self._differs(name, bad, process, step)

    def _differs(self, name: str, rows: list[int], process: int, step: int) -> ProcessMismatchError:
        shown = ", ".join(map(str, rows[:_SHOWN_ROWS]))
        more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
        pair = sorted([self._service.own, process])
        return ProcessMismatchError(
            f"rows that several processes hold must be the same on all, got {name} of step {step} "
            f"with other rows on {listed(pair)}: {shown}{more}; make every record depend on "
            "nothing but its index and the Generator of a RandomMap",
            differences={name: dict.fromkeys(pair, rows)},
            step=step,
        )

    def _missing(self, process: int, step: int) -> ProcessMismatchError:
        return ProcessMismatchError(
            f"every process must come to step {step} with `debug_checks`, got nothing of process "
            f"{process} within {self._patience_s:g} s; take the same batches on all of them",
            missing=[process],
            step=step,
        )

    def _shared(self, num_rows: int) -> Indices:
        """The rows that more than one process holds."""
        counts = np.zeros(num_rows, np.int64)
        for rows in self._rows_of(num_rows).values():
            counts[rows] += 1
        return np.flatnonzero(counts > 1)


def _described(leaf: Any) -> str:
    """Type of a leaf, without its rows: their number may differ between processes."""
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype.name}{[*leaf.shape[1:]]}"
    return type(leaf).__name__


def _digests(leaf: Any, rows: Indices) -> str:
    """Digests of some rows, one after the other."""
    parts = (
        _told(leaf[row]).encode() if leaf.dtype.hasobject else leaf[row].tobytes()
        for row in rows.tolist()
    )
    return "".join(hashlib.blake2b(part, digest_size=_HEX // 2).hexdigest() for part in parts)


def _told(item: Any) -> str:
    """An object in words; those whose words would hold an address, by their type alone."""
    plain = item is None or isinstance(item, str | bytes | int | float)
    return repr(item) if plain else type(item).__qualname__


def _picked(digests: str, places: Indices) -> list[str]:
    return [digests[_HEX * place : _HEX * (place + 1)] for place in places.tolist()]
