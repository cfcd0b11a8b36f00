"""Folders of images, and WebDataset's shards."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feeder.sources import ImageFolder, WebDataset


def pixels(number: int, height: int = 6, width: int = 8) -> np.ndarray:
    """An image that says which one it is."""
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_file(image: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w", **options: Any) -> Path:
    with tarfile.open(path, mode, **options) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def image_folder(folder: Path) -> tuple[Any, list[Any]]:
    names = [(label, number) for label in range(3) for number in range(10, 25)]
    for label, number in names:
        path = folder / f"class {label}" / f"{number}.png"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(as_file(pixels(100 * label + number)))
    records = [
        {"image": pixels(100 * label + number), "label": np.int32(label)} for label, number in names
    ]
    return ImageFolder(folder), records


def sample(number: int) -> dict[str, bytes]:
    return {
        f"{number:04}.png": as_file(pixels(number)),
        f"{number:04}.cls": str(number).encode(),
    }


def web_dataset(folder: Path) -> tuple[Any, None]:
    for shard, length in enumerate([14, 9, 20, 3]):
        path = folder / f"train-{shard}.tar"
        if not path.exists():
            numbers = range(100 * shard, 100 * shard + length)
            write_tar(path, {k: v for number in numbers for k, v in sample(number).items()})
    return WebDataset(str(folder / "train-{0..3}.tar"), length=46), None


MAKERS = {"image folder": image_folder, "webdataset": web_dataset}
