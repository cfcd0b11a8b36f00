"""What composition costs: microseconds of a batch of 256, beside the bare arrays and the others.

    python benchmarks/composition.py [--seconds 0.3] [--rounds 7] [--record-bytes 3072]

Batches are built in this process, shuffled, in rounds that take turns; a figure is the median of
the rounds, and "costs" is the median of the ratios within a round. All sources are over the same
arrays. PyTorch joins records by its default, Grain by its batch; where a peer is not installed it
is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import feeder

BATCH, RECORDS = 256, 40_000


def arrays(record_bytes: int) -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0).integers(0, 255, (RECORDS, record_bytes), np.uint8)
    return {"x": rows, "label": np.arange(RECORDS)}


def part(source: dict[str, np.ndarray], first: int, last: int) -> dict[str, np.ndarray]:
    return {name: array[first:last] for name, array in source.items()}


def ours(source: Any) -> Iterator[Any]:
    return iter(feeder.DataLoader(source, BATCH, shuffle=True, num_epochs=None))


def unshuffled(source: Any) -> Iterator[Any]:
    return iter(feeder.DataLoader(source, BATCH, num_epochs=None))


def feeders(whole: dict[str, np.ndarray]) -> dict[str, Iterator[Any]]:
    a, b = part(whole, 0, RECORDS // 2), part(whole, RECORDS // 2, RECORDS)
    even = np.arange(0, RECORDS, 2)
    parts = [part(whole, 1000 * i, 1000 * i + 1000) for i in range(RECORDS // 1000)]
    nested = feeder.subset(
        feeder.concat([a, feeder.repeat(feeder.subset(b, slice(9, None)), 2)]), even
    )
    floats = [0.123456789012345 * (i + 1) ** 1.5 for i in range(40)]
    return {
        "arrays": ours(whole),
        "concat of 2": ours(feeder.concat([a, b])),
        "concat of 40": ours(feeder.concat(parts)),
        "mix of 2, 3 to 1": ours(feeder.mix([a, b], [3, 1])),
        "mix of 2, in its own order": unshuffled(feeder.mix([a, b], [3, 1])),
        "mix of 2, weights of 17 digits": ours(feeder.mix([a, b], [np.pi, 1 / 3])),
        "mix of 40, its order, 17 digits": unshuffled(feeder.mix(parts, floats, length=10**9)),
        "subset": ours(feeder.subset(whole, even)),
        "filtered": ours(feeder.filtered(whole, lambda r: r["label"] % 2 == 0, progress=False)),
        "repeat": ours(feeder.repeat(whole, 3)),
        "zip of 2": ours(feeder.zip({"x": whole["x"], "y": {"label": whole["label"]}})),
        "four of these, nested": ours(nested),
    }


def torches(whole: dict[str, np.ndarray]) -> dict[str, Iterator[Any]]:
    from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

    class Rows(Dataset):
        def __init__(self, first: int, last: int) -> None:
            self.rows = part(whole, first, last)

        def __len__(self) -> int:
            return len(self.rows["label"])

        def __getitem__(self, index: int) -> Any:
            return {name: array[index] for name, array in self.rows.items()}

    def endless(dataset: Any) -> Iterator[Any]:
        loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    a, b = Rows(0, RECORDS // 2), Rows(RECORDS // 2, RECORDS)
    return {
        "torch arrays": endless(Rows(0, RECORDS)),
        "torch ConcatDataset of 2": endless(ConcatDataset([a, b])),
        "torch Subset": endless(Subset(Rows(0, RECORDS), range(0, RECORDS, 2))),
    }


def grains(whole: dict[str, np.ndarray]) -> dict[str, Iterator[Any]]:
    import grain

    class Rows:
        def __init__(self, first: int, last: int) -> None:
            self.rows = part(whole, first, last)

        def __len__(self) -> int:
            return len(self.rows["label"])

        def __getitem__(self, index: int) -> Any:
            return {name: array[index] for name, array in self.rows.items()}

    def of(first: int, last: int) -> Any:
        return grain.MapDataset.source(Rows(first, last)).shuffle(seed=0).repeat()

    a, b = of(0, RECORDS // 2), of(RECORDS // 2, RECORDS)

    def batches(dataset: Any) -> Iterator[Any]:
        return (dataset[i] for i in itertools.count())

    return {
        "grain arrays": batches(of(0, RECORDS).batch(BATCH)),
        "grain MapDataset.mix of 2": batches(
            grain.MapDataset.mix([a, b], weights=[3, 1]).batch(BATCH)
        ),
    }


def turn(batches: Iterator[Any], seconds: float) -> float:
    """Microseconds of a batch."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        next(batches)
        count += 1
    return elapsed / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record-bytes", type=int, default=3072)
    options = parser.parse_args()
    whole = arrays(options.record_bytes)
    found: dict[str, Iterator[Any]] = feeders(whole)
    peers: dict[str, Callable[[Any], dict[str, Iterator[Any]]]] = {
        "torch": torches,
        "grain": grains,
    }
    for name, make in peers.items():
        if importlib.util.find_spec(name):
            found |= make(whole)
    times: dict[str, list[float]] = {name: [] for name in found}
    for batches in found.values():
        turn(batches, options.seconds / 4)
    for _ in range(options.rounds):
        for name, batches in found.items():
            times[name].append(turn(batches, options.seconds))
    print(f"records of {options.record_bytes} bytes{'us per batch':>30}{'costs':>10}")
    for name, values in times.items():
        ratios = [one / bare for one, bare in zip(values, times["arrays"], strict=True)]
        print(f"{name:40}{statistics.median(values):12,.0f}{statistics.median(ratios):9.2f} ×")


if __name__ == "__main__":
    main()
