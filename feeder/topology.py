"""Which rows of each batch this process holds, who places them, and who else is in the job."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optree

from feeder import arguments
from feeder.place.agreement import Agreement
from feeder.place.service import Service
from feeder.plan import rows
from feeder.plan.batches import LocalRows
from feeder.plan.order import Indices
from feeder.plan.schedule import Schedule

if TYPE_CHECKING:
    from feeder.place.placer import Placer


@dataclass(frozen=True, slots=True)
class Topology:
    """How the rows of a batch lie on processes and devices.

    Attributes:
        placer: Places batches; None: they stay on the host.
        local_rows: The rows of this process in a batch of so many rows.
        rows_of: The rows of every process in it.
        described: JSON-able, the same on all processes of a job.
    """

    placer: Placer | None
    local_rows: LocalRows
    rows_of: Callable[[int], Mapping[int, Indices]]
    described: Any


def agreement(sharding: Any, process_index: int | None) -> Agreement:
    """What compares the loader that is about to be made with those of the other processes.

    They are those that have a device in the sharding; without one, all processes, where JAX says
    which of them this is. A host that is simulated is compared with nobody.
    """
    if sharding is None and process_index is not None:
        return Agreement(None)
    in_mesh: set[int] = set()
    for leaf in optree.tree_leaves(sharding):
        with contextlib.suppress(Exception):  # no sharding, or one without devices: refused later
            in_mesh.update(device.process_index for device in leaf.device_set)
    return Agreement(Service.of(tuple(sorted(in_mesh or range(_jax_process()[1])))))


def of(
    batch_size: int | None,
    schedule: Schedule | None,
    masked: bool,
    sharding: Any,
    process_index: int | None,
    process_count: int | None,
) -> Topology:
    """How batches lie on processes and devices.

    Args:
        batch_size: Rows of a global batch; None: every batch has its own number.
        schedule: Says whether a shorter batch ends each epoch; None: nobody knows.
        masked: Whether batches gain a mask.
        sharding: How batches lie on the devices.
        process_index: Number of this process; None: JAX's own.
        process_count: Processes of the job; None: JAX's own.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The batches of the schedule cannot be split in this way.
    """
    if (process_index is None) != (process_count is None):
        raise ValueError(
            "`process_index` and `process_count` must be given together, got "
            f"{process_index} and {process_count}"
        )
    if sharding is not None:
        return _sharded(batch_size, schedule, masked, sharding, process_index, process_count)
    if process_index is None or process_count is None:
        index, count = _jax_process()
    else:
        count = arguments.integer("process_count", process_count, 1)
        index = arguments.integer("process_index", process_index, 0)
        if index >= count:
            raise ValueError(
                f"`process_index` must be below `process_count` = {count}, got {index}"
            )
    if batch_size is not None:
        _check_rows_split(batch_size, _shorter(schedule), count)

    def local_rows(num_rows: int) -> Indices:
        if num_rows % count:
            raise ValueError(
                f"the number of rows must be a multiple of the {count} processes, got {num_rows}"
            )
        return rows.rows_of_process(num_rows, index, count)

    def rows_of(num_rows: int) -> dict[int, Indices]:
        return {each: rows.rows_of_process(num_rows, each, count) for each in range(count)}

    return Topology(None, local_rows, rows_of, {"process_count": count})


def _sharded(
    batch_size: int | None,
    schedule: Schedule | None,
    masked: bool,
    sharding: Any,
    process_index: int | None,
    process_count: int | None,
) -> Topology:
    from feeder.place.placer import Placer  # imports jax, which `import feeder` must not

    placer = Placer(sharding, batch_size, masked)
    own = _jax_process()
    if process_index is not None and (process_index, process_count) != own:
        raise ValueError(
            f"`process_index` and `process_count` must be JAX's own, {own[0]} of {own[1]}, with a "
            f"`sharding`, got {process_index} of {process_count}; leave them out, or simulate "
            "hosts without a sharding"
        )
    if rest := _shorter(schedule):
        try:
            placer.check_rows("its rows", rest)
        except ValueError:
            raise ValueError(
                f'`last_batch="keep"` ends each epoch with a batch of {rest} rows, which '
                '`sharding` cannot cut evenly; use "pad"'
            ) from None
    return Topology(placer, placer.local_rows, placer.rows_of, placer.described)


def _check_rows_split(batch_size: int, shorter: int, process_count: int) -> None:
    if batch_size % process_count:
        raise ValueError(
            f"`batch_size` must be a multiple of the {process_count} processes, got {batch_size}"
        )
    if shorter % process_count:
        raise ValueError(
            f'`last_batch="keep"` ends each epoch with a batch of {shorter} rows, which '
            f'{process_count} processes cannot split evenly; use "pad"'
        )


def _shorter(schedule: Schedule | None) -> int:
    """Rows of the shorter batch that ends an epoch; 0 where there is none, or none known."""
    if schedule is None or schedule.last_batch != "keep":
        return 0
    return schedule.num_records % schedule.batch_size


def _jax_process() -> tuple[int, int]:
    """This process among those of the job, as JAX knows it where it is in use."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 0, 1
    return jax.process_index(), jax.process_count()
