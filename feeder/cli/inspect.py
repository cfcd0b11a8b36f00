"""``feeder inspect``: what batches look like, how they are made up, and the first of them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.cli import images, plan, text
from feeder.cli.leaves import as_array, is_numeric, named_leaves
from feeder.cli.subject import Subject, UsageError
from feeder.sources.callable import FromCallable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--png", type=Path, metavar="FILE", help="write a picture of the first batch's images"
    )
    parser.add_argument(
        "--leaf",
        metavar="NAME",
        help="the leaf with the images, as image or batch['image']; default: the first that looks "
        "like images",
    )


def run(subject: Subject, png: Path | None = None, leaf: str | None = None) -> int:
    """Prints the spec, the plan, and the leaves of the first batch.

    Args:
        subject: The loader.
        png: Where to write a picture of the first batch's images.
        leaf: Leaf with the images; None: the first with the shape of images.

    Returns:
        1 where there is no batch.

    Raises:
        UsageError: The picture cannot be written, or there are no images.
    """
    if png is None and leaf is not None:
        raise UsageError("`--leaf` must be given together with `--png`, for which it chooses")
    if png is not None:
        images.check(png)
    with subject.load() as loader:
        began = time.perf_counter()
        with iter(loader) as batches:
            batch = next(batches, None)
            took = time.perf_counter() - began
        if batch is None:
            print(f"{subject.name}: a run without a batch")
            return 1
        live = isinstance(loader.arguments["source"], FromCallable)
        spec = _spec(batch if live else loader.element_spec)
        print(f"{subject.name}: batches of\n\n{spec}\n")
        print(f"plan\n\n{text.pairs(plan.described(loader, batch))}\n")
        print(f"first batch, after {text.duration(took)}\n\n{_contents(batch)}")
        if png is not None:
            print(f"\n{images.write_grid(batch, png, leaf)}")
        elif (found := images.named(batch)) is not None:
            print(f"\n{found} holds images: --png grid.png draws them")
    return 0


def _spec(spec: Any) -> str:
    rows = []
    for name, leaf in named_leaves(spec).items():
        shape, dtype = tuple(getattr(leaf, "shape", ())), getattr(leaf, "dtype", np.dtype(object))
        takes = "" if dtype.hasobject else text.size(int(np.prod(shape)) * dtype.itemsize)
        rows.append((name, str(shape), str(dtype), takes, _placed(leaf)))
    return text.table(("leaf", "shape", "dtype", "size", "lies on"), rows, right=(3,))


def _placed(leaf: Any) -> str:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return "the host"
    devices = text.count(len(sharding.device_set), "device")
    spec = getattr(sharding, "spec", None)
    return (
        devices
        if spec is None
        else f"{devices}, {spec}".replace("PartitionSpec", "P").replace(",)", ")")
    )


def _contents(batch: Any) -> str:
    rows = [(name, *values_of(as_array(leaf))) for name, leaf in named_leaves(batch).items()]
    return text.table(("leaf", "min", "max", "mean", "NaN"), rows, right=(1, 2, 3, 4))


def values_of(array: NDArray[Any]) -> tuple[str, str, str, str]:
    """Least, greatest, mean, and how many are no number."""
    if not is_numeric(array.dtype) or not array.size:
        first = "" if not array.size else _brief(array.reshape(-1)[0])
        return first, "", "", ""
    if array.dtype.kind in "biu":
        least, greatest = (f"{int(value):,}" for value in (array.min(), array.max()))
        return least, greatest, text.number(array.mean(dtype=np.float64)), "0"
    floats = array if array.dtype.kind == "f" else array.astype(np.float32)
    missing = np.isnan(floats)
    count = int(missing.sum())
    if count:
        floats = floats[~missing]
    if not floats.size:
        return "", "", "", f"{count:,}"
    with np.errstate(all="ignore"):  # infinities
        found = (floats.min(), floats.max(), floats.mean(dtype=np.float64))
    least, greatest, mean = (text.number(float(value)) for value in found)
    return least, greatest, mean, f"{count:,}"


def _brief(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
