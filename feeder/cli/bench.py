"""``feeder bench``: measures what 0, 1, 2 and more workers give, and recommends a number."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree

from feeder.cli import options, text
from feeder.cli.leaves import num_bytes, num_rows
from feeder.cli.recommend import recommended
from feeder.cli.subject import Subject, UsageError
from feeder.iterator import BatchIterator
from feeder.loader import DataLoader
from feeder.monitor import Stats
from feeder.ordering import Ordering
from feeder.produce.auto import MOST_WORKERS
from feeder.produce.cpus import available_cpus
from feeder.sources.callable import FromCallable

_SECONDS = 10.0
_ROUNDS = 3
_KEPT_OPEN_BYTES = 1e9
"""Arrays of a source that may be shared with the workers of all loaders at the same time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--seconds",
        type=options.seconds,
        default=_SECONDS,
        metavar="S",
        help=f"to measure, in all ({_SECONDS:.0f})",
    )
    parser.add_argument(
        "--workers",
        type=options.workers,
        metavar="N,…",
        help="numbers of workers to try; default: 0, 1, 2, 4, … up to the number of CPUs",
    )
    parser.add_argument(
        "--step-ms",
        type=options.milliseconds,
        metavar="T",
        help="what a step of your training takes: recommends what keeps up with it",
    )


def run(
    subject: Subject,
    seconds: float = _SECONDS,
    workers: Sequence[int] | None = None,
    step_ms: float | None = None,
) -> int:
    """Measures, in turns, and prints a table and a recommendation.

    Args:
        subject: The loader.
        seconds: To measure, in all; filling the queues comes on top.
        workers: Numbers to try; None: those that make sense here.
        step_ms: What a step of the training takes, in milliseconds; None: not known.

    Raises:
        UsageError: There is no batch.
    """
    cpus = available_cpus()
    with subject.load() as loader:
        asked = loader.arguments
        if not isinstance(asked["source"], FromCallable):
            subject = Subject(subject.name, loader)  # all of them share its source
        numbers = numbers_for(cpus, asked["num_workers"]) if workers is None else list(workers)
    runs = {number: Run(subject, number, asked) for number in numbers}
    print(
        f"{subject.name}, on {text.count(cpus, 'CPU')}: {_ROUNDS} rounds of all in turns\n",
        flush=True,
    )
    try:
        for _ in range(_ROUNDS):
            for one in runs.values():
                one.measure(seconds / _ROUNDS / len(runs))
    finally:
        for one in runs.values():
            one.close()
    rows = [
        (f"{number}", *one.figures(), "as it is" if number == asked["num_workers"] else "")
        for number, one in runs.items()
    ]
    head = ("num_workers", "batches/s", "records/s", "MiB/s", "from–to", "")
    print(text.table(head, rows, right=(0, 1, 2, 3, 4)))
    rates = {number: one.rate for number, one in runs.items()}
    number, reason = recommended(rates, cpus, None if step_ms is None else step_ms / 1e3)
    shown = runs.get(asked["num_workers"], runs[number])
    print(f"\nwhere the time goes, with num_workers={shown.number}\n\n{shown.stages()}")
    print(f"\nnum_workers={number}: {reason}")
    return 0


def numbers_for(cpus: int, configured: Any) -> list[int]:
    """Numbers of workers worth trying, beside the one that is configured."""
    most = min(cpus, MOST_WORKERS)
    numbers = {0, 1, 2, most} | {2**power for power in range(most.bit_length())}
    if configured != "auto":
        numbers.add(configured)
    return sorted(numbers)


@dataclass
class Run:
    """A run with so many workers, measured a piece at a time.

    Attributes:
        subject: The loader.
        number: Workers.
        asked: Its other arguments.
        samples: Of each piece: batches, records and bytes per second.
    """

    subject: Subject
    number: int
    asked: dict[str, Any]
    samples: list[tuple[float, float, float]] = field(default_factory=list)
    _stats: list[Stats] = field(default_factory=list)
    _loader: DataLoader | None = None
    _state: dict[str, Any] | None = None

    def measure(self, seconds: float) -> None:
        """Goes on for so long, once the queues are as full as they get."""
        least = max(2, self.number)  # as many as come at once
        batches = self._open()
        for _ in range(1 + self.number):
            batches, _ = self._next(batches)
        count = rows = size = 0
        began = now = time.perf_counter()
        while count < least or now - began < seconds:
            batches, batch = self._next(batches)
            count, rows, size = count + 1, rows + num_rows(batch), size + num_bytes(batch)
            del batch
            now = time.perf_counter()
        took = now - began
        self.samples.append((count / took, rows / took, size / took))
        self._end(batches)
        if isinstance(self._loader, DataLoader) and _shared_bytes(self.asked) > _KEPT_OPEN_BYTES:
            self.close()

    def close(self) -> None:
        """Ends the workers."""
        if self._loader is not None:
            self._loader.close()
        self._loader = None

    @property
    def rate(self) -> float:
        """Batches per second: the median of the pieces."""
        return statistics.median(rate for rate, _, _ in self.samples)

    def figures(self) -> tuple[str, str, str, str]:
        """Batches, records and mebibytes per second, and how far the pieces lie apart."""
        rates, rows, sizes = zip(*self.samples, strict=True)
        apart = f"{text.number(min(rates))}–{text.number(max(rates))}"
        return (
            text.number(self.rate),
            text.number(statistics.median(rows)),
            text.number(statistics.median(sizes) / 2**20),
            apart,
        )

    def stages(self) -> str:
        """The time of each stage for one batch, and its share."""
        batches = sum(stats.batches for stats in self._stats)
        spent = {
            name: sum(getattr(stats, f"{name}_s") for stats in self._stats) / batches
            for name in ("read", "transform", "collate", "batch_transform", "place")
        }
        whole = sum(spent.values()) or 1.0
        rows = [
            (name, text.duration(each), f"{each / whole:.0%}")
            for name, each in spent.items()
            if each
        ]
        return text.table(("stage", "of a batch", "share"), rows, right=(1, 2))

    def _open(self) -> BatchIterator:
        if self._loader is None:
            changes: dict[str, Any] = {"num_workers": self.number}
            if not isinstance(self.asked["source"], FromCallable):
                changes["num_epochs"] = None
            self._loader = self.subject.load(**changes)
        batches = iter(self._loader)
        if self._state is not None:
            batches.set_state(self._state)
        return batches

    def _next(self, batches: BatchIterator) -> tuple[BatchIterator, Any]:
        """The next batch, on its devices; of a new run where this one has ended."""
        batch = next(batches, None)
        if batch is None:
            delivered = batches.stats().batches
            self._end(batches)
            if not delivered:
                raise UsageError(f"`{self.subject.name}` must give a batch to measure, got none")
            if isinstance(self.asked["source"], FromCallable) and not self.subject.makes_anew:
                raise UsageError(
                    f"`{self.subject.name}` has come to its end, and its callable cannot begin "
                    "anew; name a function that returns a new loader"
                )
            self.close()
            self._state = None
            batches = self._open()
            batch = next(batches)
        if self.asked["sharding"] is not None:
            sys.modules["jax"].block_until_ready(batch)
        return batches, batch

    def _end(self, batches: BatchIterator) -> None:
        """Goes on with other records the next time, where they can be come to at no cost."""
        assert self._loader is not None
        if isinstance(self._loader._ordering, Ordering):
            self._state = batches.get_state()
        self._stats.append(batches.stats())
        batches.close()


def _shared_bytes(asked: dict[str, Any]) -> int:
    """Bytes of the arrays that every loader writes to memory of its own, for its workers."""
    leaves = optree.tree_leaves(asked["source"])
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, np.ndarray))
