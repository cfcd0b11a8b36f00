"""Batches per second from arrays in memory: feeder beside PyTorch's DataLoader and Grain.

    python benchmarks/throughput.py [--seconds 1] [--rounds 5]

Shuffled batches of 200 KB and of 19 MB, delivered to a loop that only drops them. All loaders
are alive at once, and each has its turn in every round, so that a machine that slows down slows
all of them. A figure is the median of the rounds; ratios are taken within a round. Peers that are
not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

import feeder

try:
    import torch
    import torch.utils.data
except ImportError:
    torch = None
try:
    import grain
except ImportError:
    grain = None

WARM_UP_SHARE = 0.3
"""Part of a turn that goes before its measurement, to use up what was prefetched meanwhile."""


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, ...]
    batch_size: int
    num_records: int

    @property
    def batch_bytes(self) -> int:
        return self.batch_size * (int(np.prod(self.shape)) + 4)


CASES = [
    Case("200 KB", (28, 28), 256, 60_000),
    Case("19 MB", (224, 224, 3), 128, 4096),
]


@dataclass
class Contender:
    name: str
    batches: Iterator[object]
    rates: list[float] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        """Takes batches for a while and keeps the rate."""
        take_for(self.batches, seconds * WARM_UP_SHARE)
        began = time.perf_counter()
        count = take_for(self.batches, seconds)
        self.rates.append(count / (time.perf_counter() - began))


def take_for(batches: Iterator[object], seconds: float) -> int:
    until = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < until:
        next(batches)
        count += 1
    return count


def feeders(
    source: dict[str, np.ndarray], case: Case, stack: contextlib.ExitStack
) -> list[Contender]:
    found = []
    for num_workers in (0, 1, 2):
        loader = feeder.DataLoader(
            source, case.batch_size, shuffle=True, num_epochs=None, num_workers=num_workers
        )
        stack.enter_context(loader)
        found.append(
            Contender(f"feeder, {num_workers} worker{'s' * (num_workers != 1)}", iter(loader))
        )
    return found


def for_ever(make: Callable[[], Iterator[object]]) -> Iterator[object]:
    while True:
        yield from make()


def torches(source: dict[str, np.ndarray], case: Case) -> list[Contender]:
    """PyTorch's usual way, record by record, and its fastest: one gather per batch."""
    data = torch.utils.data
    tensors = {name: torch.from_numpy(array) for name, array in source.items()}

    class Records(data.Dataset):
        def __len__(self) -> int:
            return case.num_records

        def __getitem__(self, index: object) -> dict:
            return {name: tensor[index] for name, tensor in tensors.items()}

    found = []
    for num_workers in (0, 2):
        prefetches = (2, 8) if num_workers else (None,)
        for prefetch in prefetches:
            options = {
                "num_workers": num_workers,
                "prefetch_factor": prefetch,
                "persistent_workers": bool(num_workers),
            }
            beside = f", prefetch {prefetch}" if prefetch else ""
            sampler = data.BatchSampler(data.RandomSampler(Records()), case.batch_size, True)
            gathered = data.DataLoader(Records(), sampler=sampler, batch_size=None, **options)
            found.append(
                Contender(
                    f"torch, {num_workers} workers{beside}, gather",
                    for_ever(functools.partial(iter, gathered)),
                )
            )
        stacked = data.DataLoader(
            Records(), case.batch_size, shuffle=True, drop_last=True, **options
        )
        found.append(
            Contender(
                f"torch, {num_workers} workers{beside}, records",
                for_ever(functools.partial(iter, stacked)),
            )
        )
    return found


class Rows:
    """The same arrays as a Grain source."""

    def __init__(self, source: dict[str, np.ndarray]) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source["label"])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {name: array[index] for name, array in self._source.items()}


def grains(source: dict[str, np.ndarray], case: Case) -> list[Contender]:
    data = grain.MapDataset.source(Rows(source)).shuffle(seed=0).repeat(None)
    threaded = data.batch(case.batch_size, drop_remainder=True).to_iter_dataset()
    found = [Contender("grain, 16 threads", iter(threaded))]
    processes = grain.MultiprocessingOptions(num_workers=2)
    batched = data.to_iter_dataset().batch(case.batch_size, drop_remainder=True)
    found.append(Contender("grain, 2 workers", iter(batched.mp_prefetch(processes))))
    return found


def compare(case: Case, seconds: float, rounds: int) -> None:
    generator = np.random.default_rng(0)
    source = {
        "image": generator.integers(0, 256, (case.num_records, *case.shape), dtype=np.uint8),
        "label": np.arange(case.num_records, dtype=np.int32),
    }
    with contextlib.ExitStack() as stack:
        contenders = feeders(source, case, stack)
        if torch is not None:
            contenders += torches(source, case)
        if grain is not None:
            contenders += grains(source, case)
        for _ in range(rounds):
            for contender in contenders:
                contender.turn(seconds)
        report(case, contenders)


def report(case: Case, contenders: list[Contender]) -> None:
    ours = [contender for contender in contenders if contender.name.startswith("feeder")]
    two = ours[-1]
    print(f"\n{case.name}: {case.batch_size} × {case.shape} uint8 and a label, shuffled")
    print(f"{'':34}{'batches/s':>10}{'GB/s':>8}   feeder, 2 workers is")
    for contender in contenders:
        rate = statistics.median(contender.rates)
        ratio = statistics.median(a / b for a, b in zip(two.rates, contender.rates, strict=True))
        shown = f"{ratio:10.2f} ×" if contender is not two else ""
        print(f"{contender.name:34}{rate:10,.0f}{rate * case.batch_bytes / 1e9:8.2f}{shown}")
    for peer in ("torch", "grain"):
        rows = [contender for contender in contenders if contender.name.startswith(peer)]
        if rows:
            best = max(rows, key=lambda contender: statistics.median(contender.rates))
            ratio = statistics.median(a / b for a, b in zip(two.rates, best.rates, strict=True))
            print(f"best of {peer}: {best.name}; feeder with 2 workers is {ratio:.2f} × as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
    if grain is not None:
        from absl import flags

        flags.FLAGS(sys.argv[:1])  # Grain's workers need parsed flags
    for name, module in (("torch", torch), ("grain", grain)):
        print(
            f"{name}: {'not installed' if module is None else getattr(module, '__version__', '')}"
        )
    for case in CASES:
        compare(case, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
