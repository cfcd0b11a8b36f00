"""The cost of the plan: ns per shuffled index, us per batch, and what starting and resuming take.

    python benchmarks/planning.py [--rounds 5]

Turns go round within one run, so that a machine that slows down slows all contenders; a figure is
the median of the rounds. Start and resume go from the constructor to the first batch of 256
records, whose source computes them. Bytes are the peak that Python and NumPy allocate meanwhile
(tracemalloc, in a turn of its own). Peers that are not installed are left out; PyTorch's loaders
list the permutation of the whole epoch, and sit out the cases that would take minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import feeder
from feeder.plan.batches import PositionPlanner
from feeder.plan.order import Shuffled, permutation
from feeder.plan.rows import rows_of_process
from feeder.plan.schedule import START, Schedule

BATCH = 256
LISTED_AT_MOST = 10**7
"""Records up to which PyTorch's samplers, which list them all, take part."""


class Computed:
    """A source of any length, without data."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)


class ComputedInBatches(Computed):
    def read(self, indices: np.ndarray) -> np.ndarray:
        return indices


def medians(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median over the rounds of what each contender returns."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, measure in contenders.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def planner(num_records: int) -> PositionPlanner:
    return PositionPlanner(
        Schedule(num_records, BATCH, None, "drop"),
        Shuffled(num_records, 0),
        lambda num_rows: rows_of_process(num_rows, 0, 1),
    )


def show_indices(rounds: int) -> None:
    """Time per index and per batch."""
    contenders: dict[str, Callable[[], float]] = {}
    for num_records in (10**6, 10**12):
        permuted = permutation(num_records, 0, 0)
        block = np.arange(8192)
        plans = planner(num_records).batches(START)

        def in_blocks(permuted: Any = permuted, block: Any = block) -> float:
            return seconds(lambda: [permuted(block) for _ in range(100)]) / 100 / len(block)

        def planned(plans: Any = plans) -> float:
            return seconds(lambda: next(itertools.islice(plans, 1999, None))) / 2000 / BATCH

        contenders[f"feeder, blocks of 8192, {num_records:.0e} records"] = in_blocks
        contenders[f"feeder, whole plans of {BATCH} rows, {num_records:.0e} records"] = planned
    generator = np.random.default_rng(0)
    contenders["numpy, permutation of 1e+06"] = lambda: (
        seconds(lambda: generator.permutation(10**6)) / 10**6
    )
    if importlib.util.find_spec("torch"):
        import torch

        contenders["torch, randperm(1e+06).tolist()"] = lambda: (
            seconds(lambda: torch.randperm(10**6).tolist()) / 10**6
        )
    if importlib.util.find_spec("grain"):
        import grain

        shuffled = grain.MapDataset.source(Computed(10**6)).shuffle(seed=0)
        contenders["grain, shuffle of 1e+06, record by record"] = lambda: (
            seconds(lambda: [shuffled[i] for i in range(2000)]) / 2000
        )
    print(f"{'ns per index':<52}{'us per batch of ' + str(BATCH):>24}")
    for name, value in medians(contenders, rounds).items():
        print(f"{name:<44}{value * 1e9:>8.1f}{value * BATCH * 1e6:>24.1f}")


def feeder_first(num_records: int, step: int) -> object:
    loader = feeder.DataLoader(ComputedInBatches(num_records), BATCH, shuffle=True, num_epochs=None)
    batches = iter(loader)
    if step:
        at = loader._planner.schedule.cursor(step)  # type: ignore[attr-defined]
        state = {**batches.get_state(), "step": at.step, "position": at.position}
        batches.set_state(state)
    return next(batches)


def grain_first(num_records: int, step: int) -> object:
    import grain

    source = grain.MapDataset.source(Computed(num_records))
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    data = source.shuffle(seed=0).repeat().batch(BATCH).to_iter_dataset(options)
    batches = iter(data)
    if step:
        batches.set_state({**batches.get_state(), "next_index": step})
    return next(batches)


def stateful_first(num_records: int, step: int) -> object:
    """StatefulDataLoader goes on from the state that it would have saved after ``step`` batches."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        return StatefulDataLoader(Computed(num_records), BATCH, shuffle=True)  # type: ignore[arg-type]

    if not step:
        return next(iter(loader()))
    if (num_records, step) not in _STATES:
        whole = loader()
        next(itertools.islice(whole, step - 1, None))
        _STATES[num_records, step] = whole.state_dict()
    began = time.perf_counter()
    resumed = loader()
    resumed.load_state_dict(_STATES[num_records, step])
    next(iter(resumed))
    return time.perf_counter() - began


_STATES: dict[tuple[int, int], Any] = {}


def show_start(rounds: int) -> None:
    """What starting and resuming take."""
    cases = [(10**4, 0), (10**7, 0), (10**7, 10**4), (10**12, 0), (10**12, 10**6)]
    firsts: dict[str, Callable[[int, int], object]] = {"feeder": feeder_first}
    if importlib.util.find_spec("grain"):
        firsts["grain"] = grain_first
    if importlib.util.find_spec("torchdata"):
        firsts["StatefulDataLoader"] = stateful_first

    def entries() -> Iterator[tuple[str, int, int]]:
        for (num_records, step), name in itertools.product(cases, firsts):
            if name != "StatefulDataLoader" or num_records <= LISTED_AT_MOST:
                yield name, num_records, step

    def turn(name: str, num_records: int, step: int) -> float:
        result: object = None

        def act() -> None:
            nonlocal result
            result = firsts[name](num_records, step)

        took = seconds(act)
        return result if isinstance(result, float) else took

    def peak_bytes(name: str, num_records: int, step: int) -> float:
        tracemalloc.start()
        firsts[name](num_records, step)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return float(peak)

    contenders: dict[str, Callable[[], float]] = {}
    for name, num_records, step in entries():
        contenders[f"{name}, {num_records:.0e} records, from step {step:.0e}"] = (
            lambda name=name, n=num_records, k=step: turn(name, n, k)  # type: ignore[misc]
        )
    taken = medians(contenders, rounds)
    small = taken["feeder, 1e+04 records, from step 0e+00"]
    print(f"\n{'to the first batch':<52}{'ms':>10}{'x feeder, small':>18}{'peak KiB':>12}")
    for (label, took), entry in zip(taken.items(), entries(), strict=True):
        print(
            f"{label:<52}{took * 1e3:>10.2f}{took / small:>18.2f}{peak_bytes(*entry) / 1024:>12.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    show_indices(rounds)
    show_start(rounds)


if __name__ == "__main__":
    main()
