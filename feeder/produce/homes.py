"""Which worker reads which lanes of a stream. Pure scheduling: it can change no batch.

Where several batches are read from lanes of their own, as with a large ``block_length``, each such
group of lanes has a worker, which builds whole batches. Else neighbouring lanes share a worker, and
the workers share every batch; where it must be built by one of them, that one reads all lanes. Once
lanes of a group have ended, others fill their rows: a worker that builds whole batches then reads
those along, beside the one whose lanes they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from feeder.plan.chunks import Chunk, StreamChunk
from feeder.plan.kept import KeptPatterns
from feeder.plan.order import Indices
from feeder.plan.patterns import Pattern
from feeder.plan.rotation import cycle_of
from feeder.produce.recipe import Recipe
from feeder.sources.stream import Stream


@dataclass(frozen=True, slots=True, eq=False)
class Homes:
    """Gives every lane a worker.

    Attributes:
        workers: Worker of each lane, shape (lanes,).
        whole: Whether a batch must be built by one worker, wherever its lanes are read.
    """

    workers: Indices
    whole: bool
    _parts: KeptPatterns[Pattern, list[tuple[int, Pattern]]] = field(default_factory=KeptPatterns)

    @classmethod
    def of(cls, recipe: Recipe, num_workers: int) -> Homes:
        """The homes of a stream's lanes among so many workers."""
        assert isinstance(recipe.source, Stream)
        assert recipe.lanes is not None
        lanes = np.arange(recipe.lanes.num_lanes)
        whole = bool(recipe.collate or recipe.batch_transforms)
        cycle = cycle_of(len(lanes), recipe.source.block_length, recipe.lanes.batch_rows)
        groups = np.searchsorted(cycle, lanes) // recipe.lanes.batch_rows
        num_groups = int(groups[-1]) + 1
        if whole and _mix(groups[cycle], recipe.lanes.batch_rows):
            return cls(np.zeros_like(lanes), whole)
        if whole or num_groups >= num_workers:
            return cls(groups % num_workers, whole)
        return cls(lanes * num_workers // len(lanes), whole)

    def split(self, chunk: StreamChunk) -> list[tuple[int, Chunk]]:
        """The chunks of a batch, with the worker of each."""
        pattern = chunk.pattern
        parts = self._parts.get(pattern, lambda: self._split(pattern), len(pattern))
        if len(parts) == 1:
            return [(parts[0][0], chunk)]
        return [(worker, chunk.of(part, is_part=True)) for worker, part in parts]

    def _split(self, pattern: Pattern) -> list[tuple[int, Pattern]]:
        of = self.workers[pattern.lanes % len(self.workers)]
        if self.whole or (of == of[0]).all():
            return [(int(of[0]), pattern)]
        return [(worker, pattern.of(of == worker)) for worker in np.unique(of).tolist()]


def _mix(groups: Indices, batch_rows: int) -> bool:
    """Whether some batch has lanes of several groups, before any lane ends."""
    if len(groups) % batch_rows:
        return True
    batches = groups.reshape(-1, batch_rows)
    return bool((batches != batches[:, :1]).any())
