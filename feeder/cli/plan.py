"""What a loader is going to do, in words."""

from __future__ import annotations

from typing import Any

from feeder.calling import Calling
from feeder.cli import text
from feeder.cli.leaves import num_bytes
from feeder.loader import DataLoader
from feeder.ordering import Ordering
from feeder.produce.cpus import available_cpus
from feeder.produce.recipe import Recipe
from feeder.streaming import Streaming

_SHOWN = 12
"""Records of the first batch that are listed."""


def described(loader: DataLoader, batch: Any) -> list[tuple[str, str]]:
    """Each part of the plan with its name.

    Args:
        loader: Which has delivered a batch.
        batch: That batch.
    """
    ordering, asked = loader._ordering, loader.arguments
    return [
        ("records", _records(ordering)),
        ("steps", _steps(loader)),
        ("order", _order(asked, ordering)),
        ("batch", _rows(loader)),
        ("batch 0", _first_records(loader)),
        ("recipe", _recipe(ordering.recipe)),
        ("workers", _workers(asked)),
        ("memory", _memory(loader, batch)),
    ]


def _records(ordering: Ordering | Streaming | Calling) -> str:
    if isinstance(ordering, Ordering):
        return f"{ordering.num_records:,}"
    if isinstance(ordering, Calling):
        return "live: a function gives each batch"
    stream = ordering.stream
    length = "not known beforehand" if stream.length is None else f"{stream.length:,}"
    shards = text.count(stream.num_shards, "shard")
    return f"{length}; a stream of {shards}, {stream.cycle_length:,} side by side"


def _steps(loader: DataLoader) -> str:
    per_epoch, steps = loader._feeds.steps_per_epoch, loader._feeds.num_steps
    if per_epoch is None:
        return f"not known beforehand: {loader._why()}"
    if steps is None:
        return f"{per_epoch:,} in each epoch, for ever"
    epochs = loader.arguments["num_epochs"]
    about = "" if steps == epochs * per_epoch else "at least "
    return f"{steps:,}: {text.count(epochs, 'epoch')} of {about}{per_epoch:,}"


def _order(asked: dict[str, Any], ordering: Ordering | Streaming | Calling) -> str:
    if isinstance(ordering, Calling):
        return "that of the function's calls"
    for name in ("batch_sampler", "sampler"):
        if asked[name] is not None:
            return f"{name}: {type(asked[name]).__name__}, seed {asked['seed']}"
    if asked["shuffle"] is False:
        return "that of the source"
    how = "shuffled" if asked["shuffle"] is True else repr(asked["shuffle"])
    return f"{how}, seed {asked['seed']}"


def _rows(loader: DataLoader) -> str:
    ordering = loader._ordering
    if ordering.batch_size is None:
        return "as many rows as the batch_sampler says"
    rows = f"{ordering.batch_size:,} rows"
    if not isinstance(ordering, Calling):
        plan = loader._sample.plan()
        if len(plan.chunk.indices) != plan.num_rows:
            rows += f", of which this process holds {len(plan.chunk.indices):,}"
    return f"{rows}; the last of an epoch: {ordering.last_batch!r}"


def _first_records(loader: DataLoader) -> str:
    if not isinstance(loader._ordering, Ordering):
        return "whatever comes first"
    indices = loader._sample.plan().chunk.indices
    shown = ", ".join(f"{index}" for index in indices[:_SHOWN].tolist())
    return f"records {shown}" + (", …" if len(indices) > _SHOWN else "")


def _recipe(recipe: Recipe) -> str:
    described = recipe.described
    stages = [
        *described["transforms"],
        described["collate"] or "stack",
        *described["batch_transforms"],
    ]
    bad = "" if recipe.on_bad_record == "raise" else f"; bad records: {recipe.on_bad_record!r}"
    return " → ".join(["read", *stages]) + bad


def _workers(asked: dict[str, Any]) -> str:
    workers, cpus = asked["num_workers"], available_cpus()
    here = f"this machine has {text.count(cpus, 'CPU')}"
    if workers == 0:
        return f"none: batches are built in this process; {here}"
    kind = "threads" if asked["worker_type"] == "thread" else "processes"
    if workers == 1:
        kind = asked["worker_type"]
    chunks = asked["chunks_per_batch"]
    shared = f", {chunks} of which share a batch" if chunks > 1 else ""
    return f"{workers} {kind}{shared}; {here}"


def _memory(loader: DataLoader, batch: Any) -> str:
    takes, window = num_bytes(batch), loader._stages.producer.window
    share = f"{text.size(takes)} for each batch"
    if loader.arguments["num_workers"] == 0:
        return share
    return f"{share}; {window} are built ahead: {text.size(takes * window)}"
