"""Trains on two processes, kills one of them, and goes on with another number: the same loss curve.

    python examples/train_multihost.py [--resume-on 3]

One machine plays several hosts: every process has four emulated devices, and they find each other
by `jax.distributed` on 127.0.0.1, as they would over a network. The script starts itself once for
each process of a job:

1. a job of two processes, undisturbed: the loss of every step is the curve to compare with;
2. the same job, of which one whole process, with its workers, is killed on the way;
3. a job of another number of processes, which goes on from the checkpoint that is left.

Each process loads only the rows of its own devices; the global batches are the same in all three.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BATCH_SIZE = 96
"""Rows of a global batch: 4, 8, 12 and 16 devices divide it."""

NUM_EPOCHS = 6
CHECKPOINT_EVERY = 20
KILL_AT = 50
DEVICES_PER_PROCESS = 4


def train(port: int, count: int, index: int, checkpoint: Path) -> None:
    """One process of a job."""
    import jax

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)

    import numpy as np
    import optax
    from flax import nnx
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P
    from sklearn.datasets import load_digits

    import feeder

    def shift(record: dict, rng: np.random.Generator) -> dict:
        down, right = rng.integers(-1, 2, size=2)
        image = np.pad(record["image"], 1)[1 - down : 9 - down, 1 - right : 9 - right]
        return {"image": image.reshape(64), "label": record["label"]}

    digits = load_digits()
    source = {
        "image": (digits.images / 16).astype(np.float32),
        "label": digits.target.astype(np.int32),
    }
    sharding = feeder.batch_sharding()  # rows over all devices of all processes
    loader = feeder.DataLoader(
        source,
        BATCH_SIZE,
        shuffle=True,
        num_epochs=NUM_EPOCHS,
        transforms=[feeder.RandomMap(shift)],
        num_workers=1,
        sharding=sharding,
    )

    class MLP(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.hidden = nnx.Linear(64, 128, rngs=rngs)
            self.logits = nnx.Linear(128, 10, rngs=rngs)

        def __call__(self, images: jax.Array) -> jax.Array:
            return self.logits(nnx.relu(self.hidden(images)))

    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    graph, trained = nnx.split((model, optimizer))
    everywhere = NamedSharding(sharding.mesh, P())

    def replicated(tree: object) -> object:
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(
                everywhere, np.asarray(leaf), np.shape(leaf)
            ),
            tree,
        )

    @jax.jit
    def train_step(trained: nnx.State, batch: dict) -> tuple[nnx.State, jax.Array]:
        model, optimizer = nnx.merge(graph, trained)

        def loss_of(model: MLP) -> jax.Array:
            logits = model(batch["image"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return nnx.split((model, optimizer))[1], loss

    def save(step: int, loader_state: dict) -> None:
        """Process 0 writes what all of them know."""
        if index == 0:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(trained)]
            partial = checkpoint.with_suffix(".partial.npz")
            np.savez(partial, *leaves, loader=json.dumps(loader_state))
            partial.replace(checkpoint)  # whole or not at all
            print(json.dumps({"saved": step}), flush=True)

    with loader, iter(loader) as batches:
        if checkpoint.exists():
            with np.load(checkpoint) as saved:
                leaves = [saved[f"arr_{n}"] for n in range(len(jax.tree.leaves(trained)))]
                trained = jax.tree.unflatten(jax.tree.structure(trained), leaves)
                batches.set_state(json.loads(str(saved["loader"])))
        trained = replicated(trained)
        for step, batch in enumerate(batches, start=batches.get_state()["step"] + 1):
            trained, loss = train_step(trained, batch)
            told = float(loss)  # on every process: emulated devices run one step at a time
            if index == 0:
                print(json.dumps({"step": step, "loss": told}), flush=True)
            if step % CHECKPOINT_EVERY == 0:
                save(step, batches.get_state())


class Job:
    """The processes of one job, on this machine."""

    def __init__(self, count: int, checkpoint: Path) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES_PER_PROCESS}",
        }
        job = [str(port), str(count)]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--checkpoint",
                    checkpoint,
                    "--process",
                    *job,
                    str(index),
                ],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(count)
        ]

    def told(self) -> Iterator[dict]:
        """What process 0 says."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        return (json.loads(line) for line in stdout if line.startswith("{"))  # not the backend's

    def kill(self) -> None:
        """Ends every process that is left, as a cluster's scheduler does when one of them dies."""
        for process in self.processes:
            process.kill()

    def ended_well(self) -> bool:
        return [process.wait() for process in self.processes] == [0] * len(self.processes)


def curve(job: Job) -> dict[int, float]:
    """The loss of every step of a job that runs to its end."""
    try:
        losses = {told["step"]: told["loss"] for told in job.told() if "step" in told}
        if not job.ended_well():
            raise SystemExit("FAILED: a process ended with an error")
        return losses
    finally:
        job.kill()


def interrupted(job: Job) -> tuple[dict[int, float], int]:
    """The losses until the last process is killed, and the step of the last checkpoint."""
    losses, saved = {}, 0
    try:
        for told in job.told():
            saved = told.get("saved", saved)
            if "step" in told:
                losses[told["step"]] = told["loss"]
            if told.get("step") == KILL_AT:
                job.processes[-1].send_signal(signal.SIGKILL)
                break
        return losses, saved
    finally:
        job.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resume-on", type=int, default=3, choices=(1, 2, 3, 4))
    parser.add_argument("--process", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        train(*options.process, options.checkpoint)
        return 0
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = curve(Job(2, Path(folder) / "undisturbed.npz"))
        first, last = undisturbed[1], undisturbed[len(undisturbed)]
        print(f"2 processes, undisturbed: {len(undisturbed)} steps, loss {first:.3f} → {last:.3f}")
        before, saved = interrupted(Job(2, Path(folder) / "killed.npz"))
        print(
            f"2 again, one of them killed at step {KILL_AT}; the checkpoint of step {saved} is left"
        )
        after = curve(Job(options.resume_on, Path(folder) / "killed.npz"))
        print(f"{options.resume_on} went on from it: steps {min(after)} to {max(after)}")

    if min(after) != saved + 1 or max(after) != len(undisturbed):
        print("FAILED: steps are missing")
        return 1
    joined = {**before, **after}
    # Sums over other devices round otherwise: the same curve, not the same bits.
    apart = max(abs(joined[step] / loss - 1) for step, loss in undisturbed.items())
    if apart > 1e-2:
        print(f"FAILED: the losses differ by up to {apart:.1e}")
        return 1
    print(
        f"OK: the same loss curve over {len(joined)} steps (relative difference up to {apart:.1e})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
