"""Batches per second from files: feeder beside PyTorch's DataLoader and Grain, on the same files.

    python benchmarks/files.py [--seconds 1] [--rounds 5] [--only TEXT]

Parquet: 4 files of 50 000 rows, 64 float32 and a label each, in row groups of 2000. ArrayRecord:
2 files of 50 000 records of 1000 bytes, with a group size of 1, decoded by numpy.frombuffer. All
batches are of 256 records, shuffled, from two workers or in process. How well they are shuffled
differs: "rows", "gather" and "feeder, shuffle=True" mix the whole epoch; BlockShuffle mixes 16 row
groups, and has a cache of 18; Grain's window 32 000 rows; "row groups" one. Loaders take turns in
process groups of their own, as in throughput.py; a figure is the median of the rounds, and ratios
are taken within a round. Peers that are not installed are left out.
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

BATCH, WORKERS, ROW_GROUP, WINDOW = 256, 2, 2000, 32_000
Batches = Iterator[Any]


def write(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet
    from array_record.python.array_record_module import ArrayRecordWriter

    rng = np.random.default_rng(0)
    for number in range(4):
        x = rng.random(50_000 * 64, dtype=np.float32)
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(x, 64), "label": range(50_000)})
        path = folder / f"{number}.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=ROW_GROUP)
    for number in range(2):
        writer = ArrayRecordWriter(str(folder / f"{number}.array_record"), "group_size:1")
        for _ in range(50_000):
            writer.write(rng.bytes(1000))
        writer.close()


def paths(folder: Path, kind: str) -> list[str]:
    return sorted(map(str, folder.glob(f"*.{kind}")))


def decoded(data: bytes) -> dict[str, np.ndarray]:
    return {"x": np.frombuffer(data, np.float32)}


def feeder_parquet(
    folder: Path, shuffle: Any = True, num_workers: int = WORKERS, row_groups: int = 1000
) -> Batches:
    import feeder

    source = feeder.sources.Parquet(folder, cache_bytes=row_groups * ROW_GROUP * (64 * 4 + 8))
    options = {"num_epochs": None, "num_workers": num_workers}
    return iter(feeder.DataLoader(source, BATCH, shuffle=shuffle, **options))


def feeder_blocks(folder: Path, num_workers: int = WORKERS) -> Batches:
    import feeder

    return feeder_parquet(folder, feeder.BlockShuffle(ROW_GROUP), num_workers, 18)


def feeder_records(folder: Path, num_workers: int = WORKERS) -> Batches:
    import feeder

    source = feeder.sources.ArrayRecord(folder, decode=decoded)
    options = {"num_epochs": None, "num_workers": num_workers}
    return iter(feeder.DataLoader(source, BATCH, shuffle=True, **options))


class Columns:
    """All of the table in memory, as tensors: rows, or a gather of many."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet
        import torch

        table = pyarrow.parquet.read_table(paths(folder, "parquet")).combine_chunks()
        x = table["x"].combine_chunks().values.to_numpy().reshape(len(table), -1)
        self._x = torch.from_numpy(x.copy())
        self._label = torch.from_numpy(table["label"].to_numpy().copy())

    def __len__(self) -> int:
        return len(self._label)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"x": self._x[index], "label": self._label[index]}


class Records:
    """The records of the files, as PyTorch reads many at once."""

    def __init__(self, folder: Path) -> None:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._source = ArrayRecordDataSource(paths(folder, "array_record"))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return decoded(self._source[index])

    def __getitems__(self, indices: list[int]) -> list[dict[str, np.ndarray]]:
        return [decoded(data) for data in self._source.__getitems__(indices)]


def torch_map(
    folder: Path, make: Callable[[Path], Any], gather: bool, num_workers: int = WORKERS
) -> Batches:
    import torch.utils.data as data

    source = make(folder)
    options: dict[str, Any] = {"num_workers": num_workers}
    if num_workers:
        options |= {"prefetch_factor": 8, "persistent_workers": True}
        if make is Records:  # whose threads do not survive a fork
            options["multiprocessing_context"] = "spawn"
    if gather:
        sampler = data.BatchSampler(data.RandomSampler(source), BATCH, True)
        loader = data.DataLoader(source, sampler=sampler, batch_size=None, **options)
    else:
        loader = data.DataLoader(source, BATCH, shuffle=True, drop_last=True, **options)
    while True:
        yield from loader


def torch_row_groups(folder: Path, num_workers: int = WORKERS) -> Batches:
    """Row groups in random order, each read by one of the workers, which gathers its batches."""
    import pyarrow.parquet
    import torch
    import torch.utils.data as data

    class RowGroups(data.IterableDataset):
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            files = [pyarrow.parquet.ParquetFile(path) for path in paths(folder, "parquet")]
            groups = [(file, n) for file in files for n in range(file.num_row_groups)]
            info = data.get_worker_info()
            mine = groups if info is None else groups[info.id :: info.num_workers]
            rng = np.random.default_rng(0)
            while True:
                for place in rng.permutation(len(mine)):
                    file, number = mine[place]
                    table = file.read_row_group(number)
                    x = table["x"].combine_chunks().values.to_numpy().reshape(len(table), -1)
                    label = table["label"].to_numpy()
                    order = rng.permutation(len(table))
                    for start in range(0, len(table) - BATCH + 1, BATCH):
                        rows = order[start : start + BATCH]
                        yield {
                            "x": torch.from_numpy(x[rows]),
                            "label": torch.from_numpy(label[rows]),
                        }

    options: dict[str, Any] = {"num_workers": num_workers}
    if num_workers:
        options["prefetch_factor"] = 8
    yield from data.DataLoader(RowGroups(), batch_size=None, **options)


def grain_batches(dataset: Any, num_workers: int) -> Batches:
    import grain

    batched = dataset.batch(BATCH, drop_remainder=True)
    if num_workers:
        batched = batched.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    return iter(batched)


def grain_parquet(folder: Path, num_workers: int = WORKERS) -> Batches:
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    experimental = grain.experimental
    rows = experimental.ParquetIterDataset(paths(folder, "parquet"))
    mixed = experimental.WindowShuffleIterDataset(rows, window_size=WINDOW, seed=0)
    return grain_batches(experimental.RepeatIterDataset(mixed), num_workers)


def grain_records(folder: Path, num_workers: int = WORKERS) -> Batches:
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    source = grain.sources.ArrayRecordDataSource(paths(folder, "array_record"))
    data = grain.MapDataset.source(source).shuffle(seed=0).repeat(None).map(decoded)
    return grain_batches(data.to_iter_dataset(), num_workers)


bind = functools.partial
CONTENDERS: dict[str, dict[str, Callable[[Path], Batches]]] = {
    "Parquet": {
        "feeder, shuffle=True": feeder_parquet,
        "feeder, shuffle=True, in process": bind(feeder_parquet, num_workers=0),
        "feeder, BlockShuffle": feeder_blocks,
        "feeder, BlockShuffle, in process": bind(feeder_blocks, num_workers=0),
        "torch, rows": bind(torch_map, make=Columns, gather=False),
        "torch, gather": bind(torch_map, make=Columns, gather=True),
        "torch, gather, in process": bind(torch_map, make=Columns, gather=True, num_workers=0),
        "torch, row groups": torch_row_groups,
        "torch, row groups, in process": bind(torch_row_groups, num_workers=0),
        "grain, window": grain_parquet,
        "grain, window, in process": bind(grain_parquet, num_workers=0),
    },
    "ArrayRecord": {
        "feeder, shuffle=True": feeder_records,
        "feeder, shuffle=True, in process": bind(feeder_records, num_workers=0),
        "torch, records": bind(torch_map, make=Records, gather=False),
        "torch, records, in process": bind(torch_map, make=Records, gather=False, num_workers=0),
        "grain, records": grain_records,
        "grain, records, in process": bind(grain_records, num_workers=0),
    },
}


class Contender(Served):
    """One of `CONTENDERS`."""

    @classmethod
    def begin(cls, kind: str, name: str, folder: Path) -> Contender:
        command = [sys.executable, __file__, "--serve", kind, name, str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        contender = cls(name, subprocess.Popen(command, text=True, process_group=0, **pipes))
        contender.expect("ready")
        os.killpg(contender.process.pid, signal.SIGSTOP)
        return contender

    def times(self, other: Served) -> float:
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


def serve(kind: str, name: str, folder: Path) -> None:
    """Measures one contender, a turn for each line of input; runs in a process of its own."""
    warnings.filterwarnings("ignore")  # torch warns of the machine's few cores
    os.environ["PYTHONWARNINGS"] = "ignore"  # in its workers too
    batches = CONTENDERS[kind][name](folder)
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        take_for(batches, float(line) * WARM_UP_SHARE)
        began = time.perf_counter()
        count = take_for(batches, float(line))
        print(count / (time.perf_counter() - began), flush=True)


def compare(kind: str, folder: Path, options: argparse.Namespace) -> None:
    found: list[Contender] = []
    try:
        for name in CONTENDERS[kind]:
            peer = name.split(",")[0]
            known = peer == "feeder" or importlib.util.find_spec(peer)
            if known and options.only in f"{kind}: {name}":
                found.append(Contender.begin(kind, name, folder))
        for _ in range(options.rounds):
            for contender in found:
                contender.turn(options.seconds)
    finally:
        for contender in found:
            contender.end()
    print(f"\n{kind}, batches of {BATCH}{'batches/s':>24}{'records/s':>13}")
    for contender in found:
        print(f"{contender.name:40}{contender.rate:12,.0f}{contender.rate * BATCH:13,.0f}")
    peers = [contender for contender in found if not contender.name.startswith("feeder")]
    for ours in found:
        for has_workers in (True, False):
            alike = [one for one in peers if ("in process" not in one.name) == has_workers]
            if ours not in peers and alike and ("in process" not in ours.name) == has_workers:
                best = max(alike, key=lambda one: one.rate)
                print(f"{ours.name}: {ours.times(best):.2f} × the best, {best.name} (goal: 1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve[:2], Path(options.serve[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for kind in CONTENDERS:
            compare(kind, Path(folder), options)


if __name__ == "__main__":
    main()
