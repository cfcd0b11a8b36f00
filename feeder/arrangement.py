"""What the order of records comes to on this process: one for each kind of source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feeder.feed import Feeds
from feeder.plan.batches import Planner
from feeder.plan.state import Identity
from feeder.produce.recipe import Recipe
from feeder.produce.session import Producer


@dataclass(frozen=True, slots=True)
class Arrangement:
    """An order of records, for the rows of this process.

    Attributes:
        identity: What a state must match.
        feeds: Makes what feeds iterators, given what builds batches.
        sample: What builds a batch like the first one, and plans it; None: none can be had.
        everywhere: Plans it with the rows of all processes; None: they cannot be compared.
    """

    identity: Identity
    feeds: Callable[[Producer], Feeds]
    sample: tuple[Recipe, Planner] | None
    everywhere: Callable[[], Planner] | None = None
