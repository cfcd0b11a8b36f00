"""The loader: checks what the user asked for, wires the stages, and owns the workers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import optree

from feeder import arguments, topology
from feeder.errors import ClosedError
from feeder.iterator import BatchIterator, Stages
from feeder.plan import state
from feeder.plan.batches import Planner
from feeder.plan.blocks import BlockShuffle, BlockShuffled
from feeder.plan.order import MAX_RECORDS, Order, Sequential, Shuffled
from feeder.plan.schedule import LAST_BATCH, Cursor, LastBatch, Schedule
from feeder.produce import here
from feeder.produce.inline import Inline
from feeder.produce.memory import memory_limit_bytes
from feeder.produce.pool import Pool
from feeder.produce.recipe import Recipe
from feeder.produce.session import Producer
from feeder.produce.transforms import RandomMap
from feeder.sources import as_source
from feeder.spec import ArraySpec

if TYPE_CHECKING:
    from jax.sharding import Sharding


class DataLoader:
    """Deterministic batches of records, built ahead by workers and placed on devices.

    Batch *k* is a pure function of (source, seed, *k*), whatever the number of workers,
    processes and devices, after any crash and any resume.

    Every ``iter(loader)`` is a run of its own, from step 0; several may be open at once. They
    share the workers, which start with the first batch and live until `close`, the end of a
    ``with`` block, or the end of the loader and all its iterators.

    Args:
        source: Where records live: anything with ``len()`` and ``[]``. An array, or a dict or
            (named) tuple of arrays of one length, nested or not, is a source of its rows; a
            list is a source of its items. ``read(indices)`` → batch or ``__getitems__`` →
            records, where offered, is called once per batch instead of ``[]`` per record.
        batch_size: Rows of a global batch, over all processes and devices.
        shuffle: True: a permutation of the whole epoch, another one in each epoch. A
            `BlockShuffle`: for storage that reads best in runs.
        seed: The only source of randomness, a non-negative integer of any size.
        num_epochs: Passes over the source; None: for ever.
        last_batch: What becomes of an epoch's last records where they fill no batch:
            ``"drop"``; ``"keep"``, a shorter batch; ``"pad"``, a full one: a dict batch gains the
            key ``mask``, any other becomes ``(batch, mask)``, with True for real rows, and padding
            repeats the last of them; ``"rollover"``, they open the next epoch's first batch.
        transforms: Called on each record, in order, in the workers: a callable as
            ``transform(record)``, a `RandomMap` with a Generator as well.
        batch_transforms: Called on each whole local batch, in order, in the workers.
        collate: Makes a batch of a list of records; None: stacks every leaf. Numbers and arrays
            are stacked into arrays, other leaves into arrays of dtype object.
        num_workers: Worker processes; 0: batches are built in this process. It can never
            change a result.
        prefetch_batches: Local batches built ahead; None: two for each worker, more while they
            are small.
        sharding: A `jax.sharding.Sharding` of the global batch: batches are pytrees of global
            `jax.Array`, already on their devices. None: NumPy arrays on the host.
        device_batches: Batches placed on the devices ahead of the one delivered (with
            ``num_workers=0``, one).
        max_memory_bytes: Most bytes of slots, in which batches are built and kept while they
            live; None: half the memory of the machine or container.
        process_index: Number of this process, with ``process_count``: given by hand, any host can
            be simulated. None: JAX's own with a sharding or where `jax.distributed` is
            initialised, else 0 of 1.
        process_count: Processes of the job, which split the rows of each batch evenly where no
            sharding says otherwise.

    Raises:
        TypeError: An argument has the wrong type, or cannot be pickled for the workers.
        ValueError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        source: object,
        batch_size: int,
        *,
        shuffle: bool | BlockShuffle = False,
        seed: int = 0,
        num_epochs: int | None = 1,
        last_batch: LastBatch = "drop",
        transforms: Sequence[Callable[[Any], Any] | RandomMap] = (),
        batch_transforms: Sequence[Callable[[Any], Any]] = (),
        collate: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_batches: int | None = None,
        sharding: Sharding | None = None,
        device_batches: int = 2,
        max_memory_bytes: int | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
    ) -> None:
        recipe = Recipe(
            source=as_source(source),
            transforms=arguments.callables(
                "transforms", transforms, "transform(record)", RandomMap
            ),
            batch_transforms=arguments.callables(
                "batch_transforms", batch_transforms, "transform(batch)"
            ),
            collate=arguments.optional_callable("collate", collate, "collate(records)"),
            seed=arguments.integer("seed", seed, 0),
        )
        schedule = Schedule(
            num_records=_num_records(recipe.source),
            batch_size=arguments.integer("batch_size", batch_size, 1),
            num_epochs=None
            if num_epochs is None
            else arguments.integer("num_epochs", num_epochs, 1, "use None to go on for ever"),
            last_batch=arguments.choice("last_batch", last_batch, LAST_BATCH),
        )
        _check_some_batch(schedule)
        num_workers = arguments.integer("num_workers", num_workers, 0)
        if prefetch_batches is not None:
            prefetch_batches = arguments.integer("prefetch_batches", prefetch_batches, 1)
        device_batches = arguments.integer("device_batches", device_batches, 1)
        max_bytes = memory_limit_bytes() // 2
        if max_memory_bytes is not None:
            max_bytes = arguments.integer("max_memory_bytes", max_memory_bytes, 1)
        order = _order(schedule.num_records, recipe.seed, shuffle)
        placer, local_rows = topology.of(schedule, sharding, process_index, process_count)
        self._recipe = recipe
        self._schedule = schedule
        self._planner = Planner(schedule, order, local_rows)
        self._identity = state.Identity(
            num_records=schedule.num_records,
            batch_size=schedule.batch_size,
            seed=recipe.seed,
            shuffle=asdict(shuffle) if isinstance(shuffle, BlockShuffle) else shuffle,
            last_batch=schedule.last_batch,
        )
        producer: Producer
        if num_workers:
            producer = Pool(recipe, num_workers, max_bytes, prefetch_batches)
        else:
            producer = Inline(recipe, max_bytes, ahead=placer is not None)
            device_batches = 1
        ahead = device_batches if placer else 0
        self._stages = Stages(self._planner, self._identity, producer, placer, ahead)
        # Also called when the loader and its iterators are gone, and at the interpreter's end.
        self._close = weakref.finalize(self, producer.close)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; with ``last_batch="rollover"`` the fewest: some have one more."""
        return self._schedule.steps_per_epoch

    def __len__(self) -> int:
        """Batches that ``iter(loader)`` delivers, over all epochs.

        Raises:
            TypeError: There is no end, with ``num_epochs=None``.
        """
        if self._schedule.num_steps is None:
            raise TypeError("len() of a loader needs an end, and `num_epochs` is None")
        return self._schedule.num_steps

    def __iter__(self) -> BatchIterator:
        """Starts a run from step 0.

        Raises:
            ClosedError: The loader was closed.
        """
        return self._iterate(Cursor(0, 0), None)

    def _iterate(self, start: Cursor, stop: int | None) -> BatchIterator:
        if not self._close.alive:
            raise ClosedError
        return BatchIterator(self._stages, start, self, stop)

    def batch(self, step: int) -> Any:
        """The local batch ``step``, computed here and now, without workers and without state.

        The same bits as those of an unbroken run, as NumPy arrays of the rows of this process.

        Args:
            step: Number of the batch, from 0 over all epochs.

        Raises:
            ValueError: There is no such step.
            Exception: Whatever user code raises, as in an iterator.
        """
        step = arguments.integer("step", step, 0)
        num_steps = self._schedule.num_steps
        if num_steps is not None and step >= num_steps:
            raise ValueError(f"`step` must be below {num_steps}, the steps of the run, got {step}")
        return here.build_alone(self._recipe, self._planner.batch(step).chunk)

    def epoch(self, epoch: int) -> BatchIterator:
        """An iterator over the batches of one epoch, for loops that count epochs.

        With ``last_batch="rollover"`` a batch belongs to the epoch of its last row.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            ValueError: There is no such epoch.
            ClosedError: The loader was closed.
        """
        epoch = arguments.integer("epoch", epoch, 0)
        num_epochs = self._schedule.num_epochs
        if num_epochs is not None and epoch >= num_epochs:
            raise ValueError(f"`epoch` must be below `num_epochs` = {num_epochs}, got {epoch}")
        first, stop = self._schedule.first_step(epoch), self._schedule.first_step(epoch + 1)
        return self._iterate(self._schedule.cursor(first), stop)

    @functools.cached_property
    def element_spec(self) -> Any:
        """Shape and dtype of every leaf of a full batch as delivered, in the batch's structure.

        Each leaf is an `ArraySpec`; with a sharding a `jax.ShapeDtypeStruct`, of the global shape,
        where it is placed. Reads one record, the first time.

        Raises:
            Exception: Whatever user code raises at that record.
        """
        plan = self._planner.batch(0)
        sample = here.build_sample(self._recipe, plan.chunk)
        if self._stages.placer is not None:
            return self._stages.placer.spec(sample, plan.num_rows)
        return optree.tree_map(ArraySpec.of, sample)

    def close(self) -> None:
        """Ends all workers. Batches delivered stay valid. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _order(num_records: int, seed: int, shuffle: bool | BlockShuffle) -> Order:
    if isinstance(shuffle, BlockShuffle):
        return BlockShuffled(num_records, seed, shuffle)
    if not isinstance(shuffle, bool):
        raise TypeError(f"`shuffle` must be True, False or a feeder.BlockShuffle, got {shuffle!r}")
    return Shuffled(num_records, seed) if shuffle else Sequential(num_records)


def _num_records(source: Any) -> int:
    length = len(source)
    if not 1 <= length <= MAX_RECORDS:
        raise ValueError(f"`source` must hold 1 to 2**62 records, got {length}")
    return int(length)


def _check_some_batch(schedule: Schedule) -> None:
    """Refuses a run without a batch."""
    num_records, batch_size = schedule.num_records, schedule.batch_size
    if batch_size > num_records and schedule.last_batch == "drop":
        raise ValueError(
            f"`batch_size` must be at most {num_records}, the records of an epoch, with "
            f'`last_batch="drop"`, got {batch_size}: every batch would be dropped; use "keep", '
            '"pad" or "rollover"'
        )
    if schedule.num_steps == 0:
        raise ValueError(
            f"`batch_size` must be at most {num_records * (schedule.num_epochs or 1)}, the records "
            f'of all epochs, with `last_batch="rollover"`, got {batch_size}; use "keep" or "pad"'
        )
