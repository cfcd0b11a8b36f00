"""What an iterator measured of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from feeder.monitor.bottleneck import sentence
from feeder.monitor.table import table_of
from feeder.produce.bad import BadRecord

STAGES = (
    "read",
    "transform",
    "collate",
    "batch_transform",
    "call",
    "wait_worker",
    "place",
    "wait",
)
"""Keys of `Stats.stages`, in the order in which a batch comes to them."""


@dataclass(frozen=True, slots=True)
class StageStats:
    """Seconds that batches took in one stage.

    The mean and the percentiles are of single batches: of the last 1 000 delivered, but for the
    first of the run, which workers start in. They are exact, to the nanoseconds of the clock; a
    percentile is the time of one of these batches (nearest rank).

    Attributes:
        total_s: Of all batches delivered; over all workers, where it is a stage of theirs.
        mean_s: Of a batch.
        p50_s: Half of the batches took no longer.
        p90_s: Nine of ten took no longer.
        p99_s: Ninety-nine of a hundred took no longer.
        max_s: The longest.
    """

    total_s: float = 0.0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process, as Linux counts it in ``/proc/<pid>/statm``.

    Attributes:
        process: ``"parent"``, this process; ``"worker 0"``, ….
        pid: Its process id.
        rss_bytes: Its resident bytes.
        own_bytes: Those of them that it shares with no other process: without slots, arrays of the
            source, libraries and other mapped files.
    """

    process: str
    pid: int
    rss_bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the iterator began, and what the last batches took; times in seconds.

    The stages of the recipe run in the workers, next to each other and to the user's step:
    their sum may exceed ``elapsed_s``. ``print(stats)`` shows a table.

    Attributes:
        batches: Batches delivered.
        elapsed_s: From the first ``next()`` to now.
        wait_s: Time that the user spent in ``next()``: all that loading costs the loop.
        place_s: The part of it that placed batches on devices.
        read_s: Reading records, over all workers.
        transform_s: Transforming records, over all workers.
        collate_s: Collating batches, over all workers.
        batch_transform_s: Transforming batches, over all workers.
        restarts: Workers that died and were replaced, over the loader's life.
        worker_pids: Process ids of the workers that live now, for profilers.
        num_bad_records: Records left out or replaced in the batches delivered, since the run began
            or a state was set.
        bad_records: The last thousand of them, each with step, position, index and error.
        stages: What each stage took: ``"read"``, ``"transform"``, ``"collate"`` and
            ``"batch_transform"``, in the workers; ``"call"``, the part of ``"read"`` in which a
            `FromCallable` was called in this process; ``"wait"``, the user's wait in ``next()``,
            and the parts of it in which it waited for workers, ``"wait_worker"``, and placed
            batches on devices, ``"place"`` (without a sharding: only unpacked them). Without
            workers, building is a part of the wait too.
        records: Records in the batches delivered, those of this process; padding is none.
        num_bytes: Bytes of the arrays of these batches, as they were built on the host.
        first_batch_s: What the first ``next()`` took, in which workers start.
        recent_batches: Batches that the percentiles, means and rates are taken of.
        recent_s: The time that these took, with the user's steps.
        batches_per_s: Batches per second, of late.
        records_per_s: Records per second, of late.
        bytes_per_s: Bytes per second, of late.
        mean_ready: Batches that lay built ahead of the user, on average, of late.
        late_s: The mean of the waits for a worker that were for one slow batch alone: as many
            later ones as there are workers were built before it.
        worker_type: What builds batches: ``"process"``, ``"thread"``, or ``"here"``, this process
            itself.
        num_workers: How many there are.
        num_cpus: Processors that this process and its workers may use.
        worker_cpus: Processors that the workers kept busy, on average, of late; with threads, that
            this process did, with the user's step. None: not known, or there are no workers.
        placed: Whether batches are placed on devices.
        window: Batches that may be under way.
        can_split: Whether raising ``chunks_per_batch`` would cut a batch for several workers.
        num_chunks: Chunks that a batch is cut into.
        slot_bytes: Bytes of shared memory that a batch takes.
        slots_bytes: Bytes of all such slots.
        max_memory_bytes: Most bytes of slots.
        memory: Memory of this process and of each worker process; empty without ``/proc``.
    """

    batches: int = 0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    place_s: float = 0.0
    read_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    batch_transform_s: float = 0.0
    restarts: int = 0
    worker_pids: tuple[int, ...] = ()
    num_bad_records: int = 0
    bad_records: tuple[BadRecord, ...] = ()
    stages: Mapping[str, StageStats] = field(
        default_factory=lambda: dict.fromkeys(STAGES, StageStats()), hash=False
    )
    records: int = 0
    num_bytes: int = 0
    first_batch_s: float = 0.0
    recent_batches: int = 0
    recent_s: float = 0.0
    batches_per_s: float = 0.0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    mean_ready: float = 0.0
    late_s: float = 0.0
    worker_type: Literal["process", "thread", "here"] = "here"
    num_workers: int = 0
    num_cpus: int = 1
    worker_cpus: float | None = None
    placed: bool = False
    window: int = 1
    can_split: bool = False
    num_chunks: int = 1
    slot_bytes: int = 0
    slots_bytes: int = 0
    max_memory_bytes: int = 0
    memory: tuple[ProcessMemory, ...] = ()

    @property
    def wait_share(self) -> float:
        """Share of the elapsed time that the user waited for data, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    def share(self, stage: str) -> float:
        """Time of a stage, of late, as a share of the loop's; of several workers, above 1 perhaps.

        Args:
            stage: One of the keys of `stages`.
        """
        spent = self.stages[stage].mean_s * self.recent_batches
        return spent / self.recent_s if self.recent_s else 0.0

    @property
    def busy(self) -> float:
        """Share of the workers' time in which they built batches, of late, 0 to 1."""
        built = sum(map(self.share, STAGES[:4])) - self.share("call")
        return min(1.0, max(0.0, built) / max(1, self.num_workers))

    @property
    def bottleneck(self) -> str:
        """One sentence: what the loop waits for, and the argument to change.

        It speaks of the last batches, and is the same for equal `Stats`.
        """
        return sentence(self)

    def __str__(self) -> str:
        return table_of(self)
