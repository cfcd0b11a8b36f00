"""A source several times over."""

from __future__ import annotations

from feeder import arguments
from feeder.plan.order import Indices
from feeder.plan.schedule import MAX_POSITIONS
from feeder.sources.composed import Composed
from feeder.sources.reading import child_of


def repeat(source: object, n: int) -> Composed:
    """A source that holds the records of another ``n`` times, one pass after the other.

    A loader's ``num_epochs`` makes passes that are each shuffled by themselves. This is for a
    source that counts more than once within an epoch, as in ``concat([common, repeat(rare, 5)])``.

    Args:
        source: As for a loader, with random access.
        n: How many times, at least 1.

    Raises:
        TypeError: ``n`` is no integer, or ``source`` has no random access.
        ValueError: ``n`` is below 1, or there would be more than 2**62 records.
    """
    child = child_of("source", source)
    times = arguments.integer("n", n, 1)
    if len(child) * times > MAX_POSITIONS:
        raise ValueError(
            f"`n` must be at most {MAX_POSITIONS // len(child)}, for 2**62 records in all, "
            f"got {times}"
        )
    return Composed("repeat", [child], ["source"], _Passes(len(child), times))


class _Passes:
    """The route of `repeat`."""

    def __init__(self, length: int, times: int) -> None:
        self._length = length
        self._times = times

    def __len__(self) -> int:
        return self._length * self._times

    def __call__(self, indices: Indices) -> tuple[None, Indices]:
        return None, indices % self._length
