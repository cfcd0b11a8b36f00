"""Do the processes of a job take the same batches?

They compare step and structure of the first batch that an iterator delivers, at its start and after
each restore; with ``debug_checks=True``, of every batch, and the rows that several of them hold.

Guarantees:
    * A difference in a batch is the same error on every process, before any of them gets the batch.
    * The processes are at the same step of the same structure, or all of them get an error; so
      they do where one of them cannot build its batch.
    * Nobody waits for longer than `PATIENCE_S` for another.

Owner:
    An iterator owns its `ReplicaCheck`, and with it two messages at the service at most, and one
    for each error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from feeder.errors import ProcessMismatchError
from feeder.place.agreement import PATIENCE_S, listed
from feeder.place.service import Service
from feeder.plan.order import Indices

_DIGEST_BYTES = 8
_SHOWN_ROWS = 8


class ReplicaCheck:
    """Compares the batches of one iterator with those of the other processes.

    Args:
        service: Of the processes that share the batches.
        rows_of: The rows of each process in a global batch of so many rows.
        every: Whether every batch is compared, with its rows.
        patience_s: Seconds to wait for the others.
    """

    def __init__(
        self,
        service: Service,
        rows_of: Callable[[int], Mapping[int, Indices]],
        every: bool,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._service = service
        self._rows_of = rows_of
        self._patience_s = patience_s
        self._every = every
        self._due = True
        self._run = service.next_run()
        self._count = 0  # of batches compared
        self._shared = functools.lru_cache(4)(self._shared_rows)

    def restored(self) -> None:
        """The next batch is one that a state says."""
        self._due = True

    def fingerprint(self, batch: Any, num_rows: int) -> dict[str, Any] | None:
        """What the other processes are to know of a batch; None: nothing.

        Args:
            batch: The local batch.
            num_rows: Rows of the global one.
        """
        if not (self._every or self._due):
            return None
        own = self._rows_of(num_rows)[self._service.own]
        places = np.searchsorted(own, self._shared(num_rows)[self._service.own])
        described = {name: _described(leaf, len(own)) for name, leaf in _named(batch)}
        rows = row_digests(batch, own, places) if self._every else {}
        return {"num_rows": num_rows, "leaves": described, "rows": rows}

    def compare(self, step: int, fingerprint: dict[str, Any]) -> None:
        """Waits for the same of the others, and compares.

        Args:
            step: The batch that is about to be delivered.
            fingerprint: What `fingerprint` said of it.

        Raises:
            ProcessMismatchError: Another process has another batch, or none.
        """
        service, deadline = self._service, time.monotonic() + self._patience_s
        self._tell({"step": step, **fingerprint})
        told = {
            process: service.get(self._key(self._count, process), deadline)
            for process in service.processes
        }
        # Who has told of this batch has read what we told of the one before.
        if self._count:
            service.forget(self._key(self._count - 1, service.own))
        self._count += 1
        if missing := [process for process, message in told.items() if message is None]:
            raise ProcessMismatchError(
                f"every process must come to step {step}, got nothing of {listed(missing)} within "
                f"{self._patience_s:g} s, of iterator number {self._run + 1} of this loader; take "
                "the same batches on all of them",
                missing=missing,
                step=step,
            )
        messages = {process: json.loads(message or "") for process, message in told.items()}
        failed = {p: message["failed"] for p, message in messages.items() if "failed" in message}
        if failed:
            lines = [f"  {listed([process])}: {why}" for process, why in failed.items()]
            raise ProcessMismatchError(
                f"every process must build step {step}, got errors:\n" + "\n".join(lines),
                failed=failed,
                step=step,
            )
        self._check(step, messages)
        self._due = False

    def fail(self, error: BaseException) -> None:
        """Tells the others, who wait for this process's batch, that it cannot be built.

        Nothing is told of what they know, and of an interrupt, after which this one may go on.
        """
        if not (self._every or self._due):
            return
        if isinstance(error, ProcessMismatchError) or not isinstance(error, Exception):
            return
        with contextlib.suppress(
            RuntimeError
        ):  # the service is gone: the error itself matters more
            self._tell({"failed": f"{type(error).__name__}: {error}"})
        self._count += 1  # the message before stays: others may still have to read it

    def _tell(self, message: dict[str, Any]) -> None:
        self._service.put(self._key(self._count, self._service.own), json.dumps(message))

    def _key(self, count: int, process: int) -> str:
        return f"run{self._run}/{count}/{process}"

    def _check(self, step: int, messages: dict[int, dict[str, Any]]) -> None:
        """Every process finds the same, as each has what all told."""
        first, *others = messages
        for name in ("step", "num_rows", "leaves"):
            for other in others:
                if messages[first][name] != messages[other][name]:
                    values = {first: messages[first][name], other: messages[other][name]}
                    raise ProcessMismatchError(
                        f"the processes of a job must be at the same batch, got `{name}` "
                        f"{values[first]} on process {first} and {values[other]} on process "
                        f"{other}; restore the same state on all of them, and give all of them "
                        "the same data",
                        differences={name: values},
                        step=step,
                    )
        num_rows = messages[first]["num_rows"]
        for name in messages[first]["rows"]:
            self._check_leaf(name, step, num_rows, messages)

    def _check_leaf(
        self, name: str, step: int, num_rows: int, messages: dict[int, dict[str, Any]]
    ) -> None:
        digest = np.zeros(num_rows, np.uint64)
        holder = np.full(num_rows, -1)  # the first process that has the row
        bad: set[int] = set()
        processes: set[int] = set()
        for process, rows in self._shared(num_rows).items():
            told = np.frombuffer(bytes.fromhex(messages[process]["rows"][name]), np.uint64)
            new = holder[rows] < 0
            digest[rows[new]], holder[rows[new]] = told[new], process
            wrong = rows[digest[rows] != told]
            if len(wrong):
                bad.update(wrong.tolist())
                processes.update([process, *holder[wrong].tolist()])
        if not bad:
            return
        rows_shown = ", ".join(map(str, sorted(bad)[:_SHOWN_ROWS]))
        more = f" and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else ""
        raise ProcessMismatchError(
            f"rows that several processes hold must be the same on all, got {name} of step {step} "
            f"with other rows on {listed(sorted(processes))}: {rows_shown}{more}; make every "
            "record depend on nothing but its index and the Generator of a RandomMap",
            differences={name: dict.fromkeys(sorted(processes), sorted(bad))},
            step=step,
        )

    def _shared_rows(self, num_rows: int) -> dict[int, Indices]:
        """The rows of each process that another one holds too."""
        counts = np.zeros(num_rows, np.int64)
        rows_of = self._rows_of(num_rows)
        for rows in rows_of.values():
            counts[rows] += 1
        return {process: rows[counts[rows] > 1] for process, rows in rows_of.items()}


def row_digests(batch: Any, rows: Indices, places: Indices | None = None) -> dict[str, str]:
    """Digests of rows of every leaf that has rows, by its name: hexadecimal digits, row by row.

    Args:
        batch: A local batch.
        rows: Its rows.
        places: Which of them; None: all.
    """
    if places is None:
        places = np.arange(len(rows))
    named = _named(batch)
    return {name: _digests(leaf, places) for name, leaf in named if _has_rows(leaf, len(rows))}


def _named(batch: Any) -> list[tuple[str, Any]]:
    leaves, treespec = optree.tree_flatten(batch)
    names = [accessor.codify("batch") for accessor in treespec.accessors()]
    return list(zip(names, leaves, strict=True))


def _has_rows(leaf: Any, num_rows: int) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0 and len(leaf) == num_rows


def _described(leaf: Any, num_rows: int) -> str:
    """Type and shape of a leaf, without the number of its rows: processes may hold more or less."""
    if not isinstance(leaf, np.ndarray):
        return type(leaf).__name__
    shape = ["rows", *leaf.shape[1:]] if _has_rows(leaf, num_rows) else leaf.shape
    return f"{leaf.dtype.name}[{', '.join(map(str, shape))}]"


def _digests(leaf: NDArray[Any], places: Indices) -> str:
    """Digests of some rows, one after the other, in hexadecimal digits."""
    parts = (
        _told(leaf[place]).encode() if leaf.dtype.hasobject else leaf[place].tobytes()
        for place in places.tolist()
    )
    return "".join(hashlib.blake2b(part, digest_size=_DIGEST_BYTES).hexdigest() for part in parts)


def _told(item: Any) -> str:
    """An object in words; those whose words would hold an address, by their type alone."""
    plain = item is None or isinstance(item, str | bytes | int | float)
    return repr(item) if plain else type(item).__qualname__
