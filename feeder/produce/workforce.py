"""Who builds batches, and in how much memory: what a producer says of itself when it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["process", "thread", "here"]


@dataclass(frozen=True, slots=True)
class Workforce:
    """The workers of a loader, now.

    Attributes:
        kind: What they are; ``"here"``: there are none, batches are built in the user's thread.
        num_workers: How many there should be.
        window: Batches that an iterator has under way.
        slot_bytes: Bytes of a slot; 0 before the first batch.
        slots_bytes: Bytes of all slots, in use or not.
        max_bytes: Most bytes of slots.
        pids: Process id of each worker process that lives, by its number.
        num_restarts: Workers that died and were replaced.
        deaths: Numbers of the last of these, and when they were seen (`time.perf_counter_ns`).
        can_split: Whether `chunks_per_batch` may cut a batch for several workers.
        num_chunks: Chunks that a batch is cut into.
    """

    kind: Kind = "here"
    num_workers: int = 0
    window: int = 1
    slot_bytes: int = 0
    slots_bytes: int = 0
    max_bytes: int = 0
    pids: Mapping[int, int] = field(default_factory=dict)
    num_restarts: int = 0
    deaths: Sequence[tuple[int, int]] = ()
    can_split: bool = False
    num_chunks: int = 1
