"""Learns to balance cart-poles, by double DQN, from a replay buffer that grows while it trains.

    python examples/replay_buffer.py
    python examples/replay_buffer.py --workers 2      # the same losses, to the bit

Every iteration acts in 32 environments, adds what happened to the buffer, and trains on one batch
of what the buffer holds: `feeder.FromCallable` calls `Replay.sample` in this process, in step
order. That gives windows of transitions; the loader's transform folds each of them into one with
the return of several steps, with ``--workers`` in worker processes. A sample is a copy, so the
buffer may change while workers and devices still hold older batches.

How fresh is a batch? Without workers and without a sharding, `sample` is called exactly when a
batch is asked for. With a sharding, as here, it is called one batch ahead, since the next batch
goes to the devices while this one is trained on: it is of the buffer as it was one iteration
before. For workers it is called many batches ahead, how many depends on timing as well as on
``prefetch_batches``; 1 keeps it at one ahead, so that here they change no bit.

What is repeatable? One seed gives the same losses on one machine. The iterator's state holds that
of the generator that samples, by `Replay.get_state`, as it was after the last batch delivered: from
the same buffer, a restored iterator draws the same batches. It does not hold the buffer, which
belongs beside it in a checkpoint, with environments and parameters; and the batch that was sampled
ahead is sampled again, from what the buffer holds by then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if os.environ["JAX_PLATFORMS"] == "cpu":  # emulate 8 devices, before jax looks for them
    flag = "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder

NUM_ENVS, WINDOW, CAPACITY = 32, 5, 400  # the buffer: 400 steps of 32 environments
ITERATIONS, WARM_UP, BATCH_SIZE, DISCOUNT = 500, 32, 128, 0.98
LIMIT = 500  # steps of an episode


class CartPoles:
    """Cart-poles as of Barto, Sutton and Anderson, side by side; one that fell begins anew."""

    def __init__(self, number: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (number, 4)).astype(np.float32)
        self.age = np.zeros(number, np.int64)

    def step(self, action: np.ndarray) -> dict[str, np.ndarray]:
        """Pushes each cart to the left (0) or right (1); returns the transitions."""
        before, (_, speed, angle, spin) = self.state, self.state.T
        sin, cos = np.sin(angle), np.cos(angle)
        push = (np.where(action == 1, 10, -10) + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        change = np.stack([speed, push - 0.05 * turn * cos / 1.1, spin, turn], axis=1)
        after = before + np.float32(0.02) * change.astype(np.float32)
        fell = (abs(after[:, 0]) > 2.4) | (abs(after[:, 2]) > np.radians(12))
        self.age += 1
        over = fell | (self.age == LIMIT)
        self.age[over] = 0
        upright = self.rng.uniform(-0.05, 0.05, after.shape)
        self.state = np.where(over[:, None], upright, after).astype(np.float32)
        return {"state": before, "action": action, "after": after, "fell": fell, "over": over}


class Replay:
    """The last transitions of all environments, in rings; a sample is a copy of some."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rings: dict[str, np.ndarray] = {}
        self.num_added = self.num_sampled = 0

    def __len__(self) -> int:
        return min(self.num_added, CAPACITY) * NUM_ENVS

    def add(self, transitions: dict[str, np.ndarray]) -> None:
        for name, rows in transitions.items():
            if name not in self.rings:
                self.rings[name] = np.zeros((CAPACITY, *rows.shape), rows.dtype)
            self.rings[name][self.num_added % CAPACITY] = rows
        self.num_added += 1

    def sample(self, batch_size: int) -> dict[str, np.ndarray]:
        """Windows of transitions that follow each other in one environment."""
        self.num_sampled += 1
        oldest, newest = max(0, self.num_added - CAPACITY), self.num_added - WINDOW
        first = self.rng.integers(oldest, newest + 1, (batch_size, 1))
        env = self.rng.integers(NUM_ENVS, size=(batch_size, 1))
        at = (first + np.arange(WINDOW)) % CAPACITY
        return {name: ring[at, env] for name, ring in self.rings.items()}

    def get_state(self) -> dict:
        return self.rng.bit_generator.state  # JSON-able

    def set_state(self, state: dict) -> None:
        self.rng.bit_generator.state = state


def fold(window: dict) -> dict:
    """Makes a window one transition; of fewer steps where the episode ends in it."""
    last = window["over"].argmax() if window["over"].any() else WINDOW - 1
    fell = window["fell"][last]
    return {
        "state": window["state"][0],
        "action": window["action"][0],
        "reward": np.float32(-(DISCOUNT**last) if fell else 0),  # no other one is given
        "after": window["after"][last],
        "weight": np.float32(0 if fell else DISCOUNT ** (last + 1)),  # of all that comes after
    }


class Learner:
    """Double DQN: where it begins, and its functions, compiled."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        network = nnx.Sequential(
            lambda states: states * jnp.array([0.5, 0.5, 5, 0.5]),  # of similar sizes
            *(nnx.Linear(4, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 64, rngs=rngs), nnx.relu),
            nnx.Linear(64, 2, rngs=rngs, kernel_init=nnx.initializers.zeros),
        )
        graph, online = nnx.split(network)
        optimizer = optax.adam(3e-3)
        self.mesh = Mesh(np.array(jax.devices()), ("data",))
        start = (online, online, optimizer.init(online))  # the second will follow slowly
        self.start = jax.device_put(start, NamedSharding(self.mesh, P()))

        def values(params: nnx.State, states: jax.Array) -> jax.Array:
            return nnx.merge(graph, params)(states)

        def train_step(trained: tuple, batch: dict) -> tuple[tuple, jax.Array]:
            online, slow, moments = trained
            best = values(online, batch["after"]).argmax(axis=1, keepdims=True)
            after = jnp.take_along_axis(values(slow, batch["after"]), best, 1)[:, 0]

            def loss_of(params: nnx.State) -> jax.Array:
                now = values(params, batch["state"])
                now = jnp.take_along_axis(now, batch["action"][:, None], 1)[:, 0]
                return optax.huber_loss(now, batch["reward"] + batch["weight"] * after).mean()

            loss, gradients = jax.value_and_grad(loss_of)(online)
            updates, moments = optimizer.update(gradients, moments)
            online = optax.apply_updates(online, updates)
            return (online, optax.incremental_update(online, slow, 0.02), moments), loss

        self.values, self.train_step = jax.jit(values), jax.jit(train_step)

    def actions(self, params: nnx.State, states: np.ndarray) -> np.ndarray:
        """The best ones, found on the first device: all have the same parameters."""
        params = jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
        return np.asarray(self.values(params, states)).argmax(axis=1)

    def evaluate(self, params: nnx.State) -> float:
        """How many steps 32 poles stand on average, at most `LIMIT`."""
        envs, standing, steps = CartPoles(32, seed=1_000), np.ones(32, bool), 0
        while standing.any():
            steps += standing.sum()
            standing &= ~envs.step(self.actions(params, envs.state))["over"]
        return float(steps / 32)


def run(learner: Learner, seed: int, workers: int, iterations: int) -> tuple[list, dict]:
    """Trains from the start, with an empty buffer; returns the losses, and what is to hold."""
    trained, envs, replay = learner.start, CartPoles(NUM_ENVS, seed), Replay(seed + 1)
    rng = np.random.default_rng(seed + 2)

    def act(epsilon: float) -> None:
        at_random, explored = rng.random(NUM_ENVS) < epsilon, rng.integers(2, size=NUM_ENVS)
        actions = np.where(at_random, explored, learner.actions(trained[0], envs.state))
        replay.add(envs.step(actions.astype(np.int32)))

    for _ in range(WARM_UP):
        act(epsilon=1)
    loader = feeder.DataLoader(
        feeder.FromCallable(replay.sample),
        BATCH_SIZE,
        transforms=[fold],
        num_workers=workers,
        prefetch_batches=1,
        sharding=feeder.batch_sharding(learner.mesh, "data"),
    )
    losses, first_size, before = [], len(replay), learner.evaluate(trained[1])
    with loader, iter(loader) as batches:
        for iteration in range(1, iterations + 1):
            act(epsilon=max(0.05, 1 - iteration / 300))
            trained, loss = learner.train_step(trained, next(batches))
            losses.append(loss)
            if iteration % 100 == 0:
                print(
                    f"iteration {iteration}: {len(replay):,} transitions, loss {loss:.5f}, "
                    f"poles stand for {learner.evaluate(trained[1]):.0f} of {LIMIT} steps, "
                    f"{batches.stats().wait_share:.0%} of the time waiting for data"
                )
        delivered, sampled = batches.stats().batches, replay.num_sampled
        next(batches)  # was sampled before the last transitions came; from here on none come
        state = json.dumps(batches.get_state())
        drawn = jax.device_get([next(batches) for _ in range(3)])
        batches.set_state(json.loads(state))
        again = jax.device_get([next(batches) for _ in range(3)])
    same = jax.tree.all(jax.tree.map(np.array_equal, drawn, again))
    size, after = len(replay), learner.evaluate(trained[1])
    return [float(loss) for loss in losses], {
        f"poles stand for {after:.0f} steps, {before:.0f} before": after > max(200, 5 * before),
        f"the buffer grew from {first_size:,} to {size:,} transitions": size > first_size,
        f"{delivered} batches delivered, each sampled one ahead": sampled == delivered + 1,
        "a restored iterator draws the same": same,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes; 0")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    learner = Learner(options.seed)
    losses, holds = run(learner, options.seed, options.workers, ITERATIONS)
    again, _ = run(learner, options.seed, workers=0, iterations=50)
    holds["50 losses the same to the bit in a second run, without workers"] = losses[:50] == again
    if missed := [what for what, held in holds.items() if not held]:
        print(f"FAILED: not true: {'; '.join(missed)}")
        return 1
    print(f"OK: {'; '.join(holds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
