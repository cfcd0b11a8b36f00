"""Batches per second from arrays in memory: feeder beside PyTorch's DataLoader and Grain.

    python benchmarks/throughput.py [--seconds 1] [--rounds 5]

Shuffled batches of 200 KB and of 19 MB, delivered to a loop that only drops them. Every loader
lives in a process group of its own, which is stopped while it is not its turn, so that none works
at another's cost; turns go round, so that a machine that slows down slows all of them. A figure is
the median of the rounds; ratios are taken within a round. Peers that are not installed are left
out.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WARM_UP_SHARE = 0.4
"""Part of a turn that goes before its measurement, to use up what was prefetched before."""


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, ...]
    batch_size: int
    num_records: int

    @property
    def batch_bytes(self) -> int:
        return self.batch_size * (int(np.prod(self.shape)) + 4)


CASES = {
    "small": Case("200 KB", (28, 28), 256, 60_000),
    "large": Case("19 MB", (224, 224, 3), 128, 2048),
}

Source = dict[str, np.ndarray]


def feeder_batches(source: Source, case: Case, num_workers: int) -> Iterator[object]:
    import feeder

    return iter(
        feeder.DataLoader(
            source, case.batch_size, shuffle=True, num_epochs=None, num_workers=num_workers
        )
    )


def batches_by_hand(source: Source, case: Case) -> Iterator[object]:
    """What one process can do at best: a gather into the same buffers, again and again."""
    generator = np.random.default_rng(0)
    out = {
        name: np.empty((case.batch_size, *array.shape[1:]), array.dtype)
        for name, array in source.items()
    }
    while True:
        order = generator.permutation(case.num_records)
        for start in range(0, case.num_records - case.batch_size + 1, case.batch_size):
            rows = order[start : start + case.batch_size]
            for name, array in source.items():
                array.take(rows, axis=0, out=out[name], mode="clip")
            yield out


def torch_batches(
    source: Source, case: Case, num_workers: int, prefetch: int | None, gather: bool
) -> Iterator[object]:
    """PyTorch's usual way, record by record, or its other one: one gather per batch."""
    import torch
    import torch.utils.data as data

    tensors = {name: torch.from_numpy(array) for name, array in source.items()}

    class Records(data.Dataset):
        def __len__(self) -> int:
            return case.num_records

        def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
            return {name: tensor[index] for name, tensor in tensors.items()}

    options: dict[str, Any] = {
        "num_workers": num_workers,
        "prefetch_factor": prefetch,
        "persistent_workers": bool(num_workers),
    }
    if gather:
        sampler = data.BatchSampler(data.RandomSampler(Records()), case.batch_size, True)
        loader = data.DataLoader(Records(), sampler=sampler, batch_size=None, **options)
    else:
        loader = data.DataLoader(
            Records(), case.batch_size, shuffle=True, drop_last=True, **options
        )
    while True:
        yield from loader


class Rows:
    """The same arrays as a Grain source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source["label"])

    def __getitem__(self, index: int) -> Source:
        return {name: array[index] for name, array in self._source.items()}


def grain_batches(source: Source, case: Case, num_workers: int) -> Iterator[object]:
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # Grain's workers need parsed flags
    data = grain.MapDataset.source(Rows(source)).shuffle(seed=0).repeat(None)
    if not num_workers:
        return iter(data.batch(case.batch_size, drop_remainder=True).to_iter_dataset())
    batched = data.to_iter_dataset().batch(case.batch_size, drop_remainder=True)
    processes = grain.MultiprocessingOptions(num_workers=num_workers)
    return iter(batched.mp_prefetch(processes))


CONTENDERS: dict[str, Callable[[Source, Case], Iterator[object]]] = {
    "feeder, 2 workers": functools.partial(feeder_batches, num_workers=2),
    "feeder, 1 worker": functools.partial(feeder_batches, num_workers=1),
    "feeder, in process": functools.partial(feeder_batches, num_workers=0),
    "numpy.take by hand, in process": batches_by_hand,
    "torch, in process, gather": functools.partial(
        torch_batches, num_workers=0, prefetch=None, gather=True
    ),
    "torch, in process, records": functools.partial(
        torch_batches, num_workers=0, prefetch=None, gather=False
    ),
    "torch, 2 workers, gather": functools.partial(
        torch_batches, num_workers=2, prefetch=2, gather=True
    ),
    "torch, 2 workers, gather, prefetch 8": functools.partial(
        torch_batches, num_workers=2, prefetch=8, gather=True
    ),
    "torch, 2 workers, records, prefetch 8": functools.partial(
        torch_batches, num_workers=2, prefetch=8, gather=False
    ),
    "grain, 16 threads": functools.partial(grain_batches, num_workers=0),
    "grain, 2 workers": functools.partial(grain_batches, num_workers=2),
}
OURS = "feeder, 2 workers"
KINDS = ("torch, in process", "torch, 2 workers", "grain")


def serve(contender: str, case: Case) -> None:
    """Measures one contender, a turn for each line of input; runs in a process of its own."""
    warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
    generator = np.random.default_rng(0)
    source = {
        "image": generator.integers(0, 256, (case.num_records, *case.shape), dtype=np.uint8),
        "label": np.arange(case.num_records, dtype=np.int32),
    }
    batches = CONTENDERS[contender](source, case)
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line)
        take_for(batches, seconds * WARM_UP_SHARE)
        began = time.perf_counter()
        count = take_for(batches, seconds)
        print(count / (time.perf_counter() - began), flush=True)


def take_for(batches: Iterator[object], seconds: float) -> int:
    until = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < until:
        next(batches)
        count += 1
    return count


@dataclass
class Served:
    """A contender in its process group, stopped while it is not its turn."""

    name: str
    process: subprocess.Popen[str]
    rates: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, case: str) -> Served:
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, "--case", case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        served = cls(name, process)
        served.expect("ready")
        os.killpg(process.pid, signal.SIGSTOP)
        return served

    def turn(self, seconds: float) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        self.rates.append(float(self.expect("")))
        os.killpg(self.process.pid, signal.SIGSTOP)

    def expect(self, word: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(word) or not line:
            raise SystemExit(f"{self.name} ended: {line}")
        return line

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def compare(key: str, seconds: float, rounds: int) -> None:
    names = [
        name
        for name in CONTENDERS
        if name.split(",")[0] not in ("torch", "grain")
        or importlib.util.find_spec(name.split(",")[0])
    ]
    served: list[Served] = []
    try:
        for name in names:  # one by one, each known before the next can fail
            served.append(Served.start(name, key))  # noqa: PERF401
        for _ in range(rounds):
            for contender in served:
                contender.turn(seconds)
    finally:
        for contender in served:
            contender.end()
    report(CASES[key], served)


def report(case: Case, served: list[Served]) -> None:
    ours = next(contender for contender in served if contender.name == OURS)

    def ratio(contender: Served) -> float:
        return statistics.median(a / b for a, b in zip(ours.rates, contender.rates, strict=True))

    print(f"\n{case.name}: {case.batch_size} × {case.shape} uint8 and a label, shuffled")
    print(f"{'':38}{'batches/s':>10}{'GB/s':>8}   {OURS} is")
    for contender in served:
        shown = f"{ratio(contender):10.2f} ×" if contender is not ours else ""
        speed = contender.rate * case.batch_bytes / 1e9
        print(f"{contender.name:38}{contender.rate:10,.0f}{speed:8.2f}{shown}")
    for kind in KINDS:
        rows = [contender for contender in served if contender.name.startswith(kind)]
        if rows:
            best = max(rows, key=lambda contender: contender.rate)
            print(f"{OURS}: {ratio(best):.2f} × the best of {kind} ({best.name})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=CASES, help="one case only")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, CASES[options.case])
        return
    for peer in ("torch", "grain"):
        if not importlib.util.find_spec(peer):
            print(f"{peer}: not installed, left out")
    for key in [options.case] if options.case else CASES:
        compare(key, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
