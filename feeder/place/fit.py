"""What a sharding cuts, and whether a batch can be cut so. Pure questions to JAX's shardings."""

from __future__ import annotations

import reprlib
from typing import Any, TypeGuard

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

_PLACED = "biufcV"
"""Kinds of NumPy dtypes that go to the devices; V are the narrow floats of ml_dtypes."""


def is_placed(leaf: Any) -> TypeGuard[NDArray[Any]]:
    """Whether a leaf of a batch goes to the devices; others stay on the host."""
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in _PLACED


def batch_axis(sharding: Sharding) -> Sharding:
    """The sharding of the rows alone, without the trailing axes."""
    if isinstance(sharding, NamedSharding):
        rows: Any = PartitionSpec  # untyped in JAX
        return NamedSharding(sharding.mesh, rows(*sharding.spec[:1]))
    return sharding


def num_shards(sharding: Sharding, dimension: int) -> int:
    """Parts that one dimension of an array is cut into; of other shardings than named, the first.

    Args:
        sharding: Says so.
        dimension: 0 for the rows.
    """
    if isinstance(sharding, NamedSharding):
        names = _axes(sharding, dimension)
        return int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))
    if sharding.is_fully_replicated:
        return 1
    count = len(sharding.device_set)
    return count // sharding.shard_shape((count,))[0]


def sized(sharding: Sharding, dimension: int) -> str:
    """What cuts a dimension: ``mesh axis 'data' of size 8``."""
    if not isinstance(sharding, NamedSharding):
        return f"{type(sharding).__name__} over {len(sharding.device_set)} devices"
    sizes = [f"{name!r} of size {sharding.mesh.shape[name]}" for name in _axes(sharding, dimension)]
    return f"mesh {'axis' if len(sizes) == 1 else 'axes'} {' and '.join(sizes)}"


def check_fits(name: str, shape: tuple[int, ...], sharding: Sharding) -> None:
    """Checks that an array can be cut as the sharding says.

    Args:
        name: Of the leaf, for the message.
        shape: Of the global array.
        sharding: How it is to lie.

    Raises:
        ValueError: It cannot.
    """
    if not isinstance(sharding, NamedSharding):
        return
    if len(sharding.spec) > len(shape):
        raise ValueError(
            f"`sharding` must have a PartitionSpec of at most {len(shape)} for {name}, whose "
            f"shape is {shape}, got {sharding.spec}; give that leaf its own, with a dict of "
            "shardings in the form of the batch"
        )
    for dimension, size in enumerate(shape):
        if size % num_shards(sharding, dimension):
            raise ValueError(
                f"`sharding` must cut {name}, whose shape is {shape}, evenly, got dimension "
                f"{dimension}, of size {size}, over {sized(sharding, dimension)}"
            )


def described(sharding: Sharding) -> str:
    """The sharding in words that are the same on every process."""
    devices = [device.id for device in getattr(sharding, "_device_assignment", ())]
    if isinstance(sharding, NamedSharding):
        devices = [device.id for device in sharding.mesh.devices.flat]
        axes = ", ".join(f"{name!r}: {size}" for name, size in sharding.mesh.shape.items())
        words = f"NamedSharding(mesh {{{axes}}}, {sharding.spec})"
    else:
        words = type(sharding).__name__
    return f"{words} on devices {reprlib.repr(devices)}, {hash(tuple(devices)):x}"


def _axes(sharding: NamedSharding, dimension: int) -> tuple[Any, ...]:
    """Names of the mesh axes that cut a dimension."""
    axes = sharding.spec[dimension] if dimension < len(sharding.spec) else None
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)
