"""Images in files, decoded by Pillow.

Guarantees:
    * The pixels depend on the bytes, the arguments and the version of Pillow alone.
    * Whatever is wrong with an image is a ValueError, of the same text in every run.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder import arguments

EXTENSIONS = (
    *("avif", "bmp", "gif", "j2k", "jp2", "jpe", "jpeg", "jpg", "jfif", "pbm", "pgm", "png"),
    *("pnm", "ppm", "tif", "tiff", "webp"),
)
"""Of the files that are taken for images, in lower case."""

MODES = ("RGB", "RGBA", "L")

_ORIENTATION = 274
"""EXIF's number for it."""


def decode_image(
    data: bytes, *, mode: str | None = "RGB", size: Sequence[int] | None = None
) -> NDArray[Any]:
    """Decodes the bytes of an image file: the first frame, turned as its EXIF orientation says.

    Args:
        data: A JPEG, PNG, WebP, GIF, TIFF or whatever else Pillow knows.
        mode: ``"RGB"``, ``"RGBA"`` or ``"L"`` (grey): uint8. Palettes, CMYK and grey of 16 bits
            (its upper 8) are converted, transparency is dropped. None: as stored, which may be
            palette indices, bools, uint16 or float32.
        size: (height, width) in pixels to resize to, whatever the image's proportions, by bilinear
            interpolation that averages where it makes an image smaller. A JPEG that is at
            least twice as large both ways is decoded at 1/2, 1/4 or 1/8 of its size before.

    Returns:
        A new array of shape (height, width, channels), uint8; with ``mode=None`` perhaps without
        channels.

    Raises:
        ValueError: The image is cut short, damaged, no image, or larger than Pillow's limit.
        ImportError: Pillow is not installed.
    """
    check(mode, size)
    image = package("decode_image")
    try:
        pixels: NDArray[Any] = _decoded(image, data, mode, size)
    except MemoryError:
        raise
    except image.UnidentifiedImageError:  # its text has an address in memory
        got = "no format that Pillow knows" if data else "no bytes"
        raise ValueError(f"the image cannot be decoded, got {got}") from None
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ValueError(f"the image cannot be decoded, got {got}") from error
    return pixels


def check(mode: Any, size: Any) -> None:
    """Checks the arguments of `decode_image`.

    Raises:
        TypeError: ``size`` is no pair of integers.
        ValueError: A value is out of range.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"`mode` must be 'RGB', 'RGBA', 'L' or None, got {mode!r}")
    if size is None:
        return
    if isinstance(size, str) or not isinstance(size, Sequence) or len(size) != 2:
        raise TypeError(f"`size` must be (height, width) in pixels, got {size!r}")
    for number, length in enumerate(size):
        arguments.integer(f"size[{number}]", length, 1)


@functools.lru_cache(8)
def package(source: str) -> Any:
    """The module `PIL.Image`.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError(
            f"feeder.sources.{source} needs the package pillow: pip install 'jax-feeder[images]'"
        ) from error
    return PIL.Image


def _decoded(module: Any, data: bytes, mode: str | None, size: Sequence[int] | None) -> Any:
    with module.open(io.BytesIO(data)) as opened:
        image = opened
        orientation = image.getexif().get(_ORIENTATION, 1)
        wanted = None if size is None else (int(size[1]), int(size[0]))  # as Pillow has it
        if wanted is not None:
            image.draft(None, wanted[::-1] if orientation >= 5 else wanted)
        if orientation != 1:
            from PIL import ImageOps

            image = ImageOps.exif_transpose(image)
        image = _converted(module, image, mode)
        if wanted is not None and image.size != wanted:
            image = image.resize(wanted, module.Resampling.BILINEAR)
        pixels = np.array(image)  # of its own: Pillow's is read-only
    return pixels[..., None] if mode == "L" else pixels


def _converted(module: Any, image: Any, mode: str | None) -> Any:
    if mode is None or image.mode == mode:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow would cut the values off at 255.
        image = module.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, which have no place in 8; use `mode=None`")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns
    return image.convert(mode)
