"""Draws a `Timeline` from what was noted of the last batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from feeder.monitor.processes import Sample
from feeder.monitor.ring import Column, Ring
from feeder.monitor.timeline import MemorySample, Restart, Span, Stage, Timeline
from feeder.produce.clock import HERE, StageTimes

_BUILD: tuple[Stage, ...] = ("read", "transform", "collate", "batch_transform")


def drawn(
    ring: Ring, samples: Sequence[Sample], deaths: Sequence[tuple[int, int]], origin_ns: int
) -> Timeline:
    """The last steps of an iterator.

    Args:
        ring: What was noted of them.
        samples: What the processes used.
        deaths: Numbers of workers that died, and when: nanoseconds of `time.perf_counter_ns`.
        origin_ns: When the iterator began, by the same clock.
    """
    parts: dict[int, list[StageTimes]] = defaultdict(list)
    for step, times in list(ring.parts):
        parts[step].append(StageTimes(*times))

    def at(ns: int) -> float:
        return (ns - origin_ns) / 1e9

    spans: list[Span] = []
    before, left_before = 0, None
    _, _, rows = ring.read()
    for row in rows.tolist():
        step, entered, left = row[Column.STEP], row[Column.ENTERED], row[Column.LEFT]
        if left_before is not None:
            spans.append(Span("user", "step", before, at(left_before), at(entered)))
        left_before, before = left, step
        spans.append(Span("user", "wait", step, at(entered), at(left)))
        if row[Column.PLACE_ENDED] > row[Column.PLACE_BEGAN]:
            placed = at(row[Column.PLACE_BEGAN]), at(row[Column.PLACE_ENDED])
            spans.append(Span("place", "place", step, *placed))
        whole = StageTimes(*row[Column.READ :])
        chunks = [part for part in parts.get(step, ()) if whole.began <= part.began <= whole.ended]
        for times in chunks or [whole]:
            spans += (
                Span(lane, stage, step, at(began), at(ended))
                for lane, stage, began, ended in _built(times)
            )
        spans.append(Span("collector", "ready", step, at(whole.ended), at(left)))
    shown = {span.step for span in spans}
    spans += (
        Span("this process", "read", step, at(began), at(ended))
        for step, began, ended in list(ring.calls)
        if step in shown
    )
    spans.sort(key=lambda span: (span.began_s, span.ended_s))
    memory = [
        MemorySample(at(sample.at_ns), name, used.own_bytes)
        for sample in samples
        for (name, _), used in sample.usage.items()
    ]
    memory += [MemorySample(at(each.at_ns), "slots", each.slots_bytes) for each in samples]
    memory.sort(key=lambda each: each.at_s)
    restarts = [Restart(at(ns), f"worker {worker}") for worker, ns in deaths if ns >= origin_ns]
    return Timeline(tuple(spans), tuple(memory), tuple(restarts))


def _built(times: StageTimes) -> Iterator[tuple[str, Stage, int, int]]:
    """Lane, stage, beginning and end of what building a batch, or a chunk of it, was."""
    lane = "this process" if times.worker == HERE else f"worker {times.worker}"
    began = times.began
    for stage, spent in zip(_BUILD, times, strict=False):
        if spent:
            yield lane, stage, began, began + spent
        began += spent
