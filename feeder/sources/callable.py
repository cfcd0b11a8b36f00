"""Batches from a function that is called in this process, step by step: live data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from feeder.sources.stream import shown, takes


class FromCallable:
    """A source that is asked for each batch, in this process and in step order.

    Args:
        function: ``function(batch_size)`` → the rows that this process needs for the next batch:
            a list of records; or a list of functions without arguments, which workers call for
            them; or a ready batch, a pytree of arrays with so many rows each. None, or
            StopIteration, ends the run. With ``num_workers=0`` and without a sharding it is called
            when its batch is asked for; else ``prefetch_batches`` ahead (None: one for each worker,
            and one without), always in the same turn with the deliveries.

    Where the function, or the object whose method it is, has ``state_dict()`` or ``get_state()``,
    that is called after each batch, and copied: it should be small. The iterator's state holds
    what it returned for the last batch delivered, and ``set_state`` gives it to
    ``load_state_dict()`` or ``set_state()``; batches that were given ahead are asked for again. All
    iterators of a loader call the same function.

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
        function: Any = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return getattr(function, "__self__", function)

    def __repr__(self) -> str:
        return f"FromCallable({shown(self.function)})"
