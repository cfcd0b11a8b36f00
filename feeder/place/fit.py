"""What a sharding cuts, and whether a batch can be cut so. Pure questions to JAX's shardings."""

from __future__ import annotations

import reprlib
import zlib
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
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
            f"`sharding` must have a PartitionSpec of at most {len(shape)} entries for {name}, "
            f"whose shape is {shape}, got {sharding.spec}; give that leaf its own, with a dict of "
            "shardings in the form of the batch"
        )
    for dimension, size in enumerate(shape):
        if size % num_shards(sharding, dimension):
            raise ValueError(
                f"`sharding` must cut {name}, whose shape is {shape}, evenly, got dimension "
                f"{dimension}, of size {size}, over {sized(sharding, dimension)}; put None there"
            )


def check_narrow(name: str, leaf: NDArray[Any]) -> None:
    """Checks that integers of 64 bits fit what JAX keeps of them.

    Raises:
        ValueError: One does not.
    """
    kept = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if kept == leaf.dtype:
        return
    limits = np.iinfo(kept)
    for value in (int(leaf.min()), int(leaf.max())):
        if not limits.min <= value <= limits.max:
            raise ValueError(
                f"{name} must fit the 32 bits that JAX keeps of {leaf.dtype}, got {value}; set "
                "jax_enable_x64, or make it smaller in `transforms`"
            )


def described(name: str, sharding: Sharding) -> str:
    """The sharding in words that are the same on every process.

    Args:
        name: Its place in the tree of shardings.
        sharding: Any.
    """
    if not isinstance(sharding, NamedSharding):
        return f"{name}: {type(sharding).__name__} over {len(sharding.device_set)} devices"
    axes = ", ".join(f"{axis!r}: {size}" for axis, size in sharding.mesh.shape.items())
    cut = [_axes(sharding, dimension) for dimension in range(len(sharding.spec))]
    while cut and not cut[-1]:  # P("data") is P("data", None)
        cut.pop()
    devices = [device.id for device in sharding.mesh.devices.flat]
    order = f"{reprlib.repr(devices)}, {zlib.crc32(repr(devices).encode()):08x}"
    return f"{name}: mesh {{{axes}}} of devices {order}, cut by {cut}"


def check_sharding(name: str, sharding: Any) -> None:
    """Checks that it says of every row on which devices of this job it lies.

    Args:
        name: Its place in the tree of shardings, for the message.
        sharding: What was given.

    Raises:
        TypeError: It is no sharding of devices.
        ValueError: It leaves something open, or has no device of this process.
    """
    if not isinstance(sharding, Sharding):
        remedy = "use NamedSharding(mesh, P('data')), or feeder.batch_sharding(mesh)"
        if isinstance(sharding, jax.Device):
            remedy = "use SingleDeviceSharding(device)"
        raise TypeError(f"`{name}` must be a jax.sharding.Sharding, got {sharding!r}; {remedy}")
    if isinstance(sharding, NamedSharding):
        if not isinstance(sharding.mesh, Mesh):
            raise TypeError(
                f"`{name}` must have a mesh of devices, got {sharding.mesh!r}; use Mesh"
            )
        if PartitionSpec.UNCONSTRAINED in tuple(sharding.spec):
            raise ValueError(
                f"`{name}` must say how every axis is cut, got {sharding.spec}; use None for one "
                "that is whole"
            )
    if not sharding.addressable_devices:
        raise ValueError(
            f"`{name}` must have a device of this process (process {jax.process_index()}), got "
            f"{sharding}"
        )
    try:
        num_shards(sharding, 0)
    except Exception as error:
        raise ValueError(
            f"`{name}` must apply to arrays of any rank, got {sharding}; use NamedSharding"
        ) from error


def _axes(sharding: NamedSharding, dimension: int) -> tuple[Any, ...]:
    """Names of the mesh axes that cut a dimension."""
    axes = sharding.spec[dimension] if dimension < len(sharding.spec) else None
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)
