"""What delivery costs: batches from two workers beside two processes that deliver nothing.

    python benchmarks/workers.py [--seconds 2] [--rounds 3]

Each contender is started, warmed up, measured and ended in its turn; turns go round within one run.
A figure is the median of the rounds, and ratios are taken within a round. "Undelivered" are two
processes that read the same records (or copy the same rows into memory that they use again and
again) and drop them: the most that two workers could deliver. Peers that are not installed are left
out.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import multiprocessing
import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

import feeder

WORKERS = 2
Batches = Callable[[], Iterator[Any]]


class Jpegs:
    """Photographs of 256 × 256 pixels, compressed in memory; decoded, cropped and normalised."""

    def __init__(self, count: int = 512) -> None:
        from PIL import Image

        generator = np.random.default_rng(0)
        self.files = []
        for _ in range(count):
            coarse = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC)
            file = io.BytesIO()
            image.save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        image = np.asarray(Image.open(io.BytesIO(self.files[index])))[16:240, 16:240]
        return {"image": (image.astype(np.float32) - 127.5) / 64.0, "label": np.int32(index)}


class Pure:
    """50 us of Python per record."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        end = time.perf_counter_ns() + 50_000
        while time.perf_counter_ns() < end:
            pass
        return {"x": np.full(16, index, np.float32), "y": np.int32(index)}


def stacked(records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Batches per second, after a warm-up."""
    for _ in range(10):
        next(batches)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        next(batches)
        count += 1
    return count / elapsed


def of_feeder(source: Any, batch_size: int, **options: Any) -> Callable[[float], float]:
    def measure(seconds: float) -> float:
        with feeder.DataLoader(
            source, batch_size, shuffle=True, num_epochs=None, num_workers=WORKERS, **options
        ) as loader:
            return rate(iter(loader), seconds)

    return measure


def of_torch(source: Any, batch_size: int) -> Callable[[float], float]:
    import torch.utils.data

    def forever() -> Iterator[Any]:
        loader: Any = torch.utils.data.DataLoader(
            source,
            batch_size,
            shuffle=True,
            num_workers=WORKERS,
            collate_fn=lambda records: {
                name: torch.from_numpy(leaf) for name, leaf in stacked(records).items()
            },
            persistent_workers=True,
            prefetch_factor=4,
        )
        while True:
            yield from loader

    return lambda seconds: rate(forever(), seconds)


def of_grain(source: Any, batch_size: int) -> Callable[[float], float]:
    import grain
    from absl import flags  # Grain's workers read flags, which its own launcher would parse

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()

    def measure(seconds: float) -> float:
        data = grain.MapDataset.source(source).shuffle(seed=0).repeat().batch(batch_size)
        options = grain.MultiprocessingOptions(num_workers=WORKERS)
        return rate(iter(data.to_iter_dataset().mp_prefetch(options)), seconds)

    return measure


def undelivered(build: Callable[[np.ndarray], object], num_records: int, batch_size: int) -> Any:
    """Two processes that build batches and drop them."""

    def work(results: Any, start: Any, seconds: float) -> None:
        generator = np.random.default_rng(os.getpid())
        build(generator.integers(0, num_records, batch_size))
        start.wait()
        count, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            build(generator.integers(0, num_records, batch_size))
            count += 1
        results.put(count / elapsed)

    def measure(seconds: float) -> float:
        context: Any = multiprocessing.get_context("fork")
        results, start = context.Queue(), context.Barrier(WORKERS)
        processes = [
            context.Process(target=work, args=(results, start, seconds)) for _ in range(WORKERS)
        ]
        for process in processes:
            process.start()
        total = sum(float(results.get()) for _ in processes)
        for process in processes:
            process.join()
        return total

    return measure


def compare(title: str, contenders: dict[str, Callable[[float], float]], options: Any) -> None:
    """Prints the rates, and how feeder's compares."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, measure in contenders.items():
            rates[name].append(measure(options.seconds))
    print(f"\n{title:<44}{'batches/s':>12}{'feeder / this':>16}")
    for name, values in rates.items():
        ratios = [a / b for a, b in zip(rates["feeder"], values, strict=True)]
        print(f"{name:<44}{statistics.median(values):>12.1f}{statistics.median(ratios):>16.2f}")


def peers(source: Any, batch_size: int) -> dict[str, Callable[[float], float]]:
    found = {}
    if importlib.util.find_spec("torch"):
        found["torch DataLoader"] = of_torch(source, batch_size)
    if importlib.util.find_spec("grain"):
        found["grain mp_prefetch"] = of_grain(source, batch_size)
    return found


def records(source: Any, batch_size: int) -> dict[str, Callable[[float], float]]:
    """Contenders for a source of records."""
    return {
        "feeder": of_feeder(source, batch_size),
        "undelivered": undelivered(
            lambda indices: [source[int(index)] for index in indices],
            len(source),
            batch_size,
        ),
        **peers(source, batch_size),
    }


def copies(shape: tuple[int, ...], batch_size: int, num_records: int) -> dict[str, Any]:
    """Contenders for a gather from memory: the limit is how fast two processes copy."""
    images = np.random.default_rng(0).integers(0, 256, (num_records, *shape), dtype=np.uint8)
    recycled = np.empty((batch_size, *shape), np.uint8)
    return {
        "feeder": of_feeder({"image": images}, batch_size),
        "undelivered": undelivered(
            lambda indices: np.take(images, indices, axis=0, out=recycled, mode="clip"),
            num_records,
            batch_size,
        ),
    }


def placed_in_process() -> dict[str, Callable[[float], float]]:
    """Without workers, onto the devices: beside what one would write by hand."""
    import jax

    images = np.random.default_rng(0).integers(0, 256, (60_000, 28, 28), dtype=np.uint8)
    sharding = feeder.batch_sharding()

    def by_hand() -> Iterator[Any]:
        memory = np.empty(256 * 28 * 28 + 64, np.uint8)
        start = -memory.ctypes.data % 64  # aligned, so that JAX takes it as it is
        buffer = memory[start : start + 256 * 28 * 28].reshape(256, 28, 28)
        generator = np.random.default_rng(0)
        while True:
            order = generator.permutation(len(images))
            for first in range(0, len(images) - 255, 256):
                np.take(images, order[first : first + 256], axis=0, out=buffer, mode="clip")
                yield {"image": jax.device_put(buffer, sharding)}

    def measure(seconds: float) -> float:
        loader = feeder.DataLoader(
            {"image": images}, 256, shuffle=True, num_epochs=None, sharding=sharding
        )
        with loader:
            return rate(iter(loader), seconds)

    return {"feeder": measure, "np.take, device_put": lambda seconds: rate(by_hand(), seconds)}


def show_supervision(rounds: int) -> None:
    """The parent's share, the first batch, the memory of a worker, and a replacement."""
    source = {"x": np.zeros((60_000, 28, 28), np.uint8), "y": np.zeros(60_000, np.int32)}
    cpu, first, memory, replaced = [], [], [], []
    for _ in range(rounds):
        began = time.perf_counter()
        with feeder.DataLoader(source, 256, num_epochs=None, num_workers=WORKERS) as loader:
            batches = iter(loader)
            next(batches)
            first.append((time.perf_counter() - began) * 1e3)
            rate(batches, 0.2)
            cpu_began = time.process_time()
            count = 5000
            for _ in range(count):
                next(batches)
            cpu.append((time.process_time() - cpu_began) / count * 1e6)
            pids = batches.stats().worker_pids
            memory.append(psutil.Process(pids[0]).memory_full_info().uss / 2**20)
            restarts = batches.stats().restarts
            os.kill(pids[0], signal.SIGKILL)
            began = time.perf_counter()
            while batches.stats().restarts == restarts or pids[0] in batches.stats().worker_pids:
                next(batches)
            while len(batches.stats().worker_pids) < WORKERS:
                next(batches)
            replaced.append((time.perf_counter() - began) * 1e3)
    print(f"\n{'200 KB batches, two workers':<44}{'median':>12}")
    for name, values, unit in (
        ("CPU of the parent per batch", cpu, "us"),
        ("constructor to first batch", first, "ms"),
        ("memory of a worker of its own (USS)", memory, "MiB"),
        ("death of a worker to its replacement's birth", replaced, "ms"),
    ):
        print(f"{name:<44}{statistics.median(values):>12.2f} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    show_supervision(options.rounds)
    compare("200 KB in process, on the devices", placed_in_process(), options)
    compare("gather of 200 KB", copies((28, 28), 256, 60_000), options)
    compare("gather of 19 MB", copies((224, 224, 3), 128, 2048), options)
    compare("50 us of Python per record, batch 32", records(Pure(), 32), options)
    if importlib.util.find_spec("PIL"):
        compare("JPEG, decoded and cropped, batch 64", records(Jpegs(), 64), options)


if __name__ == "__main__":
    main()
