"""What the page shows, worked out of a timeline and of stats. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from feeder.cli.report.words import WAIT_COLOURS, wait_names
from feeder.monitor import Stats
from feeder.monitor.timeline import Span, Timeline

_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Profile:
    """A run that was looked at.

    Attributes:
        name: Of the loader, as the user wrote it.
        timeline: Its last steps.
        stats: Its figures.
        notes: Facts about the run, for the head of the page.
    """

    name: str
    timeline: Timeline
    stats: Stats
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the user took; times in seconds.

    Attributes:
        step: Its number.
        began_s: When it was asked for.
        waits: Parts of the wait, by what was waited for: ``"place"``, ``"build"``: it was built in
            this process, ``"worker"``.
        step_s: What the user did with it.
        built_s: What building it took, in all workers.
        builders: Lanes in which it was built.
        ready_s: How long it lay ready before its turn.
    """

    step: int
    began_s: float
    waits: dict[str, float]
    step_s: float
    built_s: float
    builders: tuple[str, ...]
    ready_s: float

    @property
    def wait_s(self) -> float:
        """The whole wait."""
        return sum(self.waits.values())


def steps_of(timeline: Timeline) -> list[Step]:
    """Every step that the user got, in order."""
    place = [span for span in timeline.spans if span.stage == "place"]
    here = [span for span in timeline.spans if span.lane == "this process"]
    steps: dict[int, float] = {}
    built: dict[int, list[Span]] = {}
    ready: dict[int, float] = {}
    for span in timeline.spans:
        took = span.ended_s - span.began_s
        if span.stage == "step":
            steps[span.step] = took
        elif span.stage == "ready":
            ready[span.step] = took
        elif span.lane.startswith("worker") or span.lane == "this process":
            built.setdefault(span.step, []).append(span)
    found = []
    waits = sorted((span for span in timeline.spans if span.stage == "wait"), key=_began)
    placing, building = _within(waits, place), _within(waits, here)
    for wait, placed, built_here in zip(waits, placing, building, strict=True):
        rest = max(0.0, wait.ended_s - wait.began_s - placed - built_here)
        parts = built.get(wait.step, [])
        found.append(
            Step(
                wait.step,
                wait.began_s,
                {"worker": rest, "build": built_here, "place": placed},
                steps.get(wait.step, 0.0),
                sum(span.ended_s - span.began_s for span in parts),
                tuple(sorted({span.lane for span in parts})),
                ready.get(wait.step, 0.0),
            )
        )
    return found


def ready_counts(spans: Iterable[Span]) -> list[tuple[float, int]]:
    """How many batches lay ready, from each moment on at which that changed."""
    changes: dict[float, int] = {}
    for span in spans:
        if span.stage == "ready":
            changes[span.began_s] = changes.get(span.began_s, 0) + 1
            changes[span.ended_s] = changes.get(span.ended_s, 0) - 1
    count, found = 0, []
    for at in sorted(changes):
        count += changes[at]
        found.append((at, count))
    return found


def drawn(profile: Profile) -> dict[str, Any]:
    """What the script draws, JSON-able; times in microseconds."""
    timeline = profile.timeline
    lanes = [lane for lane in timeline.lanes if lane != "collector"]
    stages = sorted({span.stage for span in timeline.spans} - {"ready"})
    names = wait_names(has_workers(timeline))
    memory: dict[str, list[list[int]]] = {}
    for sample in timeline.memory:
        memory.setdefault(sample.process, []).append([_us(sample.at_s), sample.num_bytes])
    return {
        "lanes": lanes,
        "stages": stages,
        "waits": [[WAIT_COLOURS[part], names[part]] for part in WAITS],
        "spans": [
            [
                lanes.index(span.lane),
                stages.index(span.stage),
                span.step,
                _us(span.began_s),
                _us(span.ended_s),
            ]
            for span in timeline.spans
            if span.stage != "ready"
        ],
        "ready": [[_us(at), count] for at, count in ready_counts(timeline.spans)],
        "steps": [
            [each.step, *(_us(each.waits[part]) for part in WAITS), _us(each.step_s)]
            for each in steps_of(timeline)
        ],
        "memory": memory,
        "restarts": [[_us(restart.at_s), restart.process] for restart in timeline.restarts],
    }


def has_workers(timeline: Timeline) -> bool:
    """Whether workers build the batches."""
    return any(lane.startswith("worker") for lane in timeline.lanes)


WAITS = ("worker", "build", "place")
"""Parts of a wait, in the order in which they are shown."""


def _within(waits: list[Span], others: list[Span]) -> list[float]:
    """Of each wait, the seconds in which one of the others was under way; both in order of time."""
    others = sorted(others, key=_began)
    found, first = [], 0
    for wait in waits:
        while first < len(others) and others[first].ended_s <= wait.began_s:
            first += 1
        total = 0.0
        for other in others[first:]:
            if other.began_s >= wait.ended_s:
                break
            total += min(other.ended_s, wait.ended_s) - max(other.began_s, wait.began_s)
        found.append(max(0.0, total))
    return found


def _began(span: Span) -> float:
    return span.began_s


def _us(seconds: float) -> int:
    return round(seconds * _MICRO)
