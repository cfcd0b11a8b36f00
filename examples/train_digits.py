"""Trains a small CNN on the handwritten digits of scikit-learn, data parallel over 8 devices.

Two worker processes shift each digit at random and build the batches; feeder shards them over
the devices while the previous step computes. Try:

    python examples/train_digits.py
    python examples/train_digits.py --kill-worker
    python examples/train_digits.py --stop-at 300 --checkpoint digits.npz
    python examples/train_digits.py --resume digits.npz

The digest covers the bytes of every batch that the model saw, in order. It and the final loss
are the same in all of these, to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
from pathlib import Path

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
from sklearn.datasets import load_digits
from tqdm import tqdm

import feeder

BATCH_SIZE = 64
NUM_EPOCHS = 30
NUM_HELD_OUT = 297


def shift(record: dict, rng: np.random.Generator) -> dict:
    """Moves the digit by up to one pixel in each direction, filling with background."""
    down, right = rng.integers(-1, 2, size=2)
    image = np.pad(record["image"], 1)[1 - down : 9 - down, 1 - right : 9 - right]
    return {"image": image[..., None], "label": record["label"]}


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 64, 64, rngs=rngs)
        self.logits = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv1(images))
        x = nnx.max_pool(nnx.relu(self.conv2(x)), window_shape=(2, 2), strides=(2, 2))
        return self.logits(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))


@nnx.jit
def train_step(model: CNN, optimizer: nnx.Optimizer, batch: dict) -> jax.Array:
    def loss_of(model: CNN) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def predict(model: CNN, images: jax.Array) -> jax.Array:
    return model(images).argmax(axis=-1)


def save(path: Path, trained: nnx.State, loader_state: dict, digest: str) -> None:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.to_pure_dict(trained))]
    np.savez(path, *leaves, loader=json.dumps(loader_state), digest=digest)


def load(path: Path, trained: nnx.State) -> tuple[nnx.State, dict, str]:
    with np.load(path) as saved:
        pure = nnx.to_pure_dict(trained)
        leaves = [saved[f"arr_{number}"] for number in range(len(jax.tree.leaves(pure)))]
        restored = jax.tree.unflatten(jax.tree.structure(pure), map(jnp.asarray, leaves))
        nnx.replace_by_pure_dict(trained, restored)
        return trained, json.loads(str(saved["loader"])), str(saved["digest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill-worker", action="store_true", help="SIGKILL a worker in mid-run")
    parser.add_argument("--stop-at", type=int, metavar="N", help="save and stop after N steps")
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.npz"), metavar="FILE")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from a checkpoint")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    options = parser.parse_args()

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    train = {"image": images[:-NUM_HELD_OUT], "label": labels[:-NUM_HELD_OUT]}

    mesh = Mesh(np.array(jax.devices()), ("data",))
    loader = feeder.DataLoader(
        train,
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=0,
        num_epochs=NUM_EPOCHS,
        transforms=[feeder.RandomMap(shift)],
        num_workers=options.workers,
        sharding=NamedSharding(mesh, P("data")),
    )
    model = CNN(nnx.Rngs(0))
    schedule = optax.cosine_decay_schedule(2e-3, len(loader))
    optimizer = nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param)
    # Parameters on every device: each then sees the same sums, in the same order.
    graph, trained = nnx.split((model, optimizer))
    digest = ""

    with loader, iter(loader) as batches:
        if options.resume:
            trained, loader_state, digest = load(options.resume, trained)
            batches.set_state(loader_state)
        trained = jax.device_put(trained, NamedSharding(mesh, P()))
        model, optimizer = nnx.merge(graph, trained)
        first = batches.get_state()["step"]
        last = options.stop_at or len(loader)
        bar = tqdm(total=len(loader), initial=first, unit="step", smoothing=0.05)
        loss = jnp.nan
        for step, batch in enumerate(batches, start=first + 1):
            loss = train_step(model, optimizer, batch)
            content = hashlib.sha256(digest.encode())
            for name in ("image", "label"):
                content.update(np.asarray(batch[name]).tobytes())
            digest = content.hexdigest()
            if options.kill_worker and step == len(loader) // 2:
                os.kill(random.choice(batches.stats().worker_pids), signal.SIGKILL)
                tqdm.write(f"step {step}: killed a worker")
            if step % 50 == 0 or step == last:
                stats = batches.stats()
                rate = stats.batches * BATCH_SIZE / stats.elapsed_s
                bar.set_postfix_str(
                    f"loss {loss:.4f}, {rate:,.0f} images/s, "
                    f"{stats.wait_share:.1%} waiting for data"
                )
            bar.update()
            if step == options.stop_at:
                break
        bar.close()
        stats = batches.stats()
        if options.stop_at and options.stop_at < len(loader):
            _, trained = nnx.split((model, optimizer))
            save(options.checkpoint, trained, batches.get_state(), digest)
            print(f"stopped at step {options.stop_at}, saved to {options.checkpoint}")
            return

    held_out = predict(model, jnp.asarray(images[-NUM_HELD_OUT:, ..., None]))
    accuracy = float(np.mean(np.asarray(held_out) == labels[-NUM_HELD_OUT:]))
    print(f"images/s: {stats.batches * BATCH_SIZE / stats.elapsed_s:,.0f}")
    print(f"waiting for data: {stats.wait_share:.1%} of the time")
    print(f"workers replaced: {stats.restarts}")
    print(f"held-out accuracy: {accuracy:.2%}")
    print(f"final loss: {float(loss).hex()}")
    print(f"digest: {digest}")


if __name__ == "__main__":
    main()
