"""``feeder verify``: checks that workers, hosts, a killed worker and a resume change no batch."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from feeder.cli import options, text
from feeder.cli.leaves import num_rows
from feeder.cli.subject import Subject, UsageError
from feeder.iterator import BatchIterator
from feeder.loader import DataLoader
from feeder.sources.callable import FromCallable
from feeder.stateful import is_stateful
from feeder.testing import difference, digest, joined

_STEPS = 20
_REFERENCE: dict[str, Any] = {
    "sharding": None,  # what is placed is what was built: batches are compared on the host
    "process_index": 0,
    "process_count": 1,
    "num_workers": 0,
    "chunks_per_batch": 1,
}
_TRACEBACK = "\n\nTraceback"
_LEAST_TO_KILL = 5
"""Steps of a run in the midst of which something is still to be built."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--steps",
        type=options.count,
        default=_STEPS,
        metavar="N",
        help=f"batches to compare ({_STEPS})",
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A run that must deliver what the reference does.

    Attributes:
        name: How it is made.
        batches: Begins it.
        left_out: Why it means nothing with this loader; empty: it does.
    """

    name: str
    batches: Callable[[], Iterator[Any]]
    left_out: str = ""


def run(subject: Subject, steps: int = _STEPS) -> int:
    """Compares runs of the same loader, made in other ways, to the bit.

    Args:
        subject: The loader.
        steps: Batches of each run; fewer, where it ends before.

    Returns:
        1 where one differs.

    Raises:
        UsageError: The loader cannot be run twice.
        Exception: Whatever the reference run raises.
    """
    runs = Runs.of(subject, steps)
    count = text.count(runs.steps, "batch", "batches")
    print(f"{subject.name}, {count}: must be those of num_workers=0\n", flush=True)
    failed = done = 0
    warned: dict[str, None] = {}
    for check in runs.checks():
        found = check.left_out
        verdict = "left out" if found else "ok"
        if not found:
            done += 1
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    found = runs.compare(check.batches())
                    verdict = "FAILED" if found else verdict
                except Exception as error:
                    verdict, found = "FAILED", _brief(error)
            warned |= {str(warning.message): None for warning in caught}
            failed += verdict == "FAILED"
        print(f"  {verdict.ljust(8)}  {check.name}{found and ': '}{found}", flush=True)
    for message in warned:
        print(f"\nwarning: {message}")
    if failed:
        print(f"\n{failed} of {done} differ; a is the run with num_workers=0, b that of the line")
        return 1
    print(f"\nthe same to the bit: digest {runs.digest}")
    return 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of deaths that are wanted."""
    log = logging.getLogger("feeder")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _brief(error: Exception) -> str:
    """An error in one line, without the worker's traceback."""
    return f"{type(error).__name__}: {' '.join(str(error).partition(_TRACEBACK)[0].split())}"


@dataclass
class Runs:
    """Runs of one loader from the same beginning.

    Attributes:
        subject: The loader.
        steps: Batches of each run.
        digests: Of the batches of the reference, one by one.
        rows: Their rows.
        digest: Of all of them, as `feeder.testing.digest` has it.
        initial: State that every run begins with; None: a new loader is at the beginning.
    """

    subject: Subject
    steps: int
    arguments: dict[str, Any]
    initial: dict[str, Any] | None
    digests: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    digest: str = ""

    @classmethod
    def of(cls, subject: Subject, steps: int) -> Runs:
        """Makes the reference run.

        Raises:
            UsageError: The loader cannot be run twice, or has no batch.
            Exception: Whatever user code raises.
        """
        with subject.load(**_REFERENCE) as loader, iter(loader) as batches:
            arguments, initial = loader.arguments, None
            source = arguments["source"]
            if isinstance(source, FromCallable) and not subject.makes_anew:
                if not is_stateful(source.owner):
                    raise UsageError(
                        f"`{subject.name}` gives live batches, each of them once, so no two runs "
                        "can be compared; name a function that returns a new loader, or give the "
                        "callable state_dict() and load_state_dict()"
                    )
                initial = batches.get_state()
        runs = cls(subject, steps, arguments, initial)
        runs.digest = digest(runs._noted(runs.reference()))
        if not runs.digests:
            raise UsageError(f"`{subject.name}` must give a batch to compare, got none")
        runs.steps = len(runs.digests)
        return runs

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.digests.append(digest([batch]))
            self.rows.append(num_rows(batch))
            yield batch

    def compare(self, batches: Iterator[Any]) -> str:
        """What differs from the reference: the first step, leaf and row; empty: nothing does."""
        step = -1
        for step, batch in enumerate(batches):
            if digest([batch]) == self.digests[step]:
                continue
            expected = next(itertools.islice(self.reference(), step, None), None)
            if digest([expected]) != self.digests[step]:
                return f"step {step}: it is never the same, whatever the workers: not seeded?"
            return f"step {step}: {difference(expected, batch)}"
        return "" if step + 1 == self.steps else f"step {step + 1}: it has ended before"

    def reference(self) -> Iterator[Any]:
        """The run that the others are compared with."""
        return self.made()

    def made(self, **changes: Any) -> Iterator[Any]:
        """The batches of a run with such arguments."""
        with self._load(**changes) as loader, self._begun(loader) as batches:
            yield from itertools.islice(batches, self.steps)

    def on_processes(self, count: int) -> Iterator[Any]:
        """The batches of simulated processes, joined."""
        runs = [self.made(process_index=index, process_count=count) for index in range(count)]
        for parts in zip(*runs, strict=True):
            yield joined(parts)

    def killed(self, at: int) -> Iterator[Any]:
        """A run whose workers are killed before a step."""
        changes = {"num_workers": 2, "prefetch_batches": 1, "max_restarts": None}
        with _quiet(), self._load(**changes) as loader, self._begun(loader) as batches:
            yield from itertools.islice(batches, at)
            for pid in batches.stats().worker_pids:
                os.kill(pid, signal.SIGKILL)
            yield from itertools.islice(batches, self.steps - at)
            if not batches.stats().restarts:
                raise AssertionError("no worker was replaced")

    def resumed(self, at: int) -> Iterator[Any]:
        """A run that is stopped before a step, and goes on in a new loader."""
        with self._load() as loader, self._begun(loader) as batches:
            yield from itertools.islice(batches, at)
            saved = json.dumps(batches.get_state())
        with self._load(num_workers=2) as loader, iter(loader) as batches:
            batches.set_state(json.loads(saved))
            yield from itertools.islice(batches, self.steps - at)

    def checks(self) -> Iterator[Check]:
        """All runs that are to be compared."""
        yield Check("num_workers=0, once more", self.made)
        asked = self.arguments
        configured = asked["num_workers"]
        numbers = [1, 2] if configured in (0, 1, 2, "auto") else [1, 2, configured]
        for number in numbers:
            yield Check(f"num_workers={number}", functools.partial(self.made, num_workers=number))
        yield Check(
            "num_workers=2, chunks_per_batch=3",
            lambda: self.made(num_workers=2, chunks_per_batch=3),
            self._why_no_chunks(),
        )
        count, why = self._processes()
        name = f"process_count={count}, simulated"
        yield Check(name, lambda: self.on_processes(count), why)
        at = self.steps // 2
        why = ""
        if asked["worker_type"] == "thread":
            why = "threads cannot be killed"
        elif self.steps < _LEAST_TO_KILL:
            why = f"it needs {_LEAST_TO_KILL} steps"
        yield Check(f"all workers killed at step {at}", lambda: self.killed(at), why)
        name = f"stopped at step {at}, state through JSON, resumed with num_workers=2"
        source = asked["source"]
        live = isinstance(source, FromCallable) and not is_stateful(source.owner)
        why = "the callable has no state_dict() and load_state_dict()" if live else ""
        yield Check(name, lambda: self.resumed(at), why)

    def _why_no_chunks(self) -> str:
        asked = self.arguments
        for name in ("collate", "batch_transforms"):
            if asked[name]:
                return f"`{name}` sees the whole batch, which is built in one piece"
        if isinstance(asked["source"], FromCallable):
            return "a callable's batches are built in one piece"
        return "threads build batches in one piece" if asked["worker_type"] == "thread" else ""

    def _processes(self) -> tuple[int, str]:
        """How many processes can be simulated; and why none can."""
        if isinstance(self.arguments["source"], FromCallable):
            return 2, "every process asks a callable of its own for its rows"
        common = math.gcd(*self.rows)
        count = next((count for count in range(2, common + 1) if common % count == 0), 0)
        if not count:
            return 2, f"batches of {min(self.rows)} to {max(self.rows)} rows cannot be split evenly"
        try:
            self._load(process_index=0, process_count=count).close()
        except ValueError as error:
            return count, str(error)
        return count, ""

    def _load(self, **changes: Any) -> DataLoader:
        return self.subject.load(**(_REFERENCE | changes))

    def _begun(self, loader: DataLoader) -> BatchIterator:
        batches = iter(loader)
        if self.initial is not None:
            batches.set_state(self.initial)
        return batches
