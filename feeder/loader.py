"""The loader: checks what the user asked for, wires the stages, and owns the workers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from feeder import arguments, topology
from feeder.calling import Calling
from feeder.errors import ClosedError
from feeder.iterator import BatchIterator
from feeder.ordering import Ordering
from feeder.place.ends import Job
from feeder.place.replicas import ReplicaCheck
from feeder.plan.blocks import BlockShuffle
from feeder.plan.schedule import MAX_POSITIONS, START, Cursor, LastBatch
from feeder.plan.windows import WindowShuffle
from feeder.produce.bad import OnBadRecord
from feeder.produce.info import WorkerInfo
from feeder.produce.recipe import Recipe
from feeder.produce.transforms import Filter, FlatMap, RandomMap
from feeder.production import Production, WorkerType
from feeder.sample import Sample
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import RandomAccess
from feeder.sources.stream import Stream
from feeder.stages import Stages
from feeder.streaming import Streaming
from feeder.version import VERSION

if TYPE_CHECKING:
    from jax.sharding import Sharding


class DataLoader:
    """Deterministic batches of records, built ahead by workers and placed on devices.

    Batch *k* is a pure function of (source, seed, *k*), whatever the number of workers,
    processes and devices, after any crash and any resume.

    Every ``iter(loader)`` is a run of its own, from step 0; several may be open at once. They
    share the workers, which start with the first of them and live until `close`, the end of a
    ``with`` block, or the end of the loader and all its iterators.

    Args:
        source: Where records live: anything with ``len()`` and ``[]``. An array, or a dict or
            (named) tuple of arrays of one length, nested or not, is a source of its rows; a
            list is a source of its items. ``read(indices)`` → batch or ``__getitems__`` →
            records, where offered, is called once per batch instead of ``[]`` per record. Or a
            `Stream`; an iterable, or a function that returns an iterator: a stream of one shard.
            Or a `FromCallable`, which gives batches.
        batch_size: Rows of a global batch, over all processes and devices; None only with a
            ``batch_sampler``.
        shuffle: True: a permutation of the whole epoch, another one in each epoch. A
            `BlockShuffle`: for storage that reads best in runs. With a stream, a `WindowShuffle`;
            True: one of the default size.
        seed: The only source of randomness, a non-negative integer of any size.
        num_epochs: Passes over the source; None: for ever.
        last_batch: What becomes of an epoch's last records where they fill no batch:
            ``"drop"``; ``"keep"``, a shorter batch; ``"pad"``, a full one: a dict batch gains the
            key ``mask``, any other becomes ``(batch, mask)``, with True for real rows, and padding
            repeats the last of them; ``"rollover"``, they open the next epoch's first batch.
        sampler: Your own order in place of ``shuffle``: an object with ``len()`` and ``[]`` that
            gives record indices, asked anew in each epoch; a plain iterable of them works too, and
            is read again from its beginning on resume, unless it has ``state_dict`` and
            ``load_state_dict``, or ``get_state`` and ``set_state``, with JSON-able states.
            ``set_epoch(epoch)``, where it has one, is called before each epoch. `WeightedSampler`
            and `InfiniteSampler` draw with replacement.
        batch_sampler: Your own batches, in place of ``batch_size``, ``sampler``, ``shuffle`` and
            ``last_batch``: gives lists of record indices, in the same ways.
        transforms: Called on each record, in order, in the workers: a callable as
            ``transform(record)``, a `RandomMap` with a Generator as well; with a stream, a `Filter`
            or a `FlatMap` too.
        batch_transforms: Called on each whole local batch, in order, in the workers.
        collate: Makes a batch of a list of records; None: stacks every leaf. Numbers and arrays
            are stacked into arrays, other leaves into arrays of dtype object.
        num_workers: Workers; 0: batches are built in this process; ``"auto"``: measured at the
            first batch. It can never change a result.
        worker_type: ``"process"``, or ``"thread"``: for sources that release Python's global lock.
            In threads, what draws from the global `random` and `numpy.random` is not reproducible.
        chunks_per_batch: So many worker processes share a batch: one slow, large batch arrives
            sooner. With ``collate`` or ``batch_transforms``, which see the whole batch, one.
        prefetch_batches: Local batches built ahead; None: two for each worker, more while they
            are small.
        worker_init: Called once in each new worker, with its `WorkerInfo`; not where batches are
            built in this process.
        sharding: A `jax.sharding.Sharding` of the global batch, or a pytree prefix of them for its
            leaves: batches are pytrees of global `jax.Array`, already on their devices. None: NumPy
            arrays on the host.
        device_batches: Batches placed on the devices ahead of the one delivered (with
            ``num_workers=0``, one).
        max_memory_bytes: Most bytes of slots, in which batches are built and kept while they
            live; None: half the memory of the machine or container.
        timeout_s: Seconds that a worker may take for one chunk, before it is killed and the chunk
            given to another; the third time it is an error. None: no limit.
        max_restarts: Deaths of workers outlived in one run; None: as many as it takes, as long as
            batches come.
        on_bad_record: What becomes of a record whose read or transform raises: ``"raise"``;
            ``"skip"``, its row is left out and the batch shorter; ``"replace"``, another record of
            the epoch, drawn from (seed, position), is in its row. With a stream, ``"skip"`` gives
            the row to the next record of the shard, and there is no ``"replace"``.
        max_bad_records: Records that may be left out or replaced in one run; None: any number.
        process_index: Number of this process, with ``process_count``: given by hand, any host can
            be simulated. None: JAX's own with a sharding or where `jax.distributed` is
            initialised, else 0 of 1.
        process_count: Processes of the job, which split the rows of each batch evenly where no
            sharding says otherwise.
        snapshot_every: With a stream, steps between snapshots of its iterators' states.
        pin_memory: Whether slots are registered with the driver of a GPU that batches go to, which
            then reads them in place; where that cannot be done, a warning is logged.
        debug_checks: Whether the processes of a job compare their first records, at the start, and
            then every batch, before any of them gets it: all of them its step and leaves, those
            that hold the same rows their bytes. Costs milliseconds for each batch.

    In a job of several processes each of them makes the same loaders, in the same order: they
    compare source length, seed, batch size and the other arguments that make up the batches, and
    wait for each other up to five minutes (ten, where the first of them never comes). A loader that
    is one process's own has a sharding over its own devices, or ``process_index=0,
    process_count=1``. With a sharding, they open the same iterators as well, and compare the step
    and the leaves of the first batch of each, and of the first after a restore.

    Where a sharding cuts more than rows, one record is read, in this process, to see whether its
    leaves fit.

    Raises:
        TypeError: An argument has the wrong type, or cannot be pickled for the workers.
        ValueError: An argument has a value that cannot work.
        ProcessMismatchError: The processes of the job do not make the same loader.
    """

    def __init__(
        self,
        source: object,
        batch_size: int | None = None,
        *,
        shuffle: bool | BlockShuffle | WindowShuffle = False,
        seed: int = 0,
        num_epochs: int | None = 1,
        last_batch: LastBatch = "drop",
        sampler: Any = None,
        batch_sampler: Any = None,
        transforms: Sequence[Callable[[Any], Any] | RandomMap | Filter | FlatMap] = (),
        batch_transforms: Sequence[Callable[[Any], Any]] = (),
        collate: Callable[[list[Any]], Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        worker_type: WorkerType = "process",
        chunks_per_batch: int = 1,
        prefetch_batches: int | None = None,
        worker_init: Callable[[WorkerInfo], object] | None = None,
        sharding: Sharding | Any = None,
        device_batches: int = 2,
        max_memory_bytes: int | None = None,
        timeout_s: float | None = None,
        max_restarts: int | None = None,
        on_bad_record: OnBadRecord = "raise",
        max_bad_records: int | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
        snapshot_every: int = 1,
        pin_memory: bool = True,
        debug_checks: bool = False,
    ) -> None:
        self._asked = dict(locals())
        del self._asked["self"]
        with topology.agreement(sharding, process_index) as agreement:
            recipe = Recipe.of(
                source=source,
                transforms=transforms,
                collate=collate,
                batch_transforms=batch_transforms,
                seed=seed,
                worker_init=worker_init,
                on_bad_record=on_bad_record,
            )
            ordering = _ordering(
                recipe,
                snapshot_every,
                num_epochs=num_epochs,
                shuffle=shuffle,
                last_batch=last_batch,
                batch_size=batch_size,
                sampler=sampler,
                batch_sampler=batch_sampler,
            )
            recipe = ordering.recipe
            production = Production.of(
                num_workers=num_workers,
                worker_type=worker_type,
                chunks_per_batch=chunks_per_batch,
                prefetch_batches=prefetch_batches,
                max_memory_bytes=max_memory_bytes,
                timeout_s=timeout_s,
                max_restarts=max_restarts,
                pin_memory=pin_memory,
            )
            max_bad_records = arguments.optional_integer("max_bad_records", max_bad_records, 0)
            device_batches = arguments.integer("device_batches", device_batches, 1)
            debug_checks = arguments.boolean("debug_checks", debug_checks)
            streams = isinstance(ordering, Streaming)  # there the next record takes the row
            if sharding is not None and recipe.on_bad_record == "skip" and not streams:
                raise ValueError(
                    '`on_bad_record` must be "raise" or "replace" with a `sharding`, got "skip": '
                    "the shorter batch would not fit the devices"
                )
            placement = topology.of(
                ordering.batch_size,
                ordering.schedule,
                ordering.last_batch == "pad",
                sharding,
                process_index,
                process_count,
            )
            self._ordering = ordering
            service = agreement.service
            job = None if service is None else Job(service, placement.rows_of)
            order = ordering.on(placement.local_rows, job)
            placer = placement.placer
            self._sample = Sample(order, placer)
            producer = production.producer(recipe, self._sample, placer)
            self._feeds = order.feeds(producer)
            if production.num_workers == 0:
                device_batches = 1
            self._stages = Stages(
                feeds=self._feeds,
                identity=order.identity,
                producer=producer,
                placer=placer,
                batches_ahead=device_batches if placer else 0,
                max_bad_records=max_bad_records,
                replicas=functools.partial(
                    ReplicaCheck, agreement.service, placement.rows_of, debug_checks
                )
                if agreement.service is not None and (placer is not None or debug_checks)
                else None,
            )
            try:
                self._sample.check()
                if agreement.service is not None:
                    records = self._sample.digests() if debug_checks else None
                    agreement.settle(
                        {
                            **asdict(order.identity),
                            **recipe.described,
                            **ordering.described,
                            "max_bad_records": max_bad_records,
                            "sharding": placement.described,
                            "debug_checks": debug_checks,
                            "first records": records,
                            "feeder.__version__": VERSION,
                        }
                    )
            except BaseException:
                producer.close()
                raise
            # Also called when the loader and its iterators are gone, and at the interpreter's end.
            self._close = weakref.finalize(self, producer.close)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the constructor was given, defaults included, by name."""
        return self._asked.copy()

    def replace(self, **changes: Any) -> Self:
        """A new loader of the same arguments, but for ``changes``; this one stays as it is.

        Both read the same ``source`` and ``sampler`` objects. `copy.replace` (Python 3.13) does it.

        Args:
            **changes: Arguments of the constructor, by name.

        Raises:
            TypeError: There is no such argument, or it has the wrong type.
            ValueError: An argument has a value that cannot work.
        """
        return type(self)(**(self._asked | changes))

    __replace__ = replace

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; with ``last_batch="rollover"`` the fewest: some have one more.

        Raises:
            TypeError: It is not known before the sampler was read, or there is no end.
        """
        steps = self._feeds.steps_per_epoch
        if steps is None:
            raise TypeError(
                f"steps_per_epoch of a loader needs epochs of known length, and {self._why()}"
            )
        return steps

    def __len__(self) -> int:
        """Batches that ``iter(loader)`` delivers, over all epochs.

        Raises:
            TypeError: There is no end, with ``num_epochs=None``, or none known.
        """
        if self._feeds.num_steps is None:
            raise TypeError(f"len() of a loader needs an end, and {self._why()}")
        return self._feeds.num_steps

    def _why(self) -> str:
        """Why there is no end of the run, or of an epoch, or none known."""
        if self._feeds.steps_per_epoch is not None:
            return "`num_epochs` is None"
        return self._ordering.why_no_length

    def __iter__(self) -> BatchIterator:
        """Starts a run from step 0, and the workers, where there are none yet.

        Raises:
            ClosedError: The loader was closed.
            WorkerStartError: The system has no room for the workers.
        """
        return self._iterate(START, None)

    def _iterate(self, start: Cursor, epoch: int | None) -> BatchIterator:
        if self.closed:
            raise ClosedError
        return BatchIterator(self._stages, start, self, epoch)

    def batch(self, step: int) -> Any:
        """The local batch ``step``, computed here and now, without workers and without state.

        The same bits as those of a run from the start, as NumPy arrays of the rows of this process.
        With a sampler that is an iterable, all before it is read first.

        Args:
            step: Number of the batch, from 0 over all epochs.

        Raises:
            ValueError: There is no such step.
            Exception: Whatever user code raises, as in an iterator.
        """
        step = arguments.integer("step", step, 0)
        num_steps = self._feeds.num_steps
        if num_steps is not None and step >= num_steps:
            raise ValueError(f"`step` must be below {num_steps}, the steps of the run, got {step}")
        return self._feeds.batch(step)

    def epoch(self, epoch: int) -> BatchIterator:
        """An iterator over the batches of one epoch, for loops that count epochs.

        With ``last_batch="rollover"`` a batch belongs to the epoch of its last row.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            ValueError: There is no such epoch.
            TypeError: Where it begins is not known, with a sampler without ``len()``.
            ClosedError: The loader was closed.
        """
        epoch = arguments.integer("epoch", epoch, 0)
        last = self._ordering.last_epoch
        if last is not None and epoch > last:
            raise ValueError(f"`epoch` must be below `num_epochs` = {last + 1}, got {epoch}")
        start = self._feeds.epoch(epoch)
        if start is None:
            raise TypeError(
                f"epoch({epoch}) of a loader needs epochs of known length, and "
                f"{self._ordering.why_no_epoch}"
            )
        return self._iterate(start, epoch)

    @functools.cached_property
    def element_spec(self) -> Any:
        """Shape and dtype of every leaf of a full batch as delivered, in the batch's structure.

        Each leaf is an `ArraySpec`; with a sharding a `jax.ShapeDtypeStruct`, of the global shape,
        where it is placed. Reads one record, the first time.

        Raises:
            Exception: Whatever user code raises at that record.
        """
        return self._sample.spec()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._close.alive

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


def _ordering(recipe: Recipe, snapshot_every: Any, **asked: Any) -> Ordering | Streaming | Calling:
    """The order of records that the user asked for, checked."""
    if isinstance(recipe.source, FromCallable):
        return Calling.of(recipe, **asked)
    if isinstance(recipe.source, Stream):
        return Streaming.of(recipe, snapshot_every=snapshot_every, **asked)
    arguments.integer("snapshot_every", snapshot_every, 1)
    assert isinstance(recipe.source, RandomAccess)
    length = len(recipe.source)
    if not 1 <= length <= MAX_POSITIONS:
        raise ValueError(f"`source` must hold 1 to 2**62 records, got {length}")
    return Ordering.of(recipe, num_records=int(length), **asked)
