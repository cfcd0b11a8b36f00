"""What measuring costs: the same loop with a meter, and with one that notes nothing.

    python benchmarks/monitoring.py [--seconds 0.05] [--rounds 100]

The iterators of both are open side by side, and take short turns; ratios are
taken within a round, and a figure is the median of the rounds. "With jax's annotations" also asks
before every wait and placement whether a trace is being taken. Batches of 200 KB are as small as
batches are: the cost is that of a batch, whatever its size.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np

import feeder
from feeder.monitor import Meter
from feeder.monitor.trace import _only_call


class NoMeter:
    """Notes nothing."""

    due = math.inf

    def delivered(self, *_: object) -> None:
        pass

    def failed(self, _entered_ns: int) -> None:
        pass


class Turns:
    """An iterator, and what its turns took: parent's CPU, and time, in µs per batch."""

    def __init__(self, loader: feeder.DataLoader, meter: bool) -> None:
        self.batches: Any = iter(loader)
        self.cpu: list[float] = []
        self.wall: list[float] = []
        if not meter:
            self.batches._meter = NoMeter()
            self.batches._named = _only_call
        for _ in range(50):
            next(self.batches)
        assert isinstance(self.batches._meter, Meter) == meter

    def turn(self, seconds: float) -> None:
        count, cpu, began = 0, time.process_time_ns(), time.perf_counter_ns()
        until = began + seconds * 1e9
        while (now := time.perf_counter_ns()) < until:
            next(self.batches)
            count += 1
        self.cpu.append((time.process_time_ns() - cpu) / 1e3 / count)
        self.wall.append((now - began) / 1e3 / count)


def compare(name: str, options: dict[str, Any], seconds: float, rounds: int) -> None:
    generator = np.random.default_rng(0)
    source = {
        "image": generator.integers(0, 256, (60_000, 28, 28), dtype=np.uint8),
        "label": np.arange(60_000, dtype=np.int32),
    }

    def loader() -> feeder.DataLoader:
        return feeder.DataLoader(source, 256, shuffle=True, num_epochs=None, **options)

    with loader() as one, loader() as other:
        with_it, without = Turns(one, True), Turns(other, False)
        for number in range(rounds):
            for each in (with_it, without) if number % 2 else (without, with_it):
                each.turn(seconds)
        began = time.perf_counter_ns()
        stats = with_it.batches.stats()
        asking = (time.perf_counter_ns() - began) / 1e3
        began = time.perf_counter_ns()
        with_it.batches.timeline()
        drawing = (time.perf_counter_ns() - began) / 1e3
    cpu, wall = (
        statistics.median(a / b for a, b in zip(*pair, strict=True))
        for pair in ((with_it.cpu, without.cpu), (with_it.wall, without.wall))
    )
    per_batch = [statistics.median(each) for each in (with_it.cpu, without.cpu)]
    print(
        f"{name:34}{per_batch[0]:8.1f}{per_batch[1]:10.1f}{cpu:9.3f} ×{wall:9.3f} ×"
        f"{asking:12.0f}{drawing:12.0f}"
    )
    assert stats.recent_batches > 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.05, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    print(f"{'':34}{'CPU us of this process':>22}{'ratio of':>7}{'ratio of':>11}{'us to ask':>12}")
    print(
        f"{'':34}{'with':>8}{'without':>10}{'CPU':>11}{'time':>11}{'stats()':>12}{'timeline()':>12}"
    )
    compare("in process", {}, asked.seconds, asked.rounds)
    compare("2 workers", {"num_workers": 2}, asked.seconds, asked.rounds)
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    placed = {"num_workers": 2, "sharding": NamedSharding(mesh, PartitionSpec("data"))}
    compare("2 workers, with jax's annotations", placed, asked.seconds, asked.rounds)


if __name__ == "__main__":
    main()
