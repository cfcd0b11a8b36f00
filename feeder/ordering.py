"""What the user asked of the order of records: which planner that makes, and its identity."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from feeder import arguments
from feeder.arrangement import Arrangement
from feeder.feed.planned import PlannedFeeds
from feeder.place.ends import Job
from feeder.plan.batches import LocalRows, Planner, PositionPlanner
from feeder.plan.blocks import BlockShuffle, BlockShuffled
from feeder.plan.lookup import BatchLookup, Lookup, Table
from feeder.plan.order import Order, Sequential, Shuffled
from feeder.plan.reader import copied, first_items
from feeder.plan.replay import ReplayedBatches, ReplayedRows
from feeder.plan.samplers import Drawn, InfiniteSampler, WeightedSampler
from feeder.plan.schedule import LAST_BATCH, MAX_POSITIONS, LastBatch, Schedule
from feeder.plan.spares import Spares
from feeder.plan.state import Identity
from feeder.produce.recipe import Recipe
from feeder.sources.protocol import fingerprint_of

_COMPARED = 64
"""Items of an iterable that are read twice, to find out one that is not seeded."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order of records, as asked for and checked.

    Attributes:
        recipe: What builds batches.
        num_records: Records of the source.
        num_epochs: Passes; None: for ever.
        shuffle: Whether and how to shuffle, where no sampler says.
        last_batch: What becomes of an epoch's last records.
        batch_size: Rows of a global batch; None with a ``batch_sampler``.
        sampler: The user's order of records.
        batch_sampler: The user's batches.
    """

    recipe: Recipe
    num_records: int
    num_epochs: int | None
    shuffle: bool | BlockShuffle
    last_batch: LastBatch
    batch_size: int | None
    sampler: Any
    batch_sampler: Any

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        num_records: int,
        num_epochs: Any,
        shuffle: Any,
        last_batch: Any,
        batch_size: Any,
        sampler: Any,
        batch_sampler: Any,
    ) -> Ordering:
        """Checks the arguments of a `DataLoader`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a value that cannot work, or excludes another.
        """
        if num_epochs is not None:
            num_epochs = arguments.integer(
                "num_epochs", num_epochs, 1, "use None to go on for ever"
            )
        ordering = cls(
            recipe=recipe,
            num_records=num_records,
            num_epochs=num_epochs,
            shuffle=shuffle,
            last_batch=arguments.choice("last_batch", last_batch, LAST_BATCH),
            batch_size=arguments.optional_integer("batch_size", batch_size, 1),
            sampler=sampler,
            batch_sampler=batch_sampler,
        )
        ordering._check()
        return ordering

    def _check(self) -> None:
        """Checks what excludes what, and that there is some batch.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: Arguments exclude each other, or leave no batch.
        """
        if not isinstance(self.shuffle, bool | BlockShuffle):
            raise TypeError(
                f"`shuffle` must be True, False or a feeder.BlockShuffle, got {self.shuffle!r}"
            )
        if self.replaces and self._read_in_order:
            raise ValueError(
                '`on_bad_record` must be "raise" or "skip" with a batch_sampler, or with a sampler '
                'without len() and [], got "replace": which records are in the epoch is not known'
            )
        if self.batch_sampler is not None:
            for name, given in (
                ("batch_size", self.batch_size is not None),
                ("sampler", self.sampler is not None),
                ("shuffle", self.shuffle is not False),
                ("last_batch", self.last_batch != "drop"),
            ):
                if given:
                    raise ValueError(
                        f"`{name}` must be left out with `batch_sampler`, which makes up the "
                        f"batches, got {getattr(self, name)!r}"
                    )
            _check_sampler("batch_sampler", self.batch_sampler, "batches of record indices")
            return
        if self.batch_size is None:
            raise TypeError(
                "`batch_size` must be an integer of at least 1 without a `batch_sampler`, got None"
            )
        if self.sampler is not None:
            if self.shuffle is not False:
                raise ValueError(
                    "`shuffle` must be left out with `sampler`, which gives the order, got "
                    f"{self.shuffle!r}"
                )
            if isinstance(self.sampler, InfiniteSampler):
                if self.num_epochs not in (1, None):
                    raise ValueError(
                        "`num_epochs` must be left out with an InfiniteSampler, whose draws have "
                        f"no end, got {self.num_epochs}"
                    )
            elif not isinstance(self.sampler, WeightedSampler):
                _check_sampler("sampler", self.sampler, "record indices")
            if isinstance(self.sampler, WeightedSampler | InfiniteSampler):
                Drawn(self.sampler, self.num_records, self.seed)  # as many weights as records?
        if (schedule := self.schedule) is not None:
            _check_some_batch(schedule, "records" if self.sampler is None else "indices")

    @property
    def last_epoch(self) -> int | None:
        """The epoch that nothing follows; None: there is none."""
        if isinstance(self.sampler, InfiniteSampler):
            return 0
        return None if self.num_epochs is None else self.num_epochs - 1

    @property
    def seed(self) -> int:
        """The loader's seed."""
        return self.recipe.seed

    @property
    def replaces(self) -> bool:
        """Whether other records replace bad ones."""
        return self.recipe.on_bad_record == "replace"

    @property
    def _read_in_order(self) -> bool:
        """Whether the user gives batches, or an order that can only be read from its beginning."""
        known = self.sampler is None or isinstance(self.sampler, WeightedSampler | InfiniteSampler)
        return self.batch_sampler is not None or not (known or _has_items(self.sampler))

    @property
    def schedule(self) -> Schedule | None:
        """How positions are cut into batches; None where only a sampler can tell."""
        if self.batch_size is None:
            return None
        if isinstance(self.sampler, InfiniteSampler):
            return Schedule(MAX_POSITIONS, self.batch_size, None, self.last_batch, endless=True)
        length = self.num_records if self.sampler is None else _length(self.sampler)
        if length is None:
            return None
        return Schedule(length, self.batch_size, self.num_epochs, self.last_batch)

    def on(self, local_rows: LocalRows, _job: Job | None) -> Arrangement:
        """The order, for the rows of this process."""
        planner, identity = self.planner(local_rows)
        return Arrangement(
            identity,
            lambda producer: PlannedFeeds(planner, self.recipe, producer),
            (self.recipe, planner),
            lambda: self.planner(np.arange)[0],
        )

    @property
    def why_no_length(self) -> str:
        """Why there is no end of a run, or of an epoch, or none known; for a message."""
        if isinstance(self.sampler, InfiniteSampler):
            return "an InfiniteSampler has none"
        return f"`{'sampler' if self.batch_sampler is None else 'batch_sampler'}` has no len()"

    @property
    def why_no_epoch(self) -> str:
        """Why nobody knows where an epoch begins; for a message."""
        return self.why_no_length

    def planner(self, local_rows: LocalRows) -> tuple[Planner, Identity]:
        """The planner for the rows of one process, and what its states must match.

        Raises:
            ValueError: A sampler gives what is no order of the source's records.
            Exception: Whatever a sampler's code raises.
        """
        if self.batch_sampler is not None:
            return self._batches(local_rows)
        assert self.batch_size is not None
        found = self._order()
        if found is None:
            length = _length(self.sampler)
            kind = {"kind": type(self.sampler).__qualname__, "length": length, "crc": None}
            return ReplayedRows(
                _repeatable("sampler", self.sampler),
                length,
                self.num_records,
                self.batch_size,
                self.num_epochs,
                self.last_batch,
                local_rows,
            ), self._identity(kind)
        order, described = found
        assert self.schedule is not None
        # User code is asked for no more than the batch at hand: an error then comes in its place.
        options = {"rows_ahead": 1} if isinstance(order, Lookup) else {}
        spares = Spares(self.seed, self.schedule.num_records, order) if self.replaces else None
        planner = PositionPlanner(self.schedule, order, local_rows, spares=spares, **options)
        return planner, self._identity(described)

    def _order(self) -> tuple[Order, dict[str, Any] | None] | None:
        """Which record stands at which position, and what describes a sampler.

        None where only reading the sampler can tell.
        """
        sampler = self.sampler
        if sampler is None:
            if isinstance(self.shuffle, BlockShuffle):
                return BlockShuffled(self.num_records, self.seed, self.shuffle), None
            if self.shuffle:
                return Shuffled(self.num_records, self.seed), None
            return Sequential(self.num_records), None
        order: Drawn | Table | Lookup
        if isinstance(sampler, WeightedSampler | InfiniteSampler):
            order = Drawn(sampler, self.num_records, self.seed)
        elif isinstance(sampler, list | tuple | np.ndarray):
            order = Table(_table(sampler, self.num_records))
        elif _has_items(sampler):
            order = Lookup(sampler, self.num_records)
        else:
            return None
        return order, order.describe()

    def _batches(self, local_rows: LocalRows) -> tuple[Planner, Identity]:
        sampler = self.batch_sampler
        if isinstance(sampler, list):
            sampler = tuple(sampler)  # what is appended to it later is no part of this run
        if _has_items(sampler):
            lookup = BatchLookup(sampler, self.num_records, self.num_epochs, local_rows)
            lookup.batch(0)  # bad batches fail here, if they are that bad
            return lookup, self._identity(lookup.describe())
        length = _length(sampler)
        sampler = _repeatable("batch_sampler", sampler)
        kind = {"kind": f"batches of {type(sampler).__qualname__}", "length": length, "crc": None}
        return ReplayedBatches(
            sampler, length, self.num_records, self.num_epochs, local_rows
        ), self._identity(kind)

    @property
    def described(self) -> dict[str, Any]:
        """What else makes up the order, JSON-able: what another process can compare."""
        sampler = self.sampler if self.batch_sampler is None else self.batch_sampler
        items = None
        if sampler is not None and not _has_items(sampler) and isinstance(sampler, Iterable):
            items = zlib.crc32(repr(first_items(sampler, _COMPARED)).encode())
        return {"num_epochs": self.num_epochs, "first items of the sampler": items}

    def _identity(self, sampler: dict[str, Any] | None) -> Identity:
        return Identity(
            num_records=self.num_records,
            batch_size=self.batch_size,
            seed=self.seed,
            shuffle=asdict(self.shuffle)
            if isinstance(self.shuffle, BlockShuffle)
            else self.shuffle,
            sampler=sampler,
            last_batch=None if self.batch_sampler is not None else self.last_batch,
            source=fingerprint_of(self.recipe.source),
        )


def _check_sampler(name: str, sampler: Any, what: str) -> None:
    if isinstance(sampler, Iterator):
        raise TypeError(
            f"`{name}` must be readable more than once, got {sampler!r}, which is used up after "
            "one pass; give a list of its items, or an object whose __iter__ begins anew"
        )
    usable = _has_items(sampler) or isinstance(sampler, Iterable)
    if not usable or isinstance(sampler, Mapping | str | bytes):
        raise TypeError(
            f"`{name}` must be an object with len() and [], or an iterable, of {what}, got "
            f"{sampler!r}"
        )
    if _length(sampler) == 0:
        raise ValueError(f"`{name}` must give at least one item, got none: its len() is 0")


def _check_some_batch(schedule: Schedule, what: str) -> None:
    """Refuses a run without a batch."""
    num_records, batch_size = schedule.num_records, schedule.batch_size
    if batch_size > num_records and schedule.last_batch == "drop":
        raise ValueError(
            f"`batch_size` must be at most {num_records}, the {what} of an epoch, with "
            f'`last_batch="drop"`, got {batch_size}: every batch would be dropped; use "keep", '
            '"pad" or "rollover"'
        )
    if schedule.num_steps == 0:
        raise ValueError(
            f"`batch_size` must be at most {num_records * (schedule.num_epochs or 1)}, the {what} "
            f'of all epochs, with `last_batch="rollover"`, got {batch_size}; use "keep" or "pad"'
        )


def _table(sampler: Any, num_records: int) -> np.ndarray[Any, Any]:
    """The indices of a list or array, checked."""
    indices = np.array(sampler)  # what is written to it later is no part of this run
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise TypeError(
            "`sampler` must be a sequence of integers, got one that makes an array of shape "
            f"{indices.shape} and dtype {indices.dtype}"
        )
    wrong = np.flatnonzero((indices < 0) | (indices >= num_records))
    if len(wrong):
        raise ValueError(
            f"`sampler` must give integers from 0 to {num_records - 1}, the records of `source`, "
            f"got {indices[wrong[0]]} at {wrong[0]}"
        )
    return indices


def _has_items(sampler: Any) -> bool:
    return isinstance(sampler, Sized) and hasattr(sampler, "__getitem__")


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):  # none, or one that says so
        return None


def _repeatable(name: str, sampler: Any) -> Any:
    """A copy of an iterable as it is now, which gives the same items whenever it is copied again.

    Raises:
        TypeError: It cannot be copied.
        ValueError: It gives other items the second time.
    """
    try:
        own = copied(sampler)
        items, again = first_items(own, _COMPARED), first_items(own, _COMPARED)
    except Exception as error:
        raise TypeError(
            f"`{name}` must be copyable, as copy.deepcopy does it, so that every run begins where "
            f"it stands now, got {type(error).__name__}: {error}; leave out what cannot be copied "
            "(__deepcopy__ may say what is shared), or give it len() and []"
        ) from error
    if items != again:
        raise ValueError(
            f"`{name}` must give the same items each time it is read from its beginning, got "
            f"{_first_difference(items, again)}; seed it (PyTorch's take a seeded `generator=`)"
        )
    return own


def _first_difference(items: list[Any], again: list[Any]) -> str:
    for number, (one, other) in enumerate(itertools.zip_longest(items, again)):
        if one != other:
            return f"{one!r} and then {other!r} at {number}"
    raise AssertionError("there is no difference")
