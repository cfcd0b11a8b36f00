"""Records per second from TensorStore: feeder beside reads by hand and PyTorch's DataLoader.

    python benchmarks/tensorstores.py [--seconds 1] [--rounds 5] [--only TEXT]

zarr3 arrays of images of 64 × 64 × 3 bytes, uncompressed, 16 384 in chunks of 1 and 49 152 in
chunks of 256; batches of 128, shuffled, and shuffled in blocks of 256 (`feeder.BlockShuffle`). By
hand: one asynchronous read for each batch, by an array of indices or by an index for each record,
the next batch's under way meanwhile. Torch: one `[]` for each record. Both with a cache of the size
of feeder's, and as TensorStore opens an array by itself, without one.
Loaders take turns in process groups of their own, as in throughput.py; a figure is the median of
the rounds, ratios are taken within a round. (Its name is not tensorstore.py, which any script in
this folder would import in TensorStore's place.)
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
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from throughput import WARM_UP_SHARE, Served, take_for

SHAPE, BATCH, BLOCK = (64, 64, 3), 128, 256
RECORDS = {1: 16_384, 256: 49_152}
CHUNKS = (1, 256)
ORDERS = ("shuffled", "block-shuffled", "in order")
CACHE_BYTES = {1: 16 * 2**20, 256: 272 * 2**20}  # feeder's defaults


def order_of(kind: str, epoch: int, records: int) -> np.ndarray:
    """What a hand-written loader would do, and as random as feeder's."""
    rng = np.random.default_rng(epoch)
    if kind == "shuffled":
        return rng.permutation(records)
    if kind == "in order":
        return np.arange(records)
    blocks = rng.permutation(records // BLOCK)
    windows = (blocks[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1, 16 * BLOCK)
    return rng.permuted(windows, axis=1).reshape(-1)


def opened(path: str, cache_bytes: int) -> Any:
    import tensorstore as ts

    return ts.open(
        {"driver": "zarr3", "kvstore": f"file://{path}/"},
        context=ts.Context({"cache_pool": {"total_bytes_limit": cache_bytes}}),
        recheck_cached_data="open",
        read=True,
    ).result()


def batches_of(chunk: int, kind: str) -> Iterator[np.ndarray]:
    epoch = 0
    while True:
        yield from order_of(kind, epoch, RECORDS[chunk]).reshape(-1, BATCH)
        epoch += 1


def by_indices(path: str, chunk: int, kind: str, cache: bool = True) -> Iterator[Any]:
    store = opened(path, CACHE_BYTES[chunk] if cache else 0)
    ahead = None
    for rows in batches_of(chunk, kind):
        read = store[rows[0] : rows[0] + BATCH] if kind == "in order" else store[rows]
        ahead, done = read.read(), ahead
        if done is not None:
            yield done.result()


def by_records(path: str, chunk: int, kind: str) -> Iterator[Any]:
    store = opened(path, CACHE_BYTES[chunk])
    ahead: list[Any] = []
    for rows in batches_of(chunk, kind):
        ahead, done = [store[row].read() for row in rows.tolist()], ahead
        if done:
            yield np.stack([read.result() for read in done])


def by_torch(path: str, chunk: int, kind: str, cache: bool) -> Iterator[Any]:
    import torch.utils.data as data

    class Records(data.Dataset):
        store: Any = None

        def __len__(self) -> int:
            return RECORDS[chunk]

        def __getitem__(self, index: int) -> Any:
            if self.store is None:  # TensorStore must not be used before the fork
                self.store = opened(path, CACHE_BYTES[chunk] if cache else 0)
            return self.store[index].read().result()

    rows = iter(batches_of(chunk, kind))
    sampler = (next(rows).tolist() for _ in iter(int, 1))
    return iter(data.DataLoader(Records(), batch_sampler=sampler, num_workers=2, prefetch_factor=8))


def by_feeder(path: str, _chunk: int, kind: str, num_workers: int, **options: Any) -> Iterator[Any]:
    import feeder

    shuffle = {"shuffled": True, "block-shuffled": feeder.BlockShuffle(BLOCK), "in order": False}
    return iter(
        feeder.DataLoader(
            feeder.sources.TensorStore(path),
            BATCH,
            shuffle=shuffle[kind],
            num_epochs=None,
            num_workers=num_workers,
            **options,
        )
    )


OURS, TORCH = "feeder, 2 workers", "torch, 2 workers, [] per record"
CACHED = f"{TORCH}, cache"
CONTENDERS: dict[str, Callable[[str, int, str], Iterator[Any]]] = {
    OURS: functools.partial(by_feeder, num_workers=2),
    "feeder, 2 threads": functools.partial(by_feeder, num_workers=2, worker_type="thread"),
    "feeder, in process": functools.partial(by_feeder, num_workers=0),
    "by hand, indices": functools.partial(by_indices, cache=False),
    "by hand, indices, cache": by_indices,
    "by hand, an index for each record, cache": by_records,
    TORCH: functools.partial(by_torch, cache=False),
    CACHED: functools.partial(by_torch, cache=True),
}


class Contender(Served):
    """One of `CONTENDERS`, on one array in one order."""

    @classmethod
    def start(cls, name: str, case: str) -> Contender:
        contender = cls(
            name,
            subprocess.Popen(
                [sys.executable, __file__, "--serve", name, *case.split("\n")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,
            ),
        )
        contender.expect("ready")
        os.killpg(contender.process.pid, signal.SIGSTOP)
        return contender

    def times(self, other: Served) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


def serve(name: str, path: str, chunk: str, kind: str) -> None:
    warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
    batches = CONTENDERS[name](path, int(chunk), kind)
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line)
        take_for(batches, seconds * WARM_UP_SHARE)
        began = time.perf_counter()
        count = take_for(batches, seconds)
        print(count / (time.perf_counter() - began), flush=True)


def compare(path: str, chunk: int, kind: str, names: list[str], options: Any) -> list[Contender]:
    found: list[Contender] = []
    try:
        for name in names:  # one by one, each known before the next can fail
            found.append(Contender.start(name, f"{path}\n{chunk}\n{kind}"))  # noqa: PERF401
        for _ in range(options.rounds):
            for contender in found:
                contender.turn(options.seconds)
    finally:
        for contender in found:
            contender.end()
    return found


def report(chunk: int, kind: str, found: list[Contender]) -> None:
    ours = next((one for one in found if one.name == OURS), found[0])
    print(f"\n{f'chunks of {chunk}, {kind}':40} records/s    MB/s   {ours.name} is")
    for one in found:
        rate = one.rate * BATCH
        shown = f"{ours.times(one):10.2f} ×" if one is not ours else ""
        print(f"{one.name:40}{rate:10,.0f}{rate * np.prod(SHAPE) / 1e6:8,.0f}{shown}")
    hand = [one for one in found if one.name.startswith("by hand")]
    if hand:
        best = max(hand, key=lambda one: one.rate)
        print(f"{ours.name}: {ours.times(best):.2f} × the best by hand (goal: 0.8)")
    for one in found:
        if one.name == TORCH:
            print(f"{ours.name}: {ours.times(one):.2f} × torch (goal: 2)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="contenders whose name has this in it")
    parser.add_argument("--chunk", type=int, choices=CHUNKS, help="one length of chunks only")
    parser.add_argument("--order", choices=ORDERS, help="one order only")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    names = [name for name in CONTENDERS if options.only in name]
    if not importlib.util.find_spec("torch"):
        print("torch: not installed, left out")
        names = [name for name in names if name not in (TORCH, CACHED)]
    import feeder

    images = np.random.default_rng(0).integers(0, 256, (max(RECORDS.values()), *SHAPE), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        for chunk in [options.chunk] if options.chunk else CHUNKS:
            path = str(Path(folder) / str(chunk))
            began = time.perf_counter()
            feeder.sources.write_tensorstore(images[: RECORDS[chunk]], path, chunk_records=chunk)
            print(
                f"written in chunks of {chunk} in {time.perf_counter() - began:.1f} s", flush=True
            )
            for kind in [options.order] if options.order else ORDERS:
                report(chunk, kind, compare(path, chunk, kind, names, options))


if __name__ == "__main__":
    main()
