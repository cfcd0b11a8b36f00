"""Arrays of TensorStore's: a pytree in chunks of many records, a labelled axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from feeder.sources import TensorStore, write_tensorstore


def rows(num_records: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array of numbers that are all different."""
    size = num_records * int(np.prod(shape))
    return np.arange(size).astype(dtype).reshape(num_records, *shape)


def written(spec: Any, array: np.ndarray, **layout: Any) -> dict[str, Any]:
    """Writes an array with TensorStore alone; returns its spec."""
    store = ts.open(spec, create=True, dtype=array.dtype.name, shape=array.shape, **layout).result()
    store.write(array).result()
    return spec


def tree(folder: Path) -> tuple[Any, list[Any]]:
    image, label = rows(60, 2, 3), rows(60, dtype=np.int32)
    records = [{"image": image[i], "more": (label[i],)} for i in range(60)]
    if not (folder / "tree").exists():
        write_tensorstore(records, folder / "tree", chunk_records=8)
    return TensorStore(folder / "tree"), records


def volume(folder: Path) -> tuple[Any, list[Any]]:
    """Slices of an image with the axes x, y, z, channel along its z, whose first chunk is short."""
    array = rows(70, 4, 3, 1, dtype=np.uint16)
    spec = {"driver": "neuroglancer_precomputed", "kvstore": f"file://{folder}/volume/"}
    if not (folder / "volume").exists():
        layout = ts.ChunkLayout(chunk_shape=[4, 3, 8, 1])
        written(spec, np.moveaxis(array, 0, 2), chunk_layout=layout)
    part = {"input_inclusive_min": [0, 0, 5, 0], "input_exclusive_max": [4, 3, 65, 1]}
    inner = {"transform": {**part, "input_labels": ["x", "y", "z", "channel"]}}
    return TensorStore(spec | inner, axis="z"), list(array[5:65])


MAKERS = {"tensorstore": tree, "tensorstore, along z": volume}
