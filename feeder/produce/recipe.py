"""What a worker must know: the user's source and code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feeder import arguments
from feeder.plan.windows import Lanes
from feeder.produce.bad import ON_BAD_RECORD, OnBadRecord
from feeder.produce.info import WorkerInfo, enter
from feeder.produce.transforms import Filter, FlatMap, OfSource, RandomMap
from feeder.sources.callable import FromCallable
from feeder.sources.protocol import Source, as_source
from feeder.sources.stream import Stream, shown, takes


@dataclass(frozen=True)
class Recipe:
    """Everything that a worker must know; pickled once.

    Attributes:
        source: Where records come from.
        transforms: Per record, in order: callables, `RandomMap`, `OfSource`.
        collate: List of records → batch; None: stack every leaf.
        batch_transforms: Per local batch, in order.
        seed: Key of all randomness.
        worker_init: Called once in each new worker.
        on_bad_record: What becomes of a record that cannot be read or transformed.
        lanes: How the shards are read, where the source is a stream.
    """

    source: Source
    transforms: tuple[Any, ...]
    collate: Callable[[list[Any]], Any] | None
    batch_transforms: tuple[Callable[[Any], Any], ...]
    seed: int
    worker_init: Callable[[WorkerInfo], object] | None = None
    on_bad_record: OnBadRecord = "raise"
    lanes: Lanes | None = None

    @classmethod
    def of(
        cls,
        *,
        source: Any,
        transforms: Any,
        collate: Any,
        batch_transforms: Any,
        seed: Any,
        worker_init: Any,
        on_bad_record: Any,
    ) -> Recipe:
        """Checks the arguments of a `DataLoader`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a value that cannot work.
        """
        source = as_source(source)
        transforms = arguments.callables(
            "transforms", transforms, "transform(record)", (RandomMap, Filter, FlatMap)
        )
        _check_transforms(source, transforms)
        if isinstance(source, Stream) and source.decode is not None:
            transforms = (OfSource(source.decode), *transforms)
        return cls(
            source,
            transforms,
            arguments.optional_callable("collate", collate, "collate(records)"),
            arguments.callables("batch_transforms", batch_transforms, "transform(batch)"),
            arguments.integer("seed", seed, 0),
            arguments.optional_callable("worker_init", worker_init, "worker_init(info)"),
            arguments.choice("on_bad_record", on_bad_record, ON_BAD_RECORD),
        )

    @property
    def described(self) -> dict[str, Any]:
        """Names of the user's code, JSON-able: what another process can compare."""
        return {
            "transforms": [_name(transform) for transform in self.transforms],
            "batch_transforms": [_name(transform) for transform in self.batch_transforms],
            "collate": None if self.collate is None else _name(self.collate),
            "on_bad_record": self.on_bad_record,
        }

    def start(self, worker_id: int, num_workers: int) -> None:
        """Makes this thread a worker."""
        info = WorkerInfo(worker_id, num_workers, self.seed)
        enter(info)
        if self.worker_init is not None:
            self.worker_init(info)


def _check_transforms(source: Source, transforms: tuple[Any, ...]) -> None:
    """Refuses what cannot be called with a record, or changes their number where it must not."""
    for place, transform in enumerate(transforms):
        if transform in (RandomMap, Filter, FlatMap):
            raise TypeError(
                f"`transforms[{place}]` must be callable as transform(record), got the class "
                f"{transform.__name__} itself; give {transform.__name__}(function)"
            )
        if isinstance(transform, RandomMap | Filter | FlatMap) or takes(transform, 1):
            continue
        remedy = "; wrap it in feeder.RandomMap, which gives it a Generator"
        raise TypeError(
            f"`transforms[{place}]` must be callable as transform(record), got {shown(transform)}"
            f"{remedy if takes(transform, 2) else ''}"
        )
    if isinstance(source, Stream):
        return
    for place, transform in enumerate(transforms):
        if isinstance(transform, Filter | FlatMap):
            remedy = (
                "let the function give what is wanted"
                if isinstance(source, FromCallable)
                else "use feeder.filtered(source, predicate), or make a stream of the source: "
                "lambda: (source[i] for i in range(len(source)))"
            )
            raise ValueError(
                f"`transforms[{place}]` must keep the number of records, unless `source` is a "
                f"stream, got a {type(transform).__name__}; {remedy}"
            )


def _name(function: Any) -> str:
    if isinstance(function, RandomMap | FlatMap | OfSource):
        return f"{type(function).__name__}({_name(function.function)})"
    if isinstance(function, Filter):
        return f"Filter({_name(function.predicate)})"
    if isinstance(function, functools.partial):
        return f"partial({_name(function.func)})"
    return getattr(function, "__qualname__", type(function).__qualname__)
