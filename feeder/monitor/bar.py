"""A progress bar around the batches of a loop."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from feeder import arguments
from feeder.monitor.table import number

T = TypeVar("T")

_REFRESH_S = 0.5
"""Least time between two counts of the rate and the wait."""


class Progress(Iterator[T], Generic[T]):
    """What `progress` returns: an iterator over the batches, and a context manager.

    Attributes:
        batches: The iterator that it draws from.
    """

    def __init__(self, batches: Iterable[T], total: int | None, options: dict[str, Any]) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "feeder.progress needs the package tqdm: pip install 'jax-feeder[progress]'"
            ) from error
        # One that was made here is closed here.
        self._own = not isinstance(batches, Iterator)
        self.batches: Iterator[T] = iter(batches)
        if total is None:
            total = operator.length_hint(self.batches, -1)
            total = None if total < 0 else total
        self._bar = tqdm(total=total, **{"unit": "batch", **options})
        self._since = self._began = time.perf_counter()
        self._waited = self._waited_before = 0.0
        self._records = self._records_before = self._count()

    def __next__(self) -> T:
        """The next batch."""
        began = time.perf_counter()
        try:
            batch = next(self.batches)
        except StopIteration:  # what stays on the screen is of the whole run
            self._waited += self._waited_before
            self._since, self._records = self._began, self._records_before
            self._show(time.perf_counter())
            self._bar.close()
            raise
        now = time.perf_counter()
        self._waited += now - began
        if now - self._since >= _REFRESH_S:
            self._show(now)
        self._bar.update()
        return batch

    def close(self) -> None:
        """Ends the bar, and the iterator where it was made here. Idempotent."""
        self._bar.close()
        if self._own and hasattr(self.batches, "close"):
            self.batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _show(self, now: float) -> None:
        """Rate and wait since the last time, beside the bar."""
        elapsed = max(now - self._since, 1e-9)
        shown = [f"data wait {min(1.0, self._waited / elapsed):.0%}"]
        if (records := self._count()) is not None and self._records is not None:
            shown.insert(0, f"{number((records - self._records) / elapsed)} records/s")
        self._bar.set_postfix_str(", ".join(shown), refresh=False)
        self._waited_before += self._waited
        self._since, self._waited, self._records = now, 0.0, records

    def _count(self) -> int | None:
        """Records delivered; None where the iterator does not say."""
        stats = getattr(self.batches, "stats", None)
        return None if stats is None else stats().records


def progress(
    batches: Iterable[T],
    *,
    total: int | None = None,
    desc: str | None = None,
    disable: bool | None = False,
    **options: Any,
) -> Progress[T]:
    """Iterates over batches with a progress bar: rate, and the share of time spent on data.

    ::

        with iter(loader) as batches:
            for batch in feeder.progress(batches):
                ...
                state = batches.get_state()    # methods are those of `batches`, as ever

    An exception of ``next()`` passes through, and the next ``next()`` goes on with that very batch,
    as without a bar.

    Args:
        batches: An iterator, as ``iter(loader)``, or a loader, whose iterator is then made and
            closed here, and is the result's ``batches``. Any iterable works.
        total: Batches that will come; None: those that are left, where that is known.
        desc: Shown before the bar.
        disable: Whether to show nothing; None: where the output is no terminal.
        **options: Passed to ``tqdm``.

    Raises:
        ImportError: The package tqdm is missing.
        TypeError: An argument has the wrong type.
        ValueError: ``total`` is negative.
    """
    if not isinstance(batches, Iterable):
        raise TypeError(f"`batches` must be an iterator of batches or a loader, got {batches!r}")
    total = arguments.optional_integer("total", total, 0)
    return Progress(batches, total, {"desc": desc, "disable": disable, **options})
