"""A source of the records that a predicate keeps: it is asked once for each, in workers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from feeder import arguments
from feeder.loader import DataLoader
from feeder.plan.order import Indices
from feeder.sources import index_file
from feeder.sources.composed import Composed
from feeder.sources.protocol import RandomAccess
from feeder.sources.reading import child_of
from feeder.sources.subsetting import Table

_LOG = logging.getLogger("feeder")
_BATCH = 256
"""Records that a worker reads at a time."""


def filtered(
    source: object,
    predicate: Callable[[Any], object],
    *,
    path: str | os.PathLike[str] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    progress: bool = True,
) -> Composed:
    """A source of the records for which a predicate is true, in the order of the source.

    Every record is read here, once, to make an index: 4 or 8 bytes for each that is kept, which
    workers share. Later only the records kept are read.

    Args:
        source: As for a loader, with random access.
        predicate: Called with each record, in the workers; returns whether it stays.
        path: A file for the index: written once it is complete, in one step; read in place of all
            records where it is there. It is refused where it belongs to another source or
            predicate: their lengths, the code and plain values of the predicate, and up to 16
            records and its answers for them are compared.
        num_workers: As of `DataLoader`.
        progress: Whether to show a bar, where tqdm is installed and stderr is a terminal. How many
            are kept is logged in any case.

    Raises:
        TypeError: An argument has the wrong type; or the predicate returns None.
        ValueError: ``path`` cannot be written to, is damaged, or another's.
        Exception: Whatever source and predicate raise, caused by a `feeder.RecordError` that says
            at which record.
    """
    child = child_of("source", source)
    if not callable(predicate):
        raise TypeError(f"`predicate` must be callable as predicate(record), got {predicate!r}")
    progress = arguments.boolean("progress", progress)
    file = None if path is None else index_file.checked_path(path)
    keeps = _Keeps(predicate)
    if file is not None and file.exists():
        indices = index_file.read(file, child, predicate, keeps)
    else:
        indices = _kept(child, keeps, num_workers, progress)
        if file is not None:
            index_file.write(file, indices, child, predicate)
    return Composed("filtered", [child], ["source"], Table(indices, len(child)))


class _Keeps:
    """A predicate as a transform."""

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        self._predicate = predicate

    def __call__(self, record: Any) -> bool:
        answer = self._predicate(record)
        if answer is None:
            raise TypeError(
                "`predicate` must return whether the record stays, got None; does it end without "
                "a return?"
            )
        return bool(answer)


def _kept(
    source: RandomAccess, keeps: _Keeps, num_workers: int | Literal["auto"], progress: bool
) -> Indices:
    """The records that stay, in order."""
    length = len(source)
    if not length:
        return np.zeros(0, np.int64)
    found: list[Indices] = []
    began = time.monotonic()
    # Of this process alone: another one of the job that wants the index makes it for itself.
    with (
        DataLoader(
            source,
            min(_BATCH, length),
            transforms=[keeps],
            last_batch="keep",
            num_workers=num_workers,
            process_index=0,
            process_count=1,
        ) as loader,
        iter(loader) as batches,
        _bar(length, progress) as advance,
    ):
        first = 0
        for answers in batches:
            found.append(first + np.flatnonzero(answers))
            first += len(answers)
            advance(len(answers))
    indices = np.concatenate(found)
    _LOG.info(
        "feeder.filtered keeps %d of %d records, found in %.1f s",
        len(indices),
        length,
        time.monotonic() - began,
    )
    return indices


@contextlib.contextmanager
def _bar(length: int, progress: bool) -> Any:
    """Shows progress, where it can be seen."""
    if not progress or importlib.util.find_spec("tqdm") is None:
        yield lambda _: None
        return
    tqdm = importlib.import_module("tqdm")  # optional, and without types
    with tqdm.tqdm(total=length, desc="filtered", unit=" records", disable=None) as bar:
        yield bar.update
