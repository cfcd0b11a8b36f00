"""Feeds where every record's place is known beforehand: sources with ``len()`` and ``[]``.

Guarantees:
    * Batches leave in step order, each once; after `restart` the missing one is built again.
    * What planning raises is raised once all batches before it have left.

Owner:
    A feed owns its session at the producer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from feeder.collect.collector import Collector
from feeder.errors import StateError
from feeder.feed.protocol import Fed
from feeder.plan.batches import BatchPlan, Planner
from feeder.plan.schedule import Cursor
from feeder.plan.state import Saved
from feeder.produce import here
from feeder.produce.built import Ended, Passed
from feeder.produce.recipe import Recipe
from feeder.produce.session import Outcome, Producer


class PlannedFeeds:
    """Makes feeds of planned batches.

    Args:
        planner: Plans local batches.
        recipe: What builds them.
        producer: Who does.
    """

    def __init__(self, planner: Planner, recipe: Recipe, producer: Producer) -> None:
        self._planner = planner
        self._recipe = recipe
        self._producer = producer

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start; None: no end, or none known."""
        return self._planner.num_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ; None: no end, or none known."""
        return self._planner.steps_per_epoch

    @property
    def origin(self) -> Cursor:
        """Where batches of this size began."""
        return self._planner.origin

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins in a run from the start."""
        return self._planner.epoch(epoch)

    def open(self, start: Cursor, last_epoch: int | None = None, /) -> PlannedFeed:
        """A feed from a place on."""
        return PlannedFeed(self._planner, self._producer, start, last_epoch)

    def resumed(self, saved: Saved, epoch: int | None = None, /) -> tuple[PlannedFeeds, Cursor]:
        """What makes feeds, and the place, that go on where a state was saved."""
        planner, cursor = self._planner.resumed(saved)
        if epoch is not None:
            first, stop = (self._planner.epoch(number) for number in (epoch, epoch + 1))
            late = stop is not None and cursor.step > stop.step
            if late or (first is not None and cursor.step < first.step):
                raise of_another_epoch(cursor.step, epoch)
        return PlannedFeeds(planner, self._recipe, self._producer), cursor

    def batch(self, step: int) -> Any:
        """The local batch of a step, built here and now."""
        plan = self._planner.batch(step)
        if plan is None:
            raise ValueError(f"`step` must be a step of the run, which ends before, got {step}")
        return here.build_alone(self._recipe, plan.chunk)


def of_another_epoch(step: int, epoch: int) -> StateError:
    """The error of a state that is not of the epoch whose iterator it is given to."""
    return StateError(
        f"`state` must be of epoch {epoch}, whose iterator this is, got one of step {step}; open "
        "the iterator of its epoch, or iter(loader)"
    )


class PlannedFeed:
    """The planned batches of one run.

    Attributes:
        alone: Whether memory is so short that nothing is asked for ahead.
        error: Why the batch after those under way cannot be planned.

    Args:
        planner: Plans local batches.
        producer: Builds them.
        start: Where to begin.
        last_epoch: The epoch to end with; None: the run's last.
    """

    def __init__(
        self, planner: Planner, producer: Producer, start: Cursor, last_epoch: int | None
    ) -> None:
        self.alone = False
        self._planner = planner
        self._producer = producer
        self._last_epoch = last_epoch
        self._cursor = start
        self._session = producer.session()
        self._begin()

    def __len__(self) -> int:
        """Batches asked for and not given out."""
        return len(self._collector)

    @property
    def step(self) -> int:
        """Step of the batch that is to be delivered next."""
        return self._cursor.step

    def cursor(self) -> Cursor:
        """Where that batch begins."""
        return self._cursor

    def submit(self, _ahead: bool = False, /) -> bool:
        """Asks for more, once half of the window is free; False: nothing is under way.

        Several batches at a time: waking a worker costs more than anything else done here.
        """
        window = 1 if self.alone else self._producer.window
        if 2 * len(self._collector) <= window:
            for plan in self._plan(window - len(self._collector)):
                step = plan.chunk.step
                self._asked[step] = plan
                self._collector.expect(step)
                self._session.submit(plan.chunk)
        return bool(self._collector)

    def next(self) -> Fed | None:
        """The next batch; None where it has not come."""
        if not self._collector.ready:
            for step, outcome in self._session.take():
                self._collector.arrive(step, outcome)
            if not self._collector.ready:
                return None
        step, outcome = self._collector.pop()
        plan = self._asked.pop(step)
        assert not isinstance(outcome, Ended | Passed)  # there is no stream
        return Fed(plan.chunk, plan.num_rows, outcome, plan.after)

    def poll(self) -> None:
        """Moves things on, without waiting."""
        self._session.poll()

    def wait(self) -> None:
        """Waits until something has come."""
        self._session.wait()

    def commit(self, fed: Fed) -> None:
        """A batch is delivered."""
        self._cursor = fed.after

    def restart(self) -> None:
        """Gives up whatever is under way, and begins anew with the batch to be delivered next."""
        self._begin()
        self._session.renew()

    def left_out(self) -> tuple[()]:
        """Nothing: every record has its place in a batch."""
        return ()

    def close(self) -> None:
        """Gives up whatever is under way."""
        self._session.close()

    def _begin(self) -> None:
        self.alone = False
        self._plans = self._planner.batches(self._cursor, self._last_epoch)
        self.error: BaseException | None = None
        self._asked: dict[int, BatchPlan] = {}
        self._collector: Collector[Outcome] = Collector()

    def _plan(self, count: int) -> Iterator[BatchPlan]:
        """The next plans; what a sampler raises is kept until the batches before it are gone."""
        try:
            yield from itertools.islice(self._plans, count)
        except Exception as error:
            self.error = error
