"""One sentence that says what the loop waits for, and what to change.

Pure: it depends on the `Stats` alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feeder.monitor.stats import Stats

LEAST_BATCHES = 10
"""Fewer say nothing: they are those that workers started in."""

SMALL_SHARE = 0.05
"""A wait up to this share of the time is none that a change of arguments would cure."""

CHEAP_S = 0.0003
"""A batch that is built in less is not worth handing over."""

_HANDED_S = 0.003  # no batch of arrays takes so long

_ROOM = 1.1  # more workers than would just do: batches differ
_PER_CPU = 4  # workers for each processor, where they wait for storage most of the time
_FULL = 0.75  # workers are at it for so much of their time: they cannot keep up
_BUILD = ("read", "transform", "collate", "batch_transform")


def sentence(stats: Stats) -> str:
    """Names the bottleneck, and the argument to change."""
    if stats.recent_batches < LEAST_BATCHES:
        return _too_few(stats)
    waits = stats.share("wait")
    if waits <= SMALL_SHARE:
        return (
            f"Your step is the bottleneck: data waits for it, and it waits for data "
            f"{_percent(waits)} of the time; nothing to change."
        )
    built = 0.0 if stats.num_workers else sum(map(stats.share, _BUILD)) - stats.share("call")
    parts = {
        "call": stats.share("call"),
        "here": built,
        "worker": stats.share("wait_worker"),
        "place": stats.share("place") if stats.placed else 0.0,
    }
    parts["rest"] = waits - sum(parts.values())
    largest = max(parts, key=parts.__getitem__)
    loop = f"The loop waits for data {_percent(waits)} of the time"
    if largest == "call":
        return (
            f"{loop}, most of it while the callable of the FromCallable is called in this process, "
            f"which takes {_duration(stats.stages['call'].mean_s)} for a batch: make it cheaper, "
            "or let it give functions that return the records, which workers then call."
        )
    if largest == "here":
        return _built_here(stats, loop)
    if largest == "worker":
        return _workers(stats, loop)
    if largest == "place":
        return (
            f"{loop}, most of it while batches are placed on the devices, "
            f"{_duration(stats.stages['place'].mean_s)} for each: raise `device_batches`, leave "
            "`pin_memory` on, and make batches smaller or of fewer leaves (as uint8, to be "
            "widened on the device)."
        )
    each = stats.stages["wait"].mean_s * parts["rest"] / waits
    handed = f"{loop}, most of it while batches are handed over, {_duration(each)} for each: "
    if each > _HANDED_S:
        return f"{handed}leaves that are no numbers are pickled; make arrays of them."
    return (
        f"{handed}your step takes no longer than that; raise `batch_size`, so that there are fewer "
        "of them."
    )


def _too_few(stats: Stats) -> str:
    if not stats.batches:
        return "No batch was delivered yet."
    return (
        f"Too few batches to say: {stats.recent_batches} since the first one, which took "
        f"{_duration(stats.first_batch_s)} (workers start then); ask again after "
        f"{LEAST_BATCHES}."
    )


def _built_here(stats: Stats, loop: str) -> str:
    """Batches are built in the user's thread, most of the time that it waits."""
    each, stage, share = _of_building(stats)
    if each < CHEAP_S:
        return (
            f"{loop}, since it does little else: a batch is built in {_duration(each)}, which no "
            "worker would do sooner; nothing to change."
        )
    number = _needed(stats, each, _waits_for_storage(stats, stage))
    if stats.num_cpus == 1 and number == 1:
        return (
            f"{loop}, while batches are built in this process, and {stage} takes {share} of that: "
            f"`num_workers=1` would build them during your step, but there is one processor; "
            f"{_cheaper(stage)}."
        )
    return (
        f"{loop}, while batches are built in this process, and {stage} takes {share} of that; "
        f"raise `num_workers` from 0 to about {number}."
    )


def _workers(stats: Stats, loop: str) -> str:
    """The loop waits for workers."""
    each, stage, share = _of_building(stats)
    waits = stats.stages["wait_worker"]
    if stats.num_workers > 1 and stats.late_s > waits.mean_s / 2:
        remedy = f"raise `prefetch_batches` above {stats.window}, so that more are ready by then"
        count = min(stats.num_workers, 2 * stats.num_chunks)
        if stats.can_split and count > stats.num_chunks:
            remedy = f"set `chunks_per_batch={count}`, so that workers share it"
        return (
            f"{loop}, most of it for single batches that take much longer than others (up to "
            f"{_duration(waits.max_s)}) while later ones are ready; {remedy}."
        )
    full = stats.slots_bytes + stats.slot_bytes > stats.max_memory_bytes
    if full and stats.busy < _FULL:
        return (
            f"{loop}, and workers are at it {_percent(stats.busy)} of the time: the batches that "
            f"you keep fill `max_memory_bytes` = {stats.max_memory_bytes:,}; keep fewer, or raise "
            "it."
        )
    if stats.busy < _FULL:
        if each < CHEAP_S:
            return (
                f"{loop}, though workers are at it {_percent(stats.busy)} of the time: a batch is "
                f"built in {_duration(each)}, less than handing it over costs; raise "
                "`batch_size`, or set `num_workers=0`."
            )
        return (
            f"{loop}, though workers are at it {_percent(stats.busy)} of the time: they have too "
            f"little before them; raise `prefetch_batches` from {stats.window}."
        )
    stores = _waits_for_storage(stats, stage)
    cannot = (
        f"The workers cannot keep up: the loop waits for data {_percent(_waits_share(stats))} of "
        f"the time, and {stage} takes {share} of theirs; "
    )
    if stats.worker_type == "thread" and not stores and stats.num_cpus > 1:
        return (
            f'{cannot}threads take turns at Python code: set `worker_type="process"`, with '
            f"`num_workers={_needed(stats, each, stores)}`."
        )
    number = _needed(stats, each, stores)
    if number > stats.num_workers:
        more = f"raise `num_workers` from {stats.num_workers} to about {number}"
        if stage == "read":
            more += ", or read less: `shuffle=feeder.BlockShuffle(…)` reads neighbours together"
        return f"{cannot}{more}."
    if stats.num_workers >= stats.num_cpus and not stores:
        more = f"all {stats.num_cpus} processors are" if stats.num_cpus > 1 else "the processor is"
        cannot += f"since {more} at it, "
    return f"{cannot}{_cheaper(stage)}."


def _waits_share(stats: Stats) -> float:
    """Share of the loop's time that it waits for data, of late, 0 to 1."""
    return min(1.0, stats.share("wait"))


def _of_building(stats: Stats) -> tuple[float, str, str]:
    """Seconds of one worker for a batch; the stage that takes most of them, and its share."""
    spent = {stage: stats.stages[stage].mean_s for stage in _BUILD}
    spent["read"] -= stats.stages["call"].mean_s  # that is not theirs
    total = sum(spent.values())
    stage = max(_BUILD, key=spent.__getitem__)
    return total, stage, _percent(spent[stage] / total if total > 0 else 0.0)


def _waits_for_storage(stats: Stats, stage: str) -> bool:
    """Whether workers wait more than they compute: more of them than processors may help."""
    if stats.worker_cpus is None:
        return stage == "read"
    return stats.worker_cpus < 0.5 * stats.busy * stats.num_workers


def _needed(stats: Stats, each: float, stores: bool) -> int:
    """Workers that would keep up with the step, as far as there are processors for them."""
    most = stats.num_cpus * (_PER_CPU if stores else 1)
    step = stats.recent_s / stats.recent_batches - stats.stages["wait"].mean_s
    if step * most <= each:  # no number would do
        return most
    return min(most, math.ceil(_ROOM * each / step))


def _cheaper(stage: str) -> str:
    """What makes a stage cheaper."""
    return {
        "read": "read less: `shuffle=feeder.BlockShuffle(…)` reads neighbours together, and a "
        "source with `read(indices)` reads a batch at once",
        "transform": "make `transforms` cheaper: whole batches at once in `batch_transforms`, or "
        "the part without randomness once, before training",
        "collate": "make records cheaper to join: fewer leaves, or a source with `read(indices)`",
        "batch_transform": "make `batch_transforms` cheaper, or do a part of them on the device",
    }[stage]


def _percent(share: float) -> str:
    return f"{min(1.0, share):.0%}".replace("%", " %")


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"
