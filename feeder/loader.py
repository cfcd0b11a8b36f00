"""The loader: checks what the user asked for, wires the stages, and owns the workers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from feeder import arguments
from feeder.errors import ClosedError
from feeder.iterator import BatchIterator, Stages
from feeder.plan import rows, state
from feeder.plan.batches import Planner
from feeder.plan.order import MAX_RECORDS, Indices, Order, Sequential, Shuffled
from feeder.plan.schedule import LAST_BATCH, Cursor, LastBatch, Schedule
from feeder.produce.inline import Inline
from feeder.produce.memory import memory_limit_bytes
from feeder.produce.pool import Pool
from feeder.produce.recipe import Recipe
from feeder.produce.session import Producer
from feeder.produce.transforms import RandomMap
from feeder.sources import as_source

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from feeder.place.placer import Placer


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
        shuffle: True: a permutation of the whole epoch, another one in each epoch.
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
        shuffle: bool = False,
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
        shuffle = arguments.boolean("shuffle", shuffle)
        order: Order = Sequential(schedule.num_records)
        if shuffle:
            order = Shuffled(schedule.num_records, recipe.seed)
        placer, local_rows = _topology(schedule, sharding, process_index, process_count)
        self._schedule = schedule
        self._planner = Planner(schedule, order, local_rows)
        self._identity = state.Identity(
            num_records=schedule.num_records,
            batch_size=schedule.batch_size,
            seed=recipe.seed,
            shuffle=shuffle,
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
        if not self._close.alive:
            raise ClosedError
        return BatchIterator(self._stages, Cursor(0, 0), self)

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


def _topology(
    schedule: Schedule,
    sharding: Sharding | None,
    process_index: int | None,
    process_count: int | None,
) -> tuple[Placer | None, Callable[[int], Indices]]:
    """Who places batches, and the rows of this process in a batch of so many rows."""
    if (process_index is None) != (process_count is None):
        raise ValueError(
            "`process_index` and `process_count` must be given together, got "
            f"{process_index} and {process_count}"
        )
    if sharding is not None:
        return _sharded(schedule, sharding, process_index, process_count)
    if process_index is None or process_count is None:
        index, count = _jax_process()
    else:
        count = arguments.integer("process_count", process_count, 1)
        index = arguments.integer("process_index", process_index, 0)
        if index >= count:
            raise ValueError(
                f"`process_index` must be below `process_count` = {count}, got {index}"
            )
    _check_rows_split(schedule, count)
    return None, lambda num_rows: rows.rows_of_process(num_rows, index, count)


def _sharded(
    schedule: Schedule,
    sharding: Sharding,
    process_index: int | None,
    process_count: int | None,
) -> tuple[Placer, Callable[[int], Indices]]:
    from feeder.place.placer import Placer  # imports jax, which `import feeder` must not

    placer = Placer(sharding, schedule.batch_size)
    own = _jax_process()
    if process_index is not None and (process_index, process_count) != own:
        raise ValueError(
            f"`process_index` and `process_count` must be JAX's own, {own[0]} of {own[1]}, with a "
            f"`sharding`, got {process_index} of {process_count}; leave them out, or simulate "
            "hosts without a sharding"
        )
    if rest := _shorter(schedule):
        try:
            placer.check_rows("batch_size", rest)
        except ValueError:
            raise ValueError(
                f'`last_batch="keep"` ends each epoch with a batch of {rest} rows, which '
                '`sharding` cannot cut evenly; use "pad"'
            ) from None
    return placer, placer.local_rows


def _check_rows_split(schedule: Schedule, process_count: int) -> None:
    if schedule.batch_size % process_count:
        raise ValueError(
            f"`batch_size` must be a multiple of the {process_count} processes, got "
            f"{schedule.batch_size}"
        )
    if (rest := _shorter(schedule)) % process_count:
        raise ValueError(
            f'`last_batch="keep"` ends each epoch with a batch of {rest} rows, which '
            f'{process_count} processes cannot split evenly; use "pad"'
        )


def _shorter(schedule: Schedule) -> int:
    """Rows of the shorter batch that ends an epoch; 0 where there is none."""
    keeps = schedule.last_batch == "keep"
    return schedule.num_records % schedule.batch_size if keeps else 0


def _jax_process() -> tuple[int, int]:
    """This process among those of the job, as JAX knows it where it is in use."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 0, 1
    return jax.process_index(), jax.process_count()
