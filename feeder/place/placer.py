"""Local batch + sharding → global `jax.Array`s.

Guarantees:
    * Rows of shards are views of the slot: no copy on the host. On CPU the jax.Array may be
      the slot's memory itself; its lease then lasts as long as the array.
    * The rows of this process follow from the sharding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optree
from jax.sharding import NamedSharding, Sharding
from numpy.typing import NDArray

from feeder.place.fit import (
    batch_axis,
    check_fits,
    check_narrow,
    check_sharding,
    described,
    is_placed,
    num_shards,
    sized,
)
from feeder.place.pinning import Pinner
from feeder.plan.order import Indices
from feeder.plan.rows import rows_of_slices
from feeder.spec import ArraySpec

_WIDE = "lqLQ"
"""Integers of 64 bits, of which JAX keeps 32 unless it is told to keep all."""


class Placer:
    """Places local batches.

    Attributes:
        described: The shardings in words, the same on every process.

    Args:
        sharding: How every leaf of the global batch lies on the devices; or a pytree prefix of the
            batch whose leaves say so of the batch's leaves below them.
        batch_size: Rows of a global batch; None: every batch has its own number.
        masked: Whether batches gain a mask; it lies as the rows of the first sharding do, where the
            prefix does not say.

    Raises:
        TypeError: ``sharding`` holds something else than `jax.sharding.Sharding`.
        ValueError: It does not divide the batch, leaves something open, or has no device of this
            process.
    """

    def __init__(self, sharding: Any, batch_size: int | None, masked: bool = False) -> None:
        shardings, self._prefix = optree.tree_flatten(sharding)
        if not shardings:
            raise TypeError(f"`sharding` must hold at least one sharding, got {sharding!r}")
        names = [accessor.codify("sharding") for accessor in self._prefix.accessors()]
        for name, leaf in zip(names, shardings, strict=True):
            check_sharding(name, leaf)
        self._masked = masked
        self._shardings: list[Sharding] = [*shardings, batch_axis(shardings[0])]
        self._by_rows = [batch_axis(leaf) for leaf in self._shardings]
        if batch_size is not None:
            self.check_rows("`batch_size`", batch_size)
        self._of_leaves: dict[optree.PyTreeSpec, list[int]] = {}
        self._local_counts: dict[int, int] = {}
        self._rows_of: dict[int, dict[int, Indices]] = {}
        self.described = [described(*pair) for pair in zip(names, shardings, strict=True)]
        # Local row at which each shard begins, by its first row; per sharding and size of batch.
        self._starts: dict[tuple[int, int], dict[int, int]] = {}

    def check_rows(self, name: str, num_rows: int) -> None:
        """Checks that the sharding divides a batch of so many rows.

        Args:
            name: What has so many rows, for the message.
            num_rows: Rows of a global batch.

        Raises:
            ValueError: It does not.
        """
        counts = [num_shards(rows, 0) for rows in self._by_rows]
        shards = math.lcm(*counts)
        if num_rows % shards == 0:
            return
        below, above = num_rows // shards * shards, -(-num_rows // shards) * shards
        nearest = f"{below} or {above}" if below else f"{above}"
        cut = {
            sized(rows, 0) for rows, count in zip(self._by_rows, counts, strict=True) if count > 1
        }
        raise ValueError(
            f"{name} must be a multiple of {shards}, the number of shards that `sharding` cuts "
            f"the batch into ({' and '.join(sorted(cut))}), got {num_rows}; use {nearest}"
        )

    @property
    def cuts_columns(self) -> bool:
        """Whether a sharding speaks of more than rows: it may then not fit a leaf."""
        return any(
            isinstance(each, NamedSharding) and len(each.spec) > 1 for each in self._shardings
        )

    def check_leaves(self, batch: Any, num_rows: int) -> None:
        """Checks that every leaf has the axes that its sharding cuts.

        Args:
            batch: A local batch, or one like it.
            num_rows: Rows of the global batch.

        Raises:
            ValueError: A leaf has not, or the tree of shardings is no prefix of the batch.
        """
        leaves, treespec = optree.tree_flatten(batch)
        names = [accessor.codify("batch") for accessor in treespec.accessors()]
        for name, leaf, which in zip(names, leaves, self._of_leaf(treespec), strict=True):
            if is_placed(leaf):
                check_fits(name, (num_rows, *leaf.shape[1:]), self._shardings[which])

    def local_rows(self, num_rows: int) -> Indices:
        """The rows of a global batch of ``num_rows`` that devices of this process hold.

        Raises:
            ValueError: The sharding does not divide so many rows.
        """
        self.check_rows("the number of rows", num_rows)
        slices = [part for each in self._by_rows for part in _row_slices(each, num_rows)]
        return rows_of_slices(num_rows, slices)

    def rows_of(self, num_rows: int) -> dict[int, Indices]:
        """The rows of a global batch that devices of each process hold."""
        found = self._rows_of.get(num_rows)
        if found is None:
            slices: dict[int, list[slice]] = {}
            for each in self._by_rows:
                device: Any  # not exported by JAX's types
                for device, index in each.devices_indices_map((num_rows,)).items():
                    part = slice(None) if index is None else index[0]
                    slices.setdefault(device.process_index, []).append(part)
            found = {process: rows_of_slices(num_rows, parts) for process, parts in slices.items()}
            self._rows_of[num_rows] = found
        return found

    def pinner(self) -> Pinner | None:
        """What pins slots for the devices, where that saves a copy."""
        return Pinner.of(self._shardings)

    def place(self, batch: Any, num_rows: int) -> Any:
        """Puts a local batch on the devices; leaves that are no numbers stay on the host.

        Args:
            batch: A pytree of arrays with the local rows.
            num_rows: Rows of the global batch.
        """
        leaves, treespec = optree.tree_flatten(batch)
        num_local = self._num_local(num_rows)
        placed = []
        for number, (leaf, which) in enumerate(zip(leaves, self._of_leaf(treespec), strict=True)):
            if not is_placed(leaf):
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
            if leaf.dtype.char in _WIDE and leaf.size:
                check_narrow(treespec.accessors()[number].codify("batch"), leaf)
            shape = (num_rows, *leaf.shape[1:])
            shards: Any = self._shards(leaf, num_rows, which)
            sharding = self._shardings[which]
            try:
                array = jax.make_array_from_callback(shape, sharding, shards)
            except Exception as error:
                name = treespec.accessors()[number].codify("batch")
                check_fits(name, shape, sharding)  # says it better, where that was the reason
                error.add_note(f"{name}, of shape {shape}, could not be placed as {sharding}")
                raise
            placed.append(array)
        return treespec.unflatten(placed)

    def spec(self, batch: Any, num_rows: int) -> Any:
        """What `place` would make of a batch, without placing it."""
        leaves, treespec = optree.tree_flatten(batch)
        specs = []
        for leaf, which in zip(leaves, self._of_leaf(treespec), strict=True):
            if not is_placed(leaf) or leaf.ndim == 0:
                specs.append(ArraySpec.of(leaf))
                continue
            struct: Any = jax.ShapeDtypeStruct  # untyped in JAX
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
            shape = (num_rows, *leaf.shape[1:])
            specs.append(struct(shape, dtype, sharding=self._shardings[which]))
        return treespec.unflatten(specs)

    def _of_leaf(self, treespec: optree.PyTreeSpec) -> list[int]:
        """Number of the sharding of each leaf of a batch.

        Raises:
            ValueError: The tree of shardings is no prefix of the batch.
        """
        found = self._of_leaves.get(treespec)
        if found is None:
            found = self._of_leaves[treespec] = self._broadcast(treespec)
        return found

    def _broadcast(self, treespec: optree.PyTreeSpec) -> list[int]:
        """Number of the leaf of the prefix that is above each leaf of a batch."""
        *numbers, of_mask = range(len(self._shardings))
        prefix: Any = self._prefix.unflatten(numbers)
        tree: Any = treespec.unflatten(range(treespec.num_leaves))
        found = [of_mask] * treespec.num_leaves
        if (
            self._masked
            and isinstance(tree, dict)
            and not (isinstance(prefix, dict) and "mask" in prefix)
        ):
            tree = {name: below for name, below in tree.items() if name != "mask"}
        elif self._masked and not isinstance(tree, dict):
            tree, _ = tree
        try:
            above = optree.broadcast_prefix(prefix, tree)
        except ValueError as error:
            raise ValueError(_misfit(prefix, tree, treespec)) from error
        for leaf, number in zip(optree.tree_leaves(tree), above, strict=True):
            found[leaf] = number
        return found

    def _shards(
        self, leaf: NDArray[Any], num_rows: int, which: int
    ) -> Callable[[tuple[slice, ...]], NDArray[Any]]:
        if len(leaf) == num_rows:
            return leaf.__getitem__
        starts = self._starts.get((which, num_rows))
        if starts is None:
            rows = self.local_rows(num_rows)
            slices = _row_slices(self._by_rows[which], num_rows)
            firsts = {part.indices(num_rows)[0] for part in slices}
            starts = {first: int(np.searchsorted(rows, first)) for first in firsts}
            self._starts[which, num_rows] = starts

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


def _misfit(prefix: Any, tree: Any, treespec: optree.PyTreeSpec) -> str:
    rule = "`sharding` must be a jax.sharding.Sharding or a pytree prefix of the batch"
    if isinstance(prefix, dict) and isinstance(tree, dict) and prefix.keys() != tree.keys():
        return f"{rule}, whose keys are {sorted(tree)}, got {sorted(prefix)}; give one for each key"
    return f"{rule}, which has the structure {treespec}, got {optree.tree_structure(prefix)}"


def _row_slices(by_rows: Sharding, num_rows: int) -> list[slice]:
    """The rows that each device of this process holds."""
    indices = by_rows.addressable_devices_indices_map((num_rows,))
    return [slice(None) if index is None else index[0] for index in indices.values()]
