"""Windows of tokens per second from a memmap: feeder beside NumPy by hand, PyTorch and Grain.

    python benchmarks/tokens.py [--seconds 1] [--rounds 5]

Batches of 64 windows of 1 025 tokens, at random, from a file of 100 million uint16 (200 MB, which
stay in the page cache). "By hand" is a loop that draws starts and stacks slices, as training
scripts have it: of the memmap itself, and of a plain array over it, which NumPy slices faster.
Loaders take turns in process groups of their own, as in throughput.py; a figure is the median of
the rounds, ratios are taken within a round. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from streams import flow
from throughput import Served

TOKENS, LENGTH, BATCH, WORKERS = 100_000_000, 1025, 64, 2
STRIDE = LENGTH - 1


def by_hand(path: Path, plain: bool) -> Iterator[Any]:
    tokens: np.ndarray = np.memmap(path, np.uint16, "r")
    if plain:
        tokens = np.asarray(tokens)
    rng = np.random.default_rng(0)
    while True:
        starts = rng.integers(0, len(tokens) - LENGTH, BATCH)
        yield np.stack([tokens[start : start + LENGTH] for start in starts])


def feeder_batches(path: Path, num_workers: int) -> Iterator[Any]:
    import feeder

    windows = feeder.TokenWindows(path, LENGTH, stride=STRIDE, dtype=np.uint16)
    return iter(
        feeder.DataLoader(windows, BATCH, shuffle=True, num_epochs=None, num_workers=num_workers)
    )


class Windows:
    """The same records, one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: Any = None

    def __len__(self) -> int:
        return (TOKENS - LENGTH) // STRIDE + 1

    def __getitem__(self, index: int) -> Any:
        if self._tokens is None:
            self._tokens = np.asarray(np.memmap(self._path, np.uint16, "r"))
        return self._tokens[index * STRIDE : index * STRIDE + LENGTH]


def torch_batches(path: Path) -> Iterator[Any]:
    import torch.utils.data

    def collate(records: list[Any]) -> Any:
        return np.stack(records)

    loader: Any = torch.utils.data.DataLoader(
        Windows(path),  # type: ignore[arg-type]
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=8,
        collate_fn=collate,
    )
    while True:
        yield from loader


def grain_batches(path: Path, num_workers: int) -> Iterator[Any]:
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # Grain's workers need parsed flags
    data: Any = grain.MapDataset.source(Windows(path)).shuffle(seed=0).repeat(None)
    data = data.batch(BATCH, drop_remainder=True).to_iter_dataset()
    if num_workers:
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    return iter(data)


HAND, PLAIN = "by hand, of the memmap", "by hand, of a plain array over it"
bind = functools.partial
CONTENDERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    HAND: bind(by_hand, plain=False),
    PLAIN: bind(by_hand, plain=True),
    "feeder, in process": bind(feeder_batches, num_workers=0),
    "feeder, 1 worker": bind(feeder_batches, num_workers=1),
    "feeder, 2 workers": bind(feeder_batches, num_workers=2),
    "torch, 2 workers": torch_batches,
    "grain, 16 threads": bind(grain_batches, num_workers=0),
    "grain, 2 workers": bind(grain_batches, num_workers=2),
}


class Contender(Served):
    """One of `CONTENDERS`."""

    @classmethod
    def start(cls, name: str, case: str) -> Contender:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, __file__, "--serve", name, "--file", case]
        contender = cls(name, subprocess.Popen(command, text=True, process_group=0, **pipes))
        contender.expect("ready")
        os.killpg(contender.process.pid, signal.SIGSTOP)
        return contender

    def times(self, other: Contender) -> float:
        return float(np.median(np.divide(self.rates, other.rates)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:  # one contender, a turn for each line of input
        warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
        turn = flow(CONTENDERS[options.serve](options.file))
        print("ready", flush=True)
        for line in sys.stdin:
            print(turn(float(line)), flush=True)
        return
    found: list[Contender] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_000, TOKENS, np.uint16).tofile(path)
        try:
            for name in CONTENDERS:
                peer = name.split(",")[0]
                if peer in ("feeder", "by hand") or importlib.util.find_spec(peer):
                    found.append(Contender.start(name, str(path)))
            for _ in range(options.rounds):
                for contender in found:
                    contender.turn(options.seconds)
        finally:
            for contender in found:
                contender.end()
    hands = [one for one in found if one.name in (HAND, PLAIN)]
    print(f"\n{'':36}{'batches/s':>10}{'Mtokens/s':>11}{'×':>7} memmap{'×':>7} plain array")
    for one in found:
        print(f"{one.name:36}{one.rate:10,.0f}{one.rate * BATCH * LENGTH / 1e6:11,.0f}", end="")
        print(f"{one.times(hands[0]):9.2f}{one.times(hands[1]):14.2f}")
    print("goal: feeder 0.9 × by hand")


if __name__ == "__main__":
    main()
