"""Measures one iterator: what every batch took, and now and then what the processes use.

Guarantees:
    * A batch costs the loop about a microsecond, and memory does not grow.
    * What the processes use is asked of the system so seldom that it takes less than a
      thousandth of the time; there is no thread.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feeder.feed import Fed
from feeder.monitor.drawing import drawn
from feeder.monitor.processes import Sample, sample, worker_cpus
from feeder.monitor.ring import Column, Numbers, Ring, durations
from feeder.monitor.stats import STAGES, ProcessMemory, StageStats, Stats
from feeder.monitor.table import line_of
from feeder.monitor.timeline import STEPS_KEPT, Timeline
from feeder.plan.chunks import PlannedChunk
from feeder.produce.bad import BadRecord
from feeder.produce.cpus import available_cpus
from feeder.produce.workforce import Workforce

_SAMPLES_KEPT = 1000

_SAMPLE_NS = 250_000_000
"""Least time between samples of what the processes use."""

_SAMPLE_SHARE = 1000
"""A sample takes one part in so many of the time, at most."""

_NEVER = math.inf

_log = logging.getLogger("feeder")


class Meter:
    """What one iterator measures of itself.

    Attributes:
        due: When `tick` is to be called next, in nanoseconds of `time.perf_counter_ns`.

    Args:
        workforce: Says who builds batches now.
    """

    def __init__(self, workforce: Callable[[], Workforce]) -> None:
        self.due: float = 0
        self._workforce = workforce
        self._ring = Ring()
        self._began_ns: int | None = None
        self._lost_ns = 0  # in next(), without a batch
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES_KEPT)
        self._sample_at: float = 0
        self._log_s: float | None = None
        self._log_at: float = _NEVER

    def delivered(
        self,
        fed: Fed,
        bad: Sequence[BadRecord],
        placed: tuple[int, int],
        entered_ns: int,
        slept_ns: int,
    ) -> None:
        """A batch is about to be delivered.

        Args:
            fed: It.
            bad: Records left out of it, or replaced.
            placed: When it was put on the devices, from when to when.
            entered_ns: When ``next()`` was called.
            slept_ns: How long that waited for workers; 0 where there are none.
        """
        outcome: Any = fed.outcome  # no failure
        chunk = fed.chunk
        rows = chunk.num_real
        if bad and chunk.mask is None and isinstance(chunk, PlannedChunk):
            # In a stream, the next record takes the row.
            rows -= sum(record.replaced_by is None for record in bad)
        step, ring, called_ns = chunk.step, self._ring, 0
        if fed.called is not None:
            called_ns = fed.called[1] - fed.called[0]
            ring.calls.append((step, *fed.called))
        if outcome.parts:
            ring.parts.extend((step, part) for part in outcome.parts)
        began, ended = placed
        left, size = time.perf_counter_ns(), outcome.num_bytes
        row = (step, entered_ns, left, slept_ns, began, ended, called_ns, rows, size)
        ring.new.append(row + outcome.times)  # as of `Column`
        if len(ring.new) >= STEPS_KEPT:
            ring.read()

    def failed(self, entered_ns: int) -> None:
        """A ``next()`` ends without a batch."""
        self._lost_ns += time.perf_counter_ns() - entered_ns

    def tick(self, now_ns: int) -> None:
        """Does what is due: samples, and logs a line."""
        if self._began_ns is None:
            self._began_ns = now_ns
            if self._log_s is not None:
                self._log_at = now_ns + self._log_s * 1e9
        if now_ns >= self._sample_at:
            self._sample(now_ns, self._workforce())
        if now_ns >= self._log_at:
            assert self._log_s is not None
            self._log_at = now_ns + self._log_s * 1e9
            _log.info("%s", line_of(self.stats()))
        self.due = min(self._sample_at, self._log_at)

    def log_every(self, seconds: float | None) -> None:
        """Logs a line at this interval from now on; None: no more."""
        self._log_s, self._log_at = seconds, _NEVER
        if seconds is not None and self._began_ns is not None:
            self._log_at = time.perf_counter_ns() + seconds * 1e9
        self.due = min(self._sample_at, self._log_at)

    def stats(self, **others: Any) -> Stats:
        """What was measured; ``others`` are fields of it that the iterator knows."""
        now, force = time.perf_counter_ns(), self._workforce()
        count, totals, rows = self._ring.read()
        recent = rows[1:]  # the first one's beginning is not known, or it is that of the run
        spans, first = durations(recent), self._ring.first
        recent_ns = int(rows[-1, Column.LEFT] - rows[0, Column.LEFT]) if len(rows) else 0
        stages = {
            stage: _stage(_spent(totals[None], stage), _spent(spans, stage)) for stage in STAGES
        }
        wait_s = stages["wait"].total_s + self._lost_ns / 1e9
        used = self._sample_of(now, force)
        per_s = 1e9 / recent_ns if recent_ns else 0.0
        return Stats(
            batches=count,
            elapsed_s=0.0 if self._began_ns is None else (now - self._began_ns) / 1e9,
            wait_s=wait_s,
            place_s=stages["place"].total_s,
            read_s=stages["read"].total_s,
            transform_s=stages["transform"].total_s,
            collate_s=stages["collate"].total_s,
            batch_transform_s=stages["batch_transform"].total_s,
            restarts=force.num_restarts,
            worker_pids=tuple(force.pids.values()),
            stages=stages,
            records=int(totals[Column.RECORDS]),
            num_bytes=int(totals[Column.BYTES]),
            first_batch_s=(first[Column.LEFT] - first[Column.ENTERED]) / 1e9 if first else 0.0,
            recent_batches=len(recent),
            recent_s=recent_ns / 1e9,
            batches_per_s=len(recent) * per_s,
            records_per_s=int(spans[:, Column.RECORDS].sum()) * per_s,
            bytes_per_s=int(spans[:, Column.BYTES].sum()) * per_s,
            mean_ready=float((recent[:, Column.LEFT] - recent[:, Column.ENDED]).sum())
            * per_s
            / 1e9,
            late_s=_late_s(recent, force.num_workers),
            worker_type=force.kind,
            num_workers=force.num_workers,
            num_cpus=_num_cpus(),
            worker_cpus=self._worker_cpus(used, rows, force.kind),
            window=force.window,
            can_split=force.can_split,
            num_chunks=force.num_chunks,
            slot_bytes=force.slot_bytes,
            slots_bytes=force.slots_bytes,
            max_memory_bytes=force.max_bytes,
            memory=tuple(
                ProcessMemory(name, pid, each.rss_bytes, each.own_bytes)
                for (name, pid), each in used.usage.items()
            ),
            **others,
        )

    def timeline(self) -> Timeline:
        """The last steps."""
        if self._began_ns is None:
            return Timeline()
        now, force = time.perf_counter_ns(), self._workforce()
        self._sample_of(now, force)
        return drawn(self._ring, tuple(self._samples), force.deaths, self._began_ns)

    def _sample_of(self, now_ns: int, force: Workforce) -> Sample:
        """What the processes use, as of a moment ago at most."""
        if self._samples:
            last = self._samples[-1]
            same = {pid for _, pid in last.usage} >= set(force.pids.values())
            same = same and last.slots_bytes == force.slots_bytes
            if same and now_ns - last.at_ns < _SAMPLE_NS:
                return last
        return self._sample(now_ns, force)

    def _sample(self, now_ns: int, force: Workforce) -> Sample:
        found = sample(now_ns, force)
        self._samples.append(found)
        took = time.perf_counter_ns() - now_ns
        self._sample_at = now_ns + max(_SAMPLE_NS, took * _SAMPLE_SHARE)
        return found

    def _worker_cpus(self, now: Sample, rows: Numbers, kind: str) -> float | None:
        """Processors that workers kept busy while these batches were delivered."""
        if kind == "here":
            return None
        began = int(rows[0, Column.LEFT]) if len(rows) else now.at_ns
        before = next((each for each in tuple(self._samples) if each.at_ns >= began), now)
        return worker_cpus(before, now, threads=kind == "thread")


_num_cpus = functools.cache(available_cpus)


def _spent(spans: Numbers, stage: str) -> Numbers:
    """Nanoseconds of each batch in a stage; ``spans`` as of `durations`."""
    if stage == "read":
        return spans[:, Column.READ] + spans[:, Column.CALLED]
    return spans[:, _COLUMNS[stage]]


_COLUMNS = {
    "transform": Column.TRANSFORM,
    "collate": Column.COLLATE,
    "batch_transform": Column.BATCH_TRANSFORM,
    "call": Column.CALLED,
    "wait_worker": Column.SLEPT,
    "place": Column.PLACE_BEGAN,
    "wait": Column.ENTERED,
}


def _stage(total_ns: Numbers, spent_ns: Numbers) -> StageStats:
    total_s, count = int(total_ns[0]) / 1e9, len(spent_ns)
    if not count:
        return StageStats(total_s)
    ordered = np.sort(spent_ns)
    ranks = [math.ceil(share * count) - 1 for share in (0.5, 0.9, 0.99, 1.0)]
    return StageStats(total_s, float(ordered.mean()) / 1e9, *(ordered[ranks] / 1e9).tolist())


def _late_s(recent: Numbers, num_workers: int) -> float:
    """Mean of the waits for a worker during which as many later batches were ready."""
    if not 0 < num_workers < len(recent):
        return 0.0
    ended = recent[:, Column.ENDED]
    late = np.maximum(ended[:-num_workers] - ended[num_workers:], 0)
    waited = np.minimum(late, recent[:-num_workers, Column.SLEPT])
    return float(waited.sum()) / len(recent) / 1e9
