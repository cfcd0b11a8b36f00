"""What batches look like, known from one record."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from feeder.arrangement import Arrangement
from feeder.place import replicas
from feeder.plan.batches import BatchPlan
from feeder.produce import here
from feeder.spec import ArraySpec

_COMPARED = 4
"""Records of the run that the processes of a job compare, with ``debug_checks``."""

if TYPE_CHECKING:
    from feeder.place.placer import Placer


class Sample:
    """The first batch of a loader, of which one record is read once somebody asks.

    Attributes:
        recipe: What builds it; None: it cannot be known beforehand.

    Args:
        order: The order of records.
        placer: Places batches; None: they stay on the host.
    """

    def __init__(self, order: Arrangement, placer: Placer | None) -> None:
        self.recipe = None if order.sample is None else order.sample[0]
        self._planner = None if order.sample is None else order.sample[1]
        self._everywhere = order.everywhere
        self._placer = placer

    def plan(self) -> BatchPlan:
        """The plan of the first batch.

        Raises:
            ValueError: There is none.
            TypeError: It cannot be known beforehand.
        """
        if self._planner is None:
            raise TypeError(
                "element_spec of a loader needs a record that can be read beforehand, and a "
                "FromCallable is only called for batches"
            )
        plan = self._planner.batch(0)
        if plan is None:
            raise ValueError("`sampler` must give at least one batch, got none")
        return plan

    @functools.cached_property
    def local(self) -> Any:
        """A batch with the shapes and dtypes of the local part of the first one.

        Raises:
            Exception: Whatever user code raises at its record.
        """
        plan = self.plan()
        assert self.recipe is not None
        batch = here.build_sample(self.recipe, plan.chunk)
        return optree.tree_map(_hollow, batch)  # it may be kept for long

    def spec(self) -> Any:
        """Shape and dtype of every leaf as delivered; raises what `local` raises."""
        if self._placer is not None:
            return self._placer.spec(self.local, self.plan().num_rows)
        return optree.tree_map(ArraySpec.of, self.local)

    def digests(self) -> dict[str, str] | None:
        """Of the first records of the run, leaf by leaf, whatever rows this process holds.

        None where they cannot be built alone, or raise: their batch will tell.
        """
        plan = None if self._everywhere is None else self._everywhere().batch(0)
        if plan is None or self.recipe is None:
            return None
        chunk = here.alone(plan.chunk.rows(0, min(_COMPARED, len(plan.chunk.indices))))
        try:
            return replicas.row_digests(here.build_alone(self.recipe, chunk), chunk.indices)
        except Exception:
            return None

    def check(self) -> None:
        """Checks that every leaf has the axes that its sharding cuts.

        Raises:
            ValueError: A leaf has not.
        """
        if self._placer is None or not self._placer.cuts_columns:
            return
        try:
            local, num_rows = self.local, self.plan().num_rows
        except Exception:  # of the user's code: the batch that it belongs to will raise it
            return
        self._placer.check_leaves(local, num_rows)


def _hollow(leaf: Any) -> Any:
    """An array of the same shape and dtype that takes no memory."""
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    return leaf
