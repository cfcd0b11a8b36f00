"""The usual sharding of a batch, in one word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding


def batch_sharding(
    mesh: Mesh | None = None, axis: str | tuple[str, ...] | None = None
) -> NamedSharding:
    """Rows of a batch cut over an axis of a mesh; for ``sharding=``.

    Args:
        mesh: The mesh; None: one axis, ``"data"``, over all devices of the job.
        axis: Its axis, or several, that rows are cut over; None: the first.

    Returns:
        ``NamedSharding(mesh, PartitionSpec(axis))``.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The mesh has no such axis.
    """
    # Here, and not above: `import feeder` must not import jax.
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(
            f"`mesh` must be a jax.sharding.Mesh, or None for all devices, got {mesh!r}"
        )
    if not (axis is None or isinstance(axis, str) or type(axis) is tuple):
        raise TypeError(
            f"`axis` must be the name of a mesh axis, or a tuple of names, got {axis!r}"
        )
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()), ("data",))
    if axis is None:
        axis = mesh.axis_names[0]
    names = (axis,) if isinstance(axis, str) else tuple(axis)
    if missing := [name for name in names if name not in mesh.axis_names]:
        raise ValueError(
            f"`axis` must be of the axes of `mesh`, {mesh.axis_names}, got {missing[0]!r}"
        )
    spec: Any = PartitionSpec  # untyped in JAX
    return NamedSharding(mesh, spec(axis))
