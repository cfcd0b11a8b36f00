"""What placement costs, and how well loading hides behind compute.

    python benchmarks/placement.py [--steps 100] [--rounds 3]

Placement: microseconds for one {image, label} batch of 256 × 28 × 28 on eight emulated devices,
beside JAX's own calls on the same memory.

Overlap: a step that computes on one core, fed by one worker that loads on the other. Each contender
runs in a process of its own, and measures in turns, side by side: the step on a batch that is
there already, loading alone, and both together; in a loop that blocks on every loss, and in one
that dispatches ahead. "Ideal" is the longer of the two. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

COMPUTE_S = 0.02
BATCH_SIZE = 64
SHAPE = (64, 64, 3)
ROUNDS_OF_CALLS = 7
AHEAD = 4
"""Batches that a loader builds ahead; Grain's own default is more."""

WARM_UP_STEPS = 12
PIECES = 8
"""Of a measurement: a machine that changes its pace does so for all that is compared."""


class Costly:
    """Records that take a while to load."""

    def __init__(self, batch_s: float) -> None:
        self.record_s = batch_s / BATCH_SIZE

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        end = time.perf_counter() + self.record_s
        while time.perf_counter() < end:
            pass
        return {"image": np.full(SHAPE, index % 251, np.uint8), "label": np.int32(index)}


def of_feeder(source: Costly) -> Iterator[Any]:
    import jax
    from jax.sharding import SingleDeviceSharding

    import feeder

    sharding = SingleDeviceSharding(jax.devices()[0])
    loader = feeder.DataLoader(
        source,
        BATCH_SIZE,
        num_epochs=None,
        num_workers=1,
        prefetch_batches=AHEAD,
        sharding=sharding,
    )
    return iter(loader)


def of_feeder_in_a_thread(source: Costly) -> Iterator[Any]:
    """The same, with a thread that takes and places batches ahead of the loop."""
    ready: queue.Queue[Any] = queue.Queue(2)

    def run() -> None:
        for batch in of_feeder(source):
            ready.put(batch)

    threading.Thread(target=run, daemon=True).start()
    while True:
        yield ready.get()


def of_grain(source: Costly) -> Iterator[Any]:
    import grain.experimental
    import grain.python as grain
    import jax
    from absl import flags  # Grain's workers read flags, which its own launcher would parse

    flags.FLAGS.mark_as_parsed()
    dataset: Any = grain.MapDataset.source(source).repeat().batch(BATCH_SIZE).to_iter_dataset()
    dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    return iter(grain.experimental.device_put(dataset, jax.devices()[0]))


def of_torch(source: Costly) -> Iterator[Any]:
    import torch.utils.data

    def stacked(records: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            name: torch.from_numpy(np.stack([record[name] for record in records]))
            for name in records[0]
        }

    loader: Any = torch.utils.data.DataLoader(
        source, BATCH_SIZE, num_workers=1, collate_fn=stacked, prefetch_factor=AHEAD
    )
    batches = iter(loader)  # before JAX starts: its workers are forked from this process
    import jax

    for batch in batches:
        yield jax.device_put({name: leaf.numpy() for name, leaf in batch.items()})


CONTENDERS: dict[str, tuple[str, Callable[[Costly], Iterator[Any]]]] = {
    "feeder": ("feeder", of_feeder),
    "feeder in a thread": ("feeder", of_feeder_in_a_thread),
    "Grain's device_put": ("grain", of_grain),
    "torch + device_put": ("torch", of_torch),
}


def step_of(seconds: float) -> Any:
    """A jitted step that takes so long on one core."""
    import jax
    import jax.numpy as jnp

    def step(weight: Any, batch: Any, turns: int) -> Any:
        def turn(_: int, x: Any) -> Any:
            return jnp.sin(x) * 1.01

        noise = jax.lax.fori_loop(0, turns, turn, jnp.ones(2048))
        return weight + noise.sum() + batch["image"].mean() + batch["label"].sum()

    jitted = jax.jit(step)
    batch = {"image": np.zeros((BATCH_SIZE, *SHAPE), np.uint8), "label": np.zeros(BATCH_SIZE, "i4")}
    turns = 100
    while True:
        jitted(0.0, batch, turns).block_until_ready()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            jitted(0.0, batch, turns).block_until_ready()
            times.append(time.perf_counter() - began)
        spent = statistics.median(times)
        if spent > seconds / 4:
            turns = round(turns * seconds / spent)
            return lambda weight, batch: jitted(weight, batch, turns)
        turns *= 2


def loop(step: Any, batches: Iterator[Any], steps: int, blocking: bool) -> float:
    """Seconds for one step."""
    weight: Any = np.float32(0)
    began = time.perf_counter()
    for _ in range(steps):
        weight = step(weight, next(batches))
        if blocking:
            float(weight)
    weight.block_until_ready()
    return (time.perf_counter() - began) / steps


def serve(contender: str, load_s: float, steps: int) -> None:
    """Measures one contender, and prints its figures: milliseconds, and ratios within a piece."""
    warnings.filterwarnings("ignore")
    batches = CONTENDERS[contender][1](Costly(load_s))
    resident = next(batches)

    def repeated() -> Iterator[Any]:
        while True:
            yield resident

    step = step_of(COMPUTE_S)
    found: dict[str, list[float]] = {}
    for _ in range(PIECES):
        for _ in range(WARM_UP_STEPS):
            next(batches)
        began = time.perf_counter()
        for _ in range(steps // PIECES):
            next(batches)
        load = (time.perf_counter() - began) / (steps // PIECES)
        found.setdefault("load", []).append(load * 1e3)
        for name, blocking in (("blocking", True), ("ahead", False)):
            compute = loop(step, repeated(), steps // PIECES, blocking)
            loop(step, batches, WARM_UP_STEPS, blocking)  # what was loaded ahead
            both = loop(step, batches, steps // PIECES, blocking)
            found.setdefault(f"{name} compute", []).append(compute * 1e3)
            found.setdefault(name, []).append(both * 1e3)
            found.setdefault(f"{name} ideal", []).append(both / max(compute, load))
            found.setdefault(f"{name} stall", []).append(1 - compute / both)
    medians = {name: statistics.median(figures) for name, figures in found.items()}
    print(json.dumps(medians), flush=True)
    signal.pause()


def served(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """The figures that a process prints, which is then ended with all that it started."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        figures: dict[str, float] = json.loads(process.stdout.readline())
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # some loaders' workers would live on
        process.wait()
    return figures


def show_overlap(steps: int, rounds: int) -> None:
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    for title, load_s in (
        ("Loading as long as compute", COMPUTE_S),
        ("Loading three times faster than compute", COMPUTE_S / 3),
    ):
        print(f"\n{title}; ms")
        print(f"{'':22}{'loop':>10}{'compute':>9}{'load':>8}{'step':>8}{'/ ideal':>9}{'stall':>8}")
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            for name, (module, _) in CONTENDERS.items():
                if importlib.util.find_spec(module) is None:
                    continue
                command = [sys.executable, __file__, "--serve", name, str(load_s), str(steps)]
                found.setdefault(name, []).append(served(command, environment))
        for name, measured in found.items():
            for kind in ("blocking", "ahead"):
                keys = (f"{kind} compute", "load", kind, f"{kind} ideal", f"{kind} stall")
                compute, load, step, ideal, stall = (
                    statistics.median(one[key] for one in measured) for key in keys
                )
                print(
                    f"{name:22}{kind:>10}{compute:9.2f}{load:8.2f}{step:8.2f}{ideal:9.3f}"
                    f"{stall:8.1%}"
                )


def show_placement() -> None:
    """Runs in a process of its own, which has eight devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from feeder.place.placer import Placer

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    batch = {
        "image": aligned((256, 28, 28), np.dtype(np.uint8)),
        "label": aligned((256,), np.dtype(np.int32)),
    }
    placer = Placer(sharding, 256)
    pieces = {name: sharding.devices_indices_map(leaf.shape) for name, leaf in batch.items()}

    def from_callback() -> Any:
        make = jax.make_array_from_callback
        return {n: make(leaf.shape, sharding, leaf.__getitem__) for n, leaf in batch.items()}

    def from_local() -> Any:
        make = jax.make_array_from_process_local_data
        return {name: make(sharding, leaf, leaf.shape) for name, leaf in batch.items()}

    def from_pieces() -> Any:
        return {
            name: jax.make_array_from_single_device_arrays(
                leaf.shape,
                sharding,
                [jax.device_put(leaf[rows], device) for device, rows in pieces[name].items()],
            )
            for name, leaf in batch.items()
        }

    calls: dict[str, Callable[[], Any]] = {
        "feeder": lambda: placer.place(batch, 256),
        "make_array_from_callback": from_callback,
        "device_put": lambda: jax.device_put(batch, sharding),
        "make_array_from_process_local_data": from_local,
        "device_put for each device": from_pieces,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS_OF_CALLS):
        for name, call in calls.items():
            for _ in range(50):  # JAX lets go of what came before at later calls
                call()
            began = time.perf_counter()
            for _ in range(200):
                call()
            times[name].append((time.perf_counter() - began) / 200)
    cheapest = min(statistics.median(spent) for name, spent in times.items() if name != "feeder")
    print(f"\nPlacing a batch of {{image, label}} on 8 devices, jax {jax.__version__}; us")
    for name, spent in times.items():
        median = statistics.median(spent)
        print(f"{name:36}{median * 1e6:8.1f}{median / cheapest:8.2f} x the cheapest of JAX's")


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory aligned as that of a slot."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=3, metavar=("CONTENDER", "LOAD_S", "STEPS"))
    parser.add_argument("--place", action="store_true", help="only what placing costs")
    options = parser.parse_args()
    if options.serve:
        name, load_s, steps = options.serve
        serve(name, float(load_s), int(steps))
    elif options.place:
        show_placement()
    else:
        eight = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
        eight["JAX_PLATFORMS"] = "cpu"
        subprocess.run([sys.executable, __file__, "--place"], env=eight, check=True)
        show_overlap(options.steps, options.rounds)


if __name__ == "__main__":
    main()
