"""How full packed records are, and how fast they come: feeder beside Grain's packers.

    python benchmarks/packing.py [--seconds 1] [--rounds 3] [--documents 50000]

Documents of log-normal lengths (median 330 tokens, mean 600), uint16, in memory, packed into
records of 1 024 and of 2 048 tokens. Packers that keep documents whole get them cut at a record's
length, all of them the same ones; those that concatenate and split get them as they are. Grain's
are given bins that they fill side by side: 64, and 1 024. Fill is the share of tokens that is no
padding, over all documents. Speed is of batches of 64 records in one process, in turns, as in
throughput.py, and ratios are taken within a round. Without Grain, feeder stands alone.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from streams import flow
from throughput import Served

BATCH = 64
Documents = list[np.ndarray]
Packer = Callable[[Documents, int], Any]
"""Makes a source, or a Grain data set, of packed records."""


def documents(count: int, longest: int | None) -> Documents:
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.lognormal(5.8, 1.1, count), 1).astype(int)
    if longest is not None:
        lengths = np.minimum(lengths, longest)
    tokens = rng.integers(1, 50_000, int(lengths.sum()), np.uint16)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def ours(found: Documents, length: int, **options: Any) -> Any:
    import feeder

    return feeder.pack(found, length, **options)


def streamed(found: Documents, length: int, **options: Any) -> Any:
    import feeder

    return feeder.pack(feeder.Stream(lambda _shard, _epoch, _state: iter(found)), length, **options)


def grains(found: Documents, length: int, packer: str, bins: int | None = None) -> Any:
    import grain

    data = grain.MapDataset.source(found).map(_named).to_iter_dataset()
    options: dict[str, Any] = {"length_struct": {"tokens": length}}
    if bins is not None:
        options |= {"num_packing_bins": bins, "shuffle_bins": False}
    return getattr(grain.experimental, packer)(data, **options)


def _named(tokens: np.ndarray) -> dict[str, np.ndarray]:
    return {"tokens": tokens}


OURS, OURS_SPLIT = "feeder, best fit", "feeder, split"
bind = functools.partial
PACKERS: dict[str, Packer] = {
    OURS: ours,
    "feeder, best fit, window 4 096": bind(ours, window=4096),
    "feeder, best fit, stream": streamed,
    "grain, first fit, 64 bins": bind(grains, packer="FirstFitPackIterDataset", bins=64),
    "grain, first fit, 1 024 bins": bind(grains, packer="FirstFitPackIterDataset", bins=1024),
    "grain, best fit, 64 bins": bind(grains, packer="BestFitPackIterDataset", bins=64),
    "grain, best fit, 1 024 bins": bind(grains, packer="BestFitPackIterDataset", bins=1024),
    OURS_SPLIT: bind(ours, strategy="split"),
    "feeder, split, stream": bind(streamed, strategy="split"),
    "grain, concat then split": bind(grains, packer="ConcatThenSplitIterDataset"),
}


def batches(name: str, packed: Any) -> Iterator[Any]:
    if name.startswith("grain"):
        import grain

        return iter(grain.experimental.RepeatIterDataset(packed).batch(BATCH))
    import feeder

    shuffle = "stream" not in name
    return iter(feeder.DataLoader(packed, BATCH, shuffle=shuffle, num_epochs=None))


def fill_of(name: str, found: Documents, packed: Any, length: int) -> float:
    if hasattr(packed, "fill_ratio"):
        return float(packed.fill_ratio)
    if name.startswith("grain"):
        records = sum(1 for _ in packed)
    else:
        shard = packed.open(0, 0, None)
        records = sum(1 for _ in shard)
    return sum(map(len, found)) / (records * length)


class Contender(Served):
    """One of `PACKERS`."""

    fill: float
    plan_s: float

    @classmethod
    def start(cls, name: str, case: str) -> Contender:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, __file__, "--serve", name, *case.split()]
        contender = cls(name, subprocess.Popen(command, text=True, process_group=0, **pipes))
        contender.fill, contender.plan_s = map(float, contender.expect("").split())
        contender.expect("ready")
        os.killpg(contender.process.pid, signal.SIGSTOP)
        return contender

    def times(self, other: Contender) -> float:
        return float(np.median(np.divide(self.rates, other.rates)))


def serve(name: str, count: int, length: int) -> None:
    warnings.filterwarnings("ignore")
    found = documents(count, None if "split" in name else length)
    importlib.import_module(name.split(",")[0])
    began = time.perf_counter()
    packed = PACKERS[name](found, length)
    plan_s = time.perf_counter() - began
    print(fill_of(name, found, packed, length), plan_s, flush=True)
    turn = flow(batches(name, packed))
    print("ready", flush=True)
    for line in sys.stdin:
        print(turn(float(line)), flush=True)


def compare(length: int, options: argparse.Namespace) -> None:
    found: list[Contender] = []
    try:
        for name in PACKERS:
            if name.startswith("feeder") or importlib.util.find_spec("grain"):
                case = f"--length {length} --documents {options.documents}"
                found.append(Contender.start(name, case))
        for _, contender in itertools.product(range(options.rounds), found):
            contender.turn(options.seconds)
    finally:
        for contender in found:
            contender.end()
    print(f"\n{options.documents:,} documents into records of {length:,} tokens, one process")
    print(f"{'':34}{'fill':>9}{'plan s':>8}{'records/s':>11}{'Mtokens/s':>11}   feeder is")
    for one in found:
        records = one.rate * BATCH
        print(f"{one.name:34}{one.fill:9.3%}{one.plan_s:8.2f}{records:11,.0f}", end="")
        print(f"{records * length * one.fill / 1e6:11.1f}", end="")
        of_its_kind = OURS_SPLIT if "split" in one.name else OURS
        best = next(other for other in found if other.name == of_its_kind)
        print(f"{best.times(one):10.1f} ×" if one is not best else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices=PACKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:  # one contender, a turn for each line of input
        serve(options.serve, options.documents, options.length)
        return
    for length in (1024, 2048):
        compare(length, options)


if __name__ == "__main__":
    main()
