"""Makes the feeds of a stream: from its beginning, from a state, or for one batch alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from feeder.feed.planned import of_another_epoch
from feeder.feed.snapshots import from_json
from feeder.feed.stream import StreamFeed, StreamStages
from feeder.plan import stream
from feeder.plan.schedule import START, Cursor
from feeder.plan.state import Saved
from feeder.plan.stream import StreamPlanner, Total
from feeder.produce import here
from feeder.produce.built import Ended
from feeder.produce.recipe import Recipe


@dataclass(frozen=True, slots=True, eq=False)
class StreamFeeds:
    """Makes feeds of a stream.

    Attributes:
        stages: Who plans, reads and builds.
        recipe: What builds batches.
    """

    stages: StreamStages
    recipe: Recipe

    origin = START

    @property
    def planner(self) -> StreamPlanner:
        """Plans global batches."""
        return self.stages.planner

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start; None: no end, or none known."""
        return self.planner.num_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ; None: unknown."""
        return self.planner.steps_per_epoch

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins; None: only reading can tell."""
        return self.planner.epoch(epoch)

    def open(self, start: Cursor, last_epoch: int | None = None, /) -> StreamFeed:
        """A feed from a place on."""
        if start.draws is None:
            return StreamFeed(self.stages, self.planner.start(), {}, last_epoch)
        place = stream.from_json(self.planner, start.step, start.position, start.draws)
        first = place.epoch * self.planner.num_lanes
        offsets = {first + lane: taken for lane, taken in place.phase.taken(place.row).items()}
        known = from_json(start.draws.get("shards"), offsets)
        return StreamFeed(self.stages, place, known, last_epoch, resumed=True)

    def resumed(self, saved: Saved, epoch: int | None = None, /) -> tuple[StreamFeeds, Cursor]:
        """What makes feeds, and the place, that go on where a state was saved."""
        cursor = saved.cursor
        if cursor.draws is None:
            if cursor != START:
                raise stream.no_place()
            of, row = 0, 0
        else:
            place = stream.from_json(self.planner, cursor.step, cursor.position, cursor.draws)
            of, row = place.epoch, place.row
            if self.planner.num_epochs is not None and of > self.planner.num_epochs:
                raise stream.beyond(of, self.planner.num_epochs)
        if epoch is not None and of != epoch and (of, row) != (epoch + 1, 0):
            raise of_another_epoch(cursor.step, epoch)
        return self, cursor

    def batch(self, step: int) -> Any:
        """The local batch of a step, built here and now, after reading all before it."""
        totals: dict[int, Total] = {}
        place = self.planner.start()
        alone = replace(self.stages.reading, job=None)
        with here.StreamReader(self.recipe) as reader:
            while (plan := self.planner.plan(place, totals)) is not None:
                wanted = plan.step == step
                found = reader.build(alone.chunk(plan, 0, (0,), place.step, False, wanted))
                if isinstance(found, Ended):
                    totals.update(found.totals)
                elif wanted:
                    return found
                else:
                    place = plan.after
        raise ValueError(f"`step` must be a step of the run, which ends before, got {step}")
