"""What the user asked of the workers: which producer that makes."""

from __future__ import annotations

import logging
import os
import select
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from feeder import arguments
from feeder.produce.auto import Auto
from feeder.produce.inline import Inline
from feeder.produce.memory import memory_limit_bytes
from feeder.produce.pool import Pool
from feeder.produce.recipe import Recipe
from feeder.produce.room import start_error
from feeder.produce.session import Producer
from feeder.produce.slots import Slab
from feeder.produce.supervise import Limits
from feeder.produce.threads import Threads
from feeder.sources.callable import FromCallable

if TYPE_CHECKING:
    from feeder.place.placer import Placer
    from feeder.sample import Sample

_log = logging.getLogger("feeder")

WorkerType: TypeAlias = Literal["process", "thread"]
WORKER_TYPES: tuple[WorkerType, ...] = get_args(WorkerType)


@dataclass(frozen=True, slots=True)
class Production:
    """How batches are built, as asked for and checked.

    Attributes:
        num_workers: Workers; None: measured.
        worker_type: What they are.
        prefetch_batches: Batches built ahead; None: a default.
        limits: What they may take.
        pin_memory: Whether slots are pinned for an accelerator, where there is one.
    """

    num_workers: int | None
    worker_type: WorkerType
    prefetch_batches: int | None
    limits: Limits
    pin_memory: bool = True

    @classmethod
    def of(
        cls,
        *,
        num_workers: Any,
        worker_type: Any,
        chunks_per_batch: Any,
        prefetch_batches: Any,
        max_memory_bytes: Any,
        timeout_s: Any,
        max_restarts: Any,
        pin_memory: Any,
    ) -> Production:
        """Checks the arguments of a `DataLoader`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a value that cannot work.
        """
        if num_workers != "auto":
            remedy = 'or "auto"' if isinstance(num_workers, str) else ""
            num_workers = arguments.integer("num_workers", num_workers, 0, remedy)
        worker_type = arguments.choice("worker_type", worker_type, WORKER_TYPES)
        max_bytes = memory_limit_bytes() // 2
        if max_memory_bytes is not None:
            max_bytes = arguments.integer("max_memory_bytes", max_memory_bytes, 1)
        return cls(
            num_workers=None if num_workers == "auto" else num_workers,
            worker_type=worker_type,
            prefetch_batches=arguments.optional_integer("prefetch_batches", prefetch_batches, 1),
            limits=Limits(
                max_bytes=max_bytes,
                timeout_s=arguments.optional_seconds("timeout_s", timeout_s),
                max_restarts=arguments.optional_integer("max_restarts", max_restarts, 0),
                chunks_per_batch=arguments.integer("chunks_per_batch", chunks_per_batch, 1),
            ),
            pin_memory=arguments.boolean("pin_memory", pin_memory),
        )

    def producer(self, recipe: Recipe, sample: Sample, placer: Placer | None) -> Producer:
        """Makes what builds batches.

        Args:
            recipe: How.
            sample: The first batch, to measure by.
            placer: Places batches on devices; None: they stay on the host.

        Raises:
            TypeError: The recipe cannot be pickled for worker processes.
        """
        if self.num_workers is None and sample.recipe is None:
            return self._made(recipe, 0, placer)  # nothing to measure by
        if self.num_workers is None:
            assert sample.recipe is not None
            return Auto(
                sample.recipe, sample.plan, lambda number: self._made(recipe, number, placer)
            )
        return self._made(recipe, self.num_workers, placer)

    def _made(self, recipe: Recipe, num_workers: int, placer: Placer | None) -> Producer:
        prefetch_batches = self.prefetch_batches
        pinner = placer.pinner() if placer is not None and self.pin_memory else None
        if recipe.lanes is not None and num_workers > recipe.lanes.num_lanes:
            _log.info(
                "%d workers for a stream of which %d shards are read side by side: the others "
                "would have nothing to do, and are not started",
                num_workers,
                recipe.lanes.num_lanes,
            )
            num_workers = recipe.lanes.num_lanes
        if isinstance(recipe.source, FromCallable) and prefetch_batches is None:
            prefetch_batches = max(1, num_workers)  # live data age while they wait
        threads = num_workers and (self.worker_type == "thread" or not _has_processes())
        try:
            slab = Slab(self.limits.max_bytes, pinner)
            if num_workers == 0:
                return Inline(recipe, slab, ahead=placer is not None)
            if threads:
                return Threads(recipe, num_workers, self.limits, prefetch_batches, slab)
            return Pool(recipe, num_workers, self.limits, prefetch_batches, slab)
        except OSError as error:
            if (explained := start_error(error)) is not None:
                raise explained from error
            raise


def _has_processes() -> bool:
    """Whether worker processes can be had here; if not, says so."""
    if all((hasattr(os, "memfd_create"), hasattr(os, "pidfd_open"), hasattr(select, "epoll"))):
        return True
    warnings.warn(
        f"worker processes need Linux's memfd and pidfd, which {sys.platform} lacks here: batches "
        'are built in threads; say `worker_type="thread"` to have it so without this warning',
        RuntimeWarning,
        stacklevel=5,
    )
    return False
