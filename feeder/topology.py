"""Which rows of each batch this process holds, and who places them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from feeder import arguments
from feeder.plan import rows
from feeder.plan.order import Indices
from feeder.plan.schedule import Schedule

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from feeder.place.placer import Placer


def of(
    schedule: Schedule,
    sharding: Sharding | None,
    process_index: int | None,
    process_count: int | None,
) -> tuple[Placer | None, Callable[[int], Indices]]:
    """Who places batches, and the rows of this process in a batch of so many rows.

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
