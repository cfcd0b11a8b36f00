"""Trains a small transformer on the source of Python's own library, over a mesh of two axes.

    python examples/train_gpt.py                       # 200 steps, a checkpoint every 50
    python examples/train_gpt.py --stop-at 100         # as if the machine had failed
    python examples/train_gpt.py                       # goes on from there
    python examples/train_gpt.py --packed              # on whole documents, packed

Rows of a batch lie over the mesh axis "data", the weights over "model": eight emulated devices as
4 × 2, or whatever this machine has. Tokens are bytes; a record is a window of the concatenated
files, so the source needs no memory but theirs. With --packed the documents are the paragraphs of
those files: best fit packs them whole, and attention stays within each of them. Orbax writes the
model, the optimizer and the loader's state as one checkpoint: what comes after a stop is what would
have come without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sysconfig
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if os.environ["JAX_PLATFORMS"] == "cpu":  # emulate 8 devices, before jax looks for them
    flag = "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

import feeder

LENGTH = 128
BATCH_SIZE = 32
WIDTH, HEADS, LAYERS = 128, 4, 2
MOST_BYTES = 8_000_000


def python_sources() -> bytes:
    """The standard library's modules, one after the other."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return text[:MOST_BYTES]


def windows() -> feeder.TokenWindows:
    """Windows of the text, each with the token that follows it."""
    tokens = np.frombuffer(python_sources(), np.uint8)
    return feeder.TokenWindows(tokens, LENGTH + 1, stride=LENGTH)


def paragraphs() -> feeder.Packed:
    """What stands between empty lines, packed."""
    documents = [np.frombuffer(text, np.uint8) for text in python_sources().split(b"\n\n")]
    return feeder.pack(documents, LENGTH + 1, separator=ord("\n"))


def of_one_document(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """A window, as a packed record of one document."""
    ones = np.ones(len(tokens), np.int32)
    return {"tokens": tokens, "segment_ids": ones, "positions": np.arange(len(tokens))}


def next_token(record: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs, and the token that follows each of them in its document."""
    segments = record["segment_ids"]
    return {
        "inputs": record["tokens"][:-1],
        "targets": record["tokens"][1:],
        "segments": segments[:-1],
        "positions": record["positions"][:-1].astype(np.int32),
        "weights": ((segments[1:] == segments[:-1]) & (segments[1:] > 0)).astype(np.float32),
    }


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mix = nnx.Linear(WIDTH, 3 * WIDTH, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.up, self.down = (
            nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs),
            nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs),
        )

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
        query, key, value = (
            part.reshape(heads) for part in jnp.split(self.mix(self.norm1(x)), 3, axis=-1)
        )
        mixed = jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(256, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, 256, rngs=rngs)

    def __call__(self, batch: dict) -> jax.Array:
        x = self.tokens(batch["inputs"]) + self.places(batch["positions"])
        segments = batch["segments"]
        mask = (segments[:, None, :] == segments[:, :, None])[:, None]  # for every head
        for block in self.blocks:
            x = block(x, mask)
        return self.logits(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="in all; 200")
    parser.add_argument("--stop-at", type=int, metavar="N", help="stop there, whatever is saved")
    parser.add_argument("--save-every", type=int, default=50, metavar="N", help="steps; 50")
    parser.add_argument("--checkpoints", type=Path, default=Path("gpt-checkpoints"), metavar="DIR")
    parser.add_argument("--fresh", action="store_true", help="forget earlier checkpoints")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--packed", action="store_true", help="documents, not windows")
    options = parser.parse_args()
    if options.steps < 1 or options.save_every < 1:
        parser.error("--steps and --save-every must be at least 1")
    if options.fresh:
        shutil.rmtree(options.checkpoints, ignore_errors=True)

    devices = np.array(jax.devices())
    model_axis = 2 if len(devices) % 2 == 0 else 1
    mesh = Mesh(devices.reshape(-1, model_axis), ("data", "model"))
    source = paragraphs() if options.packed else windows()
    print(source)
    loader = feeder.DataLoader(
        source,
        BATCH_SIZE,
        transforms=[next_token] if options.packed else [of_one_document, next_token],
        shuffle=True,
        num_epochs=None,
        num_workers=options.workers,
        sharding=feeder.batch_sharding(mesh, "data"),
    )

    model = GPT(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    graph, trained = nnx.split((model, optimizer))

    def lies(leaf: jax.Array) -> NamedSharding:
        """Matrices are cut along their last axis, all else is on every device."""
        return NamedSharding(mesh, P(None, "model") if leaf.ndim == 2 else P())

    shardings = jax.tree.map(lies, trained)
    trained = jax.device_put(trained, shardings)

    @jax.jit(donate_argnums=0, out_shardings=(shardings, None))
    def train_step(trained: nnx.State, batch: dict) -> tuple[nnx.State, jax.Array]:
        model, optimizer = nnx.merge(graph, trained)

        def loss_of(model: GPT) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(
                model(batch), batch["targets"].astype(jnp.int32)
            )
            return (losses * batch["weights"]).sum() / batch["weights"].sum()

        loss, gradients = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return nnx.split((model, optimizer))[1], loss

    keep = ocp.CheckpointManagerOptions(max_to_keep=2)
    manager = ocp.CheckpointManager(options.checkpoints.absolute(), options=keep)
    last = min(options.stop_at or options.steps, options.steps)
    with manager, loader, iter(loader) as batches:
        if (saved := manager.latest_step()) is not None:
            structure = jax.tree.structure(trained)
            restored = manager.restore(
                saved,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore(jax.tree.leaves(trained)),
                    data=ocp.args.JsonRestore(),
                ),
            )
            trained = jax.tree.unflatten(structure, restored["model"])
            batches.set_state(restored["data"])
        first = batches.get_state()["step"]
        if first >= last:
            print(f"nothing left to do: the checkpoint is of step {first}")
            return
        print(f"steps {first + 1} to {last} on a mesh of {dict(mesh.shape)}")
        began = time.perf_counter()
        for step in tqdm(range(first + 1, last + 1), unit="step"):
            trained, loss = train_step(trained, next(batches))
            if step % options.save_every == 0 or step == options.steps:
                leaves = jax.tree.leaves(trained)
                manager.save(
                    step,
                    args=ocp.args.Composite(
                        model=ocp.args.StandardSave(leaves),
                        data=ocp.args.JsonSave(batches.get_state()),
                    ),
                )
            if step % 10 == 0 or step == last:
                tqdm.write(f"step {step}: {float(loss) / np.log(2):.4f} bits per byte")
        spent, stats = time.perf_counter() - began, batches.stats()
        print(f"{stats.batches * BATCH_SIZE * LENGTH / spent:,.0f} tokens/s, ", end="")
        print(f"{stats.wait_share:.1%} of the time waiting for data")
        print(f"loss of step {last}: {float(loss).hex()}")


if __name__ == "__main__":
    main()
