"""A picture of the images in a batch, side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.cli import text
from feeder.cli.leaves import as_array, is_numeric, named_leaves
from feeder.cli.subject import UsageError

_MOST = 64
"""Images in a picture."""

_GAP = 2
_MOST_SIDE = 2400
"""Pixels of the picture's longer side, at most."""

_LEAST_SIDE = 64
"""Pixels that the longer side of an image gets at least, as whole pixels of its own allow."""


def check(path: Path) -> None:
    """Sees, before anything is read, whether a picture can be written.

    Raises:
        UsageError: It cannot, or Pillow is missing.
    """
    _pillow()
    if not path.parent.is_dir():
        raise UsageError(f"`--png` must lie in a folder that is there, got {str(path)!r}")
    if path.is_dir():
        raise UsageError(f"`--png` must name a file, got the folder {str(path)!r}")


def write_grid(batch: Any, path: Path, leaf: str | None = None) -> str:
    """Writes a picture of the first images of a batch, and says what it shows.

    Args:
        batch: Any batch.
        path: A PNG file.
        leaf: The leaf with the images: its name, or the last key of it; None: the first leaf of
            shape (rows, height, width, 1, 3 or 4), or (rows, 1, 3 or 4, height, width).

    Raises:
        UsageError: There is no such leaf, or it holds no images.
    """
    name, images = _found(batch, leaf)
    images, scaled = as_bytes(images[:_MOST])
    picture = _pillow().fromarray(grid(images))
    picture.thumbnail((_MOST_SIDE, _MOST_SIDE))
    picture.save(path, format="PNG")
    return f"{path}: {text.count(len(images), 'image')} of {name}{scaled}"


def named(batch: Any) -> str | None:
    """The first leaf of a batch that holds images; None: none does."""
    for name, leaf in named_leaves(batch).items():
        if _as_images(as_array(leaf), strict=True) is not None:
            return name
    return None


def grid(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images of shape (N, H, W, C) in rows and columns, about as wide as high."""
    count, height, width, channels = images.shape
    if channels == 1:
        images = np.repeat(images, 3, axis=-1)
        channels = 3
    larger = max(1, _LEAST_SIDE // max(height, width))
    images = images.repeat(larger, axis=1).repeat(larger, axis=2)
    height, width = height * larger, width * larger
    columns = min(count, max(1, math.ceil(math.sqrt(count * height / width))))
    rows = math.ceil(count / columns)
    step_y, step_x = height + _GAP, width + _GAP
    shape = (rows * step_y + _GAP, columns * step_x + _GAP, channels)
    picture = np.full(shape, 128, np.uint8)
    for number, image in enumerate(images):
        y, x = _GAP + number // columns * step_y, _GAP + number % columns * step_x
        picture[y : y + height, x : x + width] = image
    return picture


def _found(batch: Any, asked: str | None) -> tuple[str, NDArray[Any]]:
    leaves = named_leaves(batch)
    if asked is None:
        if (name := named(batch)) is not None:
            images = _as_images(as_array(leaves[name]), strict=True)
            assert images is not None
            return name, images
        raise UsageError(
            "`--png` needs a leaf of shape (rows, height, width, 1, 3 or 4) or (rows, 1, 3 or 4, "
            f"height, width), got {_shapes(leaves)}; name one of two dimensions with --leaf"
        )
    fitting = [name for name in leaves if asked == name or name.endswith(f"[{asked!r}]")]
    if len(fitting) != 1:
        raise UsageError(f"`--leaf` must name one of {', '.join(leaves)}, got {asked!r}")
    images = _as_images(as_array(leaves[fitting[0]]), strict=False)
    if images is None:
        raise UsageError(
            "`--leaf` must name a leaf of images, of shape (rows, height, width), (rows, height, "
            f"width, 1, 3 or 4) or (rows, 1, 3 or 4, height, width), got {_shapes(leaves, fitting)}"
        )
    return fitting[0], images


def _as_images(array: NDArray[Any], strict: bool) -> NDArray[Any] | None:
    """The images of a leaf with their channels last; None: it holds none.

    Args:
        array: The leaf.
        strict: Whether it has to look like images: bytes or floats, with channels.
    """
    if not is_numeric(array.dtype) or not array.size:
        return None
    if strict and array.dtype.kind in "biu" and array.dtype != np.uint8:
        return None
    if not strict and array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4:
        return None
    if array.shape[-1] in (1, 3, 4):
        return array
    return np.moveaxis(array, 1, -1) if array.shape[1] in (1, 3, 4) else None


def as_bytes(images: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Images as bytes, and in words how their values were scaled."""
    if images.dtype == np.uint8:
        return images, ""
    values = images.astype(np.float64)
    finite = np.isfinite(values)
    least, greatest = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    values[~finite] = least
    if least >= 0 and greatest <= 1:
        return (values * 255).round().astype(np.uint8), ", values 0 to 1"
    if least >= 0 and greatest <= 255:
        return values.round().astype(np.uint8), ", values 0 to 255"
    scaled = (values - least) / ((greatest - least) or 1) * 255
    return scaled.round().astype(np.uint8), f", values {least:.3g} to {greatest:.3g}"


def _shapes(leaves: dict[str, Any], names: list[str] | None = None) -> str:
    arrays = {name: as_array(leaves[name]) for name in names or leaves}
    return ", ".join(f"{name} {array.dtype}{array.shape}" for name, array in arrays.items())


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "`--png` needs the package pillow: pip install 'jax-feeder[images]'"
        ) from error
    return Image
