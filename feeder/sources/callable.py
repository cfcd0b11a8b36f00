"""Batches from a function that is called in this process, step by step: live data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feeder.sources.stream import shown, takes


class FromCallable:
    """A source that is asked for each batch, in this process and in step order.

    Args:
        function: ``function(batch_size)`` → the rows that this process needs for the next batch:
            a list of records; or a list of functions without arguments, which workers call for
            them; or a ready batch, a pytree of arrays with so many rows each. None, or
            StopIteration, ends the run. A function with ``state_dict()`` or ``get_state()``
            (of the object, where it is a method's) has its state in that of the iterator, and goes
            on from there.

    Raises:
        TypeError: ``function`` is not callable in this way.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        if not callable(function) or not takes(function, 1):
            raise TypeError(
                f"`function` must be callable as function(batch_size), got {shown(function)}"
            )
        self.function = function

    @property
    def owner(self) -> Any:
        """Whose state is that of the callable: of a method, its object."""
        return getattr(self.function, "__self__", self.function)

    def __repr__(self) -> str:
        return f"FromCallable({shown(self.function)})"
