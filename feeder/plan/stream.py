"""Which records of a stream make up batch *k*, as far as it is known which lanes are dry. Pure.

Nobody knows how long a stream is before it is read. A plan therefore takes every lane for endless
until somebody has read to its end; whoever does tells the *total* of the lane, and the plans from
that batch on are made anew.

Guarantees:
    * What a batch holds depends on the place before it and on the totals alone: not on who reads,
      nor on when the totals were found.
    * The real rows of all batches are the records of all lanes, each once; those left out are the
      tails that ``last_batch`` drops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from feeder.errors import StateError, StreamError
from feeder.plan.order import Indices
from feeder.plan.patterns import Pattern, joined
from feeder.plan.rotation import Phase, cycle_of
from feeder.plan.schedule import MAX_POSITIONS, START, Cursor, LastBatch, Schedule


class Total(NamedTuple):
    """What a lane gave in an epoch.

    Attributes:
        records: Records, after filters.
        read: Records that its shards hold.
    """

    records: int
    read: int


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a batch begins.

    Attributes:
        step: Its step.
        position: Position of its first row.
        epoch: Epoch of its first row.
        row: Number of that row in the epoch, counted over its batches.
        read: Records that the shards of dry lanes held, in this epoch.
        phase: The rotation from here on.
    """

    step: int
    position: int
    epoch: int
    row: int
    read: int
    phase: Phase


@dataclass(frozen=True, slots=True, eq=False)
class StreamPlan:
    """A global batch.

    Attributes:
        step: Its step.
        epoch: Epoch of its last real row.
        position: Position of its first row.
        pattern: Its real rows, in order.
        cycle: The cycle of the pattern that it is in.
        first_lane: The lane that the pattern counts from: lanes are numbered over all epochs,
            ``epoch * num_lanes + lane``.
        num_rows: Rows of the batch, with padding.
        after: Where the next batch begins.
    """

    step: int
    epoch: int
    position: int
    pattern: Pattern
    cycle: int
    first_lane: int
    num_rows: int
    after: Place

    @property
    def lanes(self) -> Indices:
        """Lane that gives each row."""
        return self.pattern.lanes + self.first_lane

    @property
    def offsets(self) -> Indices:
        """Number of each row's record in its lane."""
        return self.pattern.at(self.cycle)


@dataclass(frozen=True, slots=True)
class StreamPlanner:
    """Plans the batches of a stream.

    Attributes:
        num_lanes: Shards read side by side.
        block_length: Records taken from one of them in a row; None: each has rows of its own.
        batch_size: Rows of a global batch.
        num_epochs: Epochs in the run; None: for ever.
        last_batch: What becomes of an epoch's last records where they fill no batch.
        length: Records that all shards hold, where that is known.
        keeps_count: Whether each of them becomes one record: none is left out, or made many of.
    """

    num_lanes: int
    block_length: int | None
    batch_size: int
    num_epochs: int | None
    last_batch: LastBatch
    length: int | None = None
    keeps_count: bool = True

    @property
    def cycle(self) -> Indices:
        """The slot of each row of a cycle of the rotation."""
        return cycle_of(self.num_lanes, self.block_length, self.batch_size)

    @property
    def num_steps(self) -> int | None:
        """Batches of a run from the start; None: no end, or none known."""
        return None if self.schedule is None else self.schedule.num_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch, the fewest where epochs differ; None: unknown."""
        return None if self.schedule is None else self.schedule.steps_per_epoch

    @property
    def schedule(self) -> Schedule | None:
        """Steps and epochs, where the stream says how long it is; None: only reading can tell."""
        if not self.length or not self.keeps_count:
            return None
        return Schedule(self.length, self.batch_size, self.num_epochs, self.last_batch)

    def epoch(self, epoch: int) -> Cursor | None:
        """Where an epoch begins in a run from the start; None: only reading can tell."""
        if epoch == 0:
            return START
        if self.schedule is None or self.last_batch == "rollover":
            return None
        cursor = self.schedule.cursor(self.schedule.first_step(epoch))
        place = self.start(cursor.step, cursor.position, epoch)
        return replace(cursor, draws={**to_json(self, place), "shards": []})

    def start(self, step: int = 0, position: int = 0, epoch: int = 0, row: int = 0) -> Place:
        """The beginning of an epoch, before any of its records."""
        taken = dict.fromkeys(range(self.num_lanes), 0)
        return Place(step, position, epoch, row, 0, Phase.of(self.cycle, row, taken))

    def plan(
        self, place: Place, totals: Mapping[int, Total], last_epoch: int | None = None
    ) -> StreamPlan | None:
        """The batch that begins at a place; None: the run is over.

        Args:
            place: Where.
            totals: Of the lanes, numbered over all epochs, whose end somebody has found.
            last_epoch: The epoch that ends the run; None: its last.

        Raises:
            StreamError: An epoch ends without a batch, in a run without end; or the stream does
                not hold as many records as it says.
        """
        begin = place
        parts: list[tuple[Pattern, int, int]] = []  # with cycle and epoch
        filled = 0
        last_real = place.epoch
        while filled < self.batch_size:
            if self._is_over(place.epoch, last_epoch):
                return None
            stop, dry = self._next_end(place, place.row + self.batch_size - filled, totals)
            if stop > place.row:
                parts.append((*place.phase.pattern(place.row, stop - place.row), place.epoch))
                last_real = place.epoch
                filled += stop - place.row
                place = replace(place, row=stop)
            if dry is None:
                continue
            total = totals[place.epoch * self.num_lanes + dry]
            place = replace(place, read=place.read + total.read)
            phase = place.phase.without(dry, stop)
            if phase is not None:
                place = replace(place, phase=phase)
                continue
            self._check_epoch(place, filled, totals)
            if self.last_batch == "rollover":
                place = self.start(place.step, place.position, place.epoch + 1, filled)
            elif filled and self.last_batch in ("keep", "pad"):
                after = self.start(begin.step + 1, begin.position + filled, place.epoch + 1)
                num_rows = filled if self.last_batch == "keep" else self.batch_size
                return self._made(begin, last_real, parts, num_rows, after)
            else:
                begin = place = self.start(place.step, place.position + filled, place.epoch + 1)
                parts, filled = [], 0
        after = Place(
            begin.step + 1,
            begin.position + filled,
            place.epoch,
            place.row,
            place.read,
            place.phase,
        )
        return self._made(begin, last_real, parts, self.batch_size, after)

    def _made(
        self,
        begin: Place,
        last_real: int,
        parts: list[tuple[Pattern, int, int]],
        num_rows: int,
        after: Place,
    ) -> StreamPlan:
        pattern, cycle, epoch = parts[0]
        if len(parts) > 1:
            lanes = self.num_lanes
            moved = [(one, at, (later - epoch) * lanes) for one, at, later in parts]
            pattern, cycle = joined(moved), 0
        first = epoch * self.num_lanes
        return StreamPlan(
            begin.step, last_real, begin.position, pattern, cycle, first, num_rows, after
        )

    def _is_over(self, epoch: int, last_epoch: int | None) -> bool:
        if last_epoch is not None and epoch > last_epoch:
            return True
        return self.num_epochs is not None and epoch >= self.num_epochs

    def _next_end(
        self, place: Place, stop: int, totals: Mapping[int, Total]
    ) -> tuple[int, int | None]:
        """The first row before ``stop`` that its lane cannot fill, and that lane."""
        first = place.epoch * self.num_lanes
        known = {
            lane - first: total.records
            for lane, total in totals.items()
            if first <= lane < first + self.num_lanes
        }
        found = place.phase.first_end(known) if known else None
        return (stop, None) if found is None or found[0] >= stop else found

    def _check_epoch(self, place: Place, filled: int, totals: Mapping[int, Total]) -> None:
        """Looks at an epoch whose lanes are all dry."""
        if self.length is not None and place.read != self.length:
            raise StreamError(
                f"`length` must be the number of records that the shards of an epoch hold, got "
                f"{self.length} where epoch {place.epoch} has {place.read}; correct it, or leave "
                "it out",
                epoch=place.epoch,
            )
        if self.num_epochs is not None:
            return  # it has an end, batches or not
        fewest = self.batch_size if self.last_batch == "drop" else 1
        if self.last_batch == "rollover":
            first = place.epoch * self.num_lanes
            known = [totals.get(first + lane, Total(1, 1)) for lane in range(self.num_lanes)]
            barren = not any(total.records for total in known)
        else:
            barren = place.row == filled < fewest
        if barren:
            raise StreamError(
                f"`source` must give at least {fewest} records in each epoch, with "
                f"`batch_size` {self.batch_size} and `last_batch` {self.last_batch!r}, got "
                f"{place.row} in epoch {place.epoch}, and would go on so for ever",
                epoch=place.epoch,
            )


def to_json(planner: StreamPlanner, place: Place) -> dict[str, Any]:
    """What a state says of a place beside its step and position."""
    return {
        "batch_size": planner.batch_size,
        "epoch": place.epoch,
        "row": place.row,
        "read": place.read,
        "lanes": list(map(list, place.phase.taken(place.row).items())),
    }


def from_json(planner: StreamPlanner, step: int, position: int, draws: dict[str, Any]) -> Place:
    """The place that `to_json` described.

    Raises:
        StateError: It is damaged.
    """
    for name in ("epoch", "row", "read", "batch_size"):
        if not _is_count(draws.get(name)):
            raise StateError(
                f"`state['draws'][{name!r}]` must be an integer of at least 0, got "
                f"{draws.get(name)!r}: it is damaged"
            )
    pairs = draws.get("lanes")
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_count, pair))
        for pair in pairs
    ):
        raise StateError(
            "`state['draws']['lanes']` must be pairs of a lane and the records taken from it, got "
            f"{str(pairs)[:80]}: it is damaged"
        )
    taken = {int(lane): int(count) for lane, count in pairs}
    if not taken or len(taken) != len(pairs) or max(taken) >= planner.num_lanes:
        raise StateError(
            f"`state['draws']['lanes']` must name each of {planner.num_lanes} lanes once at most, "
            f"got {sorted(taken)}: it is damaged"
        )
    # With another batch size, batches begin anew with the first row of a cycle.
    row = -(-draws["row"] // planner.batch_size) * planner.batch_size
    if draws["batch_size"] == planner.batch_size:
        row = draws["row"]
    phase = Phase.of(planner.cycle, row, taken)
    return Place(step, position, draws["epoch"], row, draws["read"], phase)


def no_place() -> StateError:
    """The error of a state that does not say where the stream is."""
    return StateError(
        "`state['draws']` must say where the stream is after the first step, got None: it is "
        "damaged"
    )


def beyond(epoch: int, num_epochs: int) -> StateError:
    """The error of a state of an epoch that the run does not have."""
    return StateError(
        f"`state` must be of a place in the {num_epochs} epochs of this run, got one in epoch "
        f"{epoch}; raise `num_epochs`"
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_POSITIONS
