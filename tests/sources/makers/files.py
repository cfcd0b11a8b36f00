"""Files: .npy, ArrayRecord, Parquet, Arrow, HDF5; and data sets of Hugging Face's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder.sources

ROWS = 60


def columns() -> dict[str, Any]:
    """Numbers of several dtypes, of one axis and of two, and texts."""
    return {
        "x": np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3),
        "label": np.arange(ROWS, dtype=np.int16) % 7,
        "name": [f"number {'é' * (row % 4)}{row}" for row in range(ROWS)],
    }


def listed(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: column[row] for name, column in tree.items()} for row in range(ROWS)]


def table() -> Any:
    """The columns, as a table."""
    import pyarrow as pa

    tree = columns()
    x = pa.FixedSizeListArray.from_arrays(pa.array(tree["x"].ravel()), 3)
    return pa.table({"x": x, "label": tree["label"], "name": tree["name"]})


def npy(folder: Path) -> tuple[Any, list[Any]]:
    tree = {name: column for name, column in columns().items() if name != "name"}
    paths = {name: folder / f"{name}.npy" for name in tree}
    for name, path in paths.items():
        if not path.exists():
            np.save(path, tree[name])
    return feeder.sources.Npy(paths), listed(tree)


def memmap(folder: Path) -> tuple[Any, list[Any]]:
    path = folder / "tokens.bin"
    if not path.exists():
        np.arange(ROWS * 4, dtype=np.uint16).tofile(path)
    rows = np.memmap(path, np.uint16, "r").reshape(ROWS, 4)[::-1]
    return rows, list(np.array(rows))


def arrayrecord(folder: Path) -> tuple[Any, list[Any]]:
    from array_record.python.array_record_module import ArrayRecordWriter

    labels = columns()["label"]
    for number, part in enumerate((labels[:25], labels[25:])):
        path = folder / f"part-{number}.array_record"
        if not path.exists():
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for label in part:
                writer.write(label.tobytes())
            writer.close()
    source = feeder.sources.ArrayRecord(
        folder / "part-*.array_record", decode=lambda data: {"label": np.frombuffer(data, np.int16)}
    )
    return source, [{"label": label[None]} for label in labels]


def parquet(folder: Path) -> tuple[Any, list[Any]]:
    import pyarrow.parquet

    for number, rows in enumerate((table()[:31], table()[31:])):
        path = folder / f"part-{number}.parquet"
        if not path.exists():
            pyarrow.parquet.write_table(rows, path, row_group_size=8)
    return feeder.sources.Parquet(folder, cache_bytes=1000), listed(columns())


@pytest.mark.matrix  # what workers read it with is what they read Parquet with
def arrow(folder: Path) -> tuple[Any, list[Any]]:
    import pyarrow.feather

    path = folder / "table.arrow"
    if not path.exists():
        pyarrow.feather.write_feather(table(), path, compression="uncompressed", chunksize=9)
    return feeder.sources.Arrow(path), listed(columns())


def hdf5(folder: Path) -> tuple[Any, list[Any]]:
    import h5py

    path, tree = folder / "rows.h5", columns()
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("train/x", data=tree["x"], chunks=(7, 3), compression="gzip")
            file["train/label"] = tree["label"]
            file["train/name"] = tree["name"]
    return feeder.sources.HDF5(path, {name: f"train/{name}" for name in tree}), listed(tree)


@pytest.mark.matrix  # each worker imports pandas and more
def huggingface(_folder: Path) -> tuple[Any, list[Any]]:
    import datasets

    return datasets.Dataset(table()), listed(columns())


MAKERS = {
    "npy": npy,
    "memmap": memmap,
    "ArrayRecord": arrayrecord,
    "Parquet": parquet,
    "Arrow": arrow,
    "HDF5": hdf5,
    "Hugging Face": huggingface,
}
