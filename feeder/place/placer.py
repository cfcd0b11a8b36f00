"""Local batch + sharding → global `jax.Array`s.

Guarantees:
    * Rows of shards are views of the slot: no copy on the host. On CPU the jax.Array may be
      the slot's memory itself; its lease then lasts as long as the array.
    * The rows of this process follow from the sharding alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optree
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from feeder.plan.order import Indices
from feeder.plan.rows import rows_of_slices
from feeder.spec import ArraySpec

_PLACED = "biufcV"
"""Kinds of NumPy dtypes that go to the devices; V are the narrow floats of ml_dtypes."""


class Placer:
    """Places local batches with one sharding.

    Args:
        sharding: How every leaf of the global batch lies on the devices.
        batch_size: Rows of a global batch; None: every batch has its own number.

    Raises:
        TypeError: ``sharding`` is no `jax.sharding.Sharding`.
        ValueError: It does not divide the batch, or no device of this process is in it.
    """

    def __init__(self, sharding: Sharding, batch_size: int | None) -> None:
        if not isinstance(sharding, Sharding):
            raise TypeError(
                "`sharding` must be a jax.sharding.Sharding, as NamedSharding(mesh, P('data')), "
                f"got {sharding!r}"
            )
        if not sharding.addressable_devices:
            raise ValueError(
                f"`sharding` must have a device of this process (process {jax.process_index()}), "
                f"got {sharding}"
            )
        self._sharding = sharding
        self._by_rows = _batch_axis(sharding)
        if batch_size is not None:
            self.check_rows("`batch_size`", batch_size)
        self._local_counts: dict[int, int] = {}
        # Local row at which each shard begins, by its first row in the global batch; per size.
        self._starts: dict[int, dict[int, int]] = {}

    def check_rows(self, name: str, num_rows: int) -> None:
        """Checks that the sharding divides a batch of so many rows.

        Args:
            name: What has so many rows, for the message.
            num_rows: Rows of a global batch.

        Raises:
            ValueError: It does not.
        """
        shards = _num_shards(self._by_rows)
        if num_rows % shards == 0:
            return
        below, above = num_rows // shards * shards, -(-num_rows // shards) * shards
        nearest = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"{name} must be a multiple of {shards}, the number of shards that `sharding` cuts "
            f"the batch into, got {num_rows}; use {nearest}"
        )

    def local_rows(self, num_rows: int) -> Indices:
        """The rows of a global batch of ``num_rows`` that devices of this process hold.

        Raises:
            ValueError: The sharding does not divide so many rows.
        """
        self.check_rows("the number of rows", num_rows)
        return rows_of_slices(num_rows, self._row_slices(num_rows))

    def place(self, batch: Any, num_rows: int) -> Any:
        """Puts a local batch on the devices; leaves that are no numbers stay on the host.

        Args:
            batch: A pytree of arrays with the local rows.
            num_rows: Rows of the global batch.
        """
        leaves, treespec = optree.tree_flatten(batch)
        num_local = self._num_local(num_rows)
        placed = []
        for number, leaf in enumerate(leaves):
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in _PLACED:
                placed.append(leaf)
                continue
            if leaf.ndim == 0:
                name = treespec.accessors()[number].codify("batch")
                raise ValueError(
                    "every leaf of a batch must have rows to be placed, got a single value "
                    f"at {name}"
                )
            if len(leaf) != num_local:
                name = treespec.accessors()[number].codify("batch")
                raise ValueError(
                    f"every leaf of a batch must have {num_local} rows on this process to be "
                    f"placed, got {len(leaf)} in {name}"
                )
            shape = (num_rows, *leaf.shape[1:])
            shards: Any = self._shards(leaf, num_rows)
            try:
                array = jax.make_array_from_callback(shape, self._sharding, shards)
            except Exception as error:
                name = treespec.accessors()[number].codify("batch")
                error.add_note(f"{name}, of shape {shape}, does not fit {self._sharding}")
                raise
            placed.append(array)
        return treespec.unflatten(placed)

    def spec(self, batch: Any, num_rows: int) -> Any:
        """What `place` would make of a batch, without placing it."""

        def of(leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in _PLACED or leaf.ndim == 0:
                return ArraySpec.of(leaf)
            struct: Any = jax.ShapeDtypeStruct  # untyped in JAX
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
            return struct((num_rows, *leaf.shape[1:]), dtype, sharding=self._sharding)

        return optree.tree_map(of, batch)

    def _shards(
        self, leaf: NDArray[Any], num_rows: int
    ) -> Callable[[tuple[slice, ...]], NDArray[Any]]:
        if len(leaf) == num_rows:
            return leaf.__getitem__
        starts = self._starts.get(num_rows)
        if starts is None:
            rows = self.local_rows(num_rows)
            firsts = {part.indices(num_rows)[0] for part in self._row_slices(num_rows)}
            starts = {first: int(np.searchsorted(rows, first)) for first in firsts}
            self._starts[num_rows] = starts

        def shard(index: tuple[slice, ...]) -> NDArray[Any]:
            first, stop, _ = index[0].indices(num_rows)
            start = starts[first]
            return leaf[(slice(start, start + stop - first), *index[1:])]

        return shard

    def _num_local(self, num_rows: int) -> int:
        count = self._local_counts.get(num_rows)
        if count is None:
            count = self._local_counts[num_rows] = len(self.local_rows(num_rows))
        return count

    def _row_slices(self, num_rows: int) -> list[slice]:
        indices = self._by_rows.addressable_devices_indices_map((num_rows,))
        return [slice(None) if index is None else index[0] for index in indices.values()]


def _batch_axis(sharding: Sharding) -> Sharding:
    """The sharding of the rows alone, without the trailing axes."""
    if isinstance(sharding, NamedSharding):
        rows: Any = PartitionSpec  # untyped in JAX
        return NamedSharding(sharding.mesh, rows(*sharding.spec[:1]))
    return sharding


def _num_shards(by_rows: Sharding) -> int:
    if isinstance(by_rows, NamedSharding):
        axes = by_rows.spec[0] if len(by_rows.spec) else None
        names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
        return int(np.prod([by_rows.mesh.shape[name] for name in names], dtype=np.int64))
    if by_rows.is_fully_replicated:
        return 1
    count = len(by_rows.device_set)
    return count // by_rows.shard_shape((count,))[0]
