"""From the host to an accelerator: how fast batches get there, and whether a step waits for them.

    python benchmarks/transfer.py [--steps 60] [--rounds 3] [--workers 2]

Transfer: GB/s of batches of 19 MB and of 150 MB that workers build, taken and placed one after the
other, beside the limits of this machine: `device_put` of the same bytes from memory that is
registered with the driver, and from memory that is not.

Steps: time of a step that computes for 10, 30 and 100 ms, fed with batches of 19 MB, against the
same step on a batch that is there already: with feeder; with batches from feeder's workers on the
host and a plain `device_put` in the loop; with Grain's device_put; with torch's pin_memory and
dlpack. Loops dispatch ahead, and wait for a loss every ten steps.

On a machine without an accelerator it runs on the CPU, where JAX uses host memory in place: a check
of the script, no figures. Turns go round; a figure is the median of the rounds. Peers that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

import feeder

SHAPE = (224, 224, 3)
SIZES = {"19 MB": 128, "150 MB": 1000}
"""Rows of a batch."""

COMPUTE_MS = (10, 30, 100)
LOSS_EVERY = 10


def device() -> jax.Device:
    """Asked for when it is needed: some loaders' workers import this file, and must not."""
    return jax.devices()[0]


def source(num_records: int = 2000) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (num_records, *SHAPE), dtype=np.uint8)
    return {"image": images, "label": np.arange(num_records, dtype=np.int32)}


def of_feeder(data: Any, workers: int, sharding: Any) -> Iterator[Any]:
    batch_size = SIZES["19 MB"]
    loader = feeder.DataLoader(
        data, batch_size, shuffle=True, num_epochs=None, num_workers=workers, sharding=sharding
    )
    return iter(loader)


def placed(data: Any, workers: int) -> Iterator[Any]:
    return of_feeder(data, workers, SingleDeviceSharding(device()))


def put_in_the_loop(data: Any, workers: int) -> Iterator[Any]:
    for batch in of_feeder(data, workers, None):
        yield jax.device_put(batch, device())


def of_grain(data: Any, workers: int) -> Iterator[Any]:
    import grain.experimental
    import grain.python as grain
    from absl import flags  # Grain's workers read flags, which its own launcher would parse

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    rows = Rows(data)
    dataset: Any = grain.MapDataset.source(rows).shuffle(seed=0).repeat().batch(SIZES["19 MB"])
    dataset = dataset.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(workers))
    return iter(grain.experimental.device_put(dataset, device()))


def of_torch(data: Any, workers: int) -> Iterator[Any]:
    import torch.utils.data

    tensors = {name: torch.from_numpy(leaf) for name, leaf in data.items()}
    gpu = torch.cuda.is_available()
    loader: Any = torch.utils.data.DataLoader(
        Rows(tensors),
        SIZES["19 MB"],
        shuffle=True,
        num_workers=workers,
        pin_memory=gpu,
        persistent_workers=True,
        multiprocessing_context="forkserver",  # JAX has threads, which a fork would not have
    )
    while True:
        for batch in loader:
            if gpu:
                batch = {name: leaf.to("cuda", non_blocking=True) for name, leaf in batch.items()}
                yield {name: jnp.from_dlpack(leaf) for name, leaf in batch.items()}
            else:
                yield jax.device_put({name: leaf.numpy() for name, leaf in batch.items()}, device())


class Rows:
    """The rows of some arrays."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: leaf[index] for name, leaf in self.arrays.items()}


CONTENDERS: dict[str, tuple[str, Callable[[Any, int], Iterator[Any]]]] = {
    "feeder": ("feeder", placed),
    "device_put in the loop": ("feeder", put_in_the_loop),
    "Grain's device_put": ("grain", of_grain),
    "torch pin_memory": ("torch", of_torch),
}


def put_gbps(array: np.ndarray, turns: int = 10) -> float:
    """GB/s of one array after the other."""
    jax.device_put(array, device()).block_until_ready()
    began = time.perf_counter()
    for _ in range(turns):
        jax.device_put(array, device()).block_until_ready()
    return array.nbytes * turns / (time.perf_counter() - began) / 1e9


def limits(num_bytes: int) -> dict[str, float]:
    """GB/s from memory that the driver knows, and from memory that it does not."""
    array = np.ones(num_bytes + 4096, np.uint8)
    start = -array.ctypes.data % 4096
    array = array[start : start + num_bytes]
    found = {"pageable": put_gbps(array)}
    try:
        device().client.dma_map(array.ctypes.data, num_bytes)
    except RuntimeError as error:
        print(f"(no pinned limit: {str(error).splitlines()[0]})")
        return found
    found["pinned"] = put_gbps(array)
    device().client.dma_unmap(array.ctypes.data)
    return found


def feeder_gbps(data: Any, batch_size: int, workers: int, pin: bool, turns: int = 20) -> float:
    with feeder.DataLoader(
        data,
        batch_size,
        shuffle=True,
        num_epochs=None,
        num_workers=workers,
        sharding=SingleDeviceSharding(device()),
        pin_memory=pin,
    ) as loader:
        batches = iter(loader)
        for _ in range(10):  # slots are made, and pinned, once
            jax.block_until_ready(next(batches))
        began = time.perf_counter()
        for _ in range(turns):
            batch = jax.block_until_ready(next(batches))
        size = sum(leaf.nbytes for leaf in batch.values())
        return size * turns / (time.perf_counter() - began) / 1e9


def show_transfer(data: Any, workers: int, rounds: int) -> None:
    print(f"\nTo {device()}; GB/s")
    for name, batch_size in SIZES.items():
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for limit, rate in limits(batch_size * int(np.prod(SHAPE))).items():
                found.setdefault(f"device_put, {limit}", []).append(rate)
            for pin in (True, False):
                label = "feeder" if pin else "feeder, pin_memory=False"
                rate = feeder_gbps(data, batch_size, workers, pin)
                found.setdefault(label, []).append(rate)
        for label, rates in found.items():
            print(f"{name:8}{label:28}{statistics.median(rates):8.1f}")


def step_of(milliseconds: float) -> Any:
    """A jitted step that computes for so long."""

    @jax.jit
    def step(weight: Any, batch: Any, turns: int) -> Any:
        def turn(_: int, x: Any) -> Any:
            return jnp.tanh(x @ x)

        noise = jax.lax.fori_loop(0, turns, turn, jnp.eye(1024, dtype=jnp.float32))
        return weight + noise.sum() + batch["image"][:, 0, 0].astype(jnp.float32).mean()

    batch = jax.device_put({"image": np.zeros((SIZES["19 MB"], *SHAPE), np.uint8)}, device())
    turns = 1
    while True:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            step(jnp.float32(0), batch, turns).block_until_ready()
            times.append(time.perf_counter() - began)
        spent = min(times) * 1e3
        if spent > milliseconds / 2:
            turns = max(1, round(turns * milliseconds / spent))
            return lambda weight, batch: step(weight, {"image": batch["image"]}, turns)
        turns *= 2


def loop(step: Any, batches: Iterator[Any], steps: int) -> float:
    """Milliseconds for one step."""
    weight: Any = jnp.float32(0)
    began = time.perf_counter()
    for number in range(steps):
        weight = step(weight, next(batches))
        if number % LOSS_EVERY == 0:
            float(weight)
    weight.block_until_ready()
    return (time.perf_counter() - began) / steps * 1e3


def show_steps(data: Any, workers: int, steps: int, rounds: int) -> None:
    print("\nSteps fed with batches of 19 MB; ms, and more than on a batch that is there")
    running = {
        name: begin(data, workers)
        for name, (module, begin) in CONTENDERS.items()
        if importlib.util.find_spec(module) is not None
    }
    resident = next(running["feeder"])

    def repeated() -> Iterator[Any]:
        while True:
            yield resident

    for milliseconds in COMPUTE_MS:
        step = step_of(milliseconds)
        found: dict[str, list[float]] = {}
        loop(step, repeated(), LOSS_EVERY)
        for _ in range(rounds):
            time.sleep(1)  # all have loaded ahead what they will
            alone = loop(step, repeated(), steps)
            found.setdefault("resident", []).append(alone)
            for name, batches in running.items():
                loop(step, batches, LOSS_EVERY)  # what was loaded ahead
                found.setdefault(name, []).append(loop(step, batches, steps))
        alone = statistics.median(found["resident"])
        for name, times in found.items():
            spent = statistics.median(times)
            print(f"{milliseconds:4} ms  {name:26}{spent:9.2f}{spent / alone - 1:9.1%}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"jax {jax.__version__} on {device().device_kind}")
    data = source()
    show_transfer(data, options.workers, options.rounds)
    show_steps(data, options.workers, options.steps, options.rounds)


if __name__ == "__main__":
    main()
