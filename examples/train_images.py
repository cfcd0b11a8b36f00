"""Trains a small CNN on a folder of JPEG files, converted once to TensorStore.

Draws a folder as ImageNet's, a sub-folder of pictures for each class; decodes, resizes and writes
them as one data set, in chunks of many records; then trains on it, shuffled in blocks of one chunk,
so that each chunk is read about once in an epoch. Trains with and without worker processes, and
checks that the loss falls and is the same in both, to the bit. Try:

    python examples/train_images.py
    python examples/train_images.py --images path/to/train --data path/to/converted --epochs 3
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from PIL import Image, ImageDraw

import feeder

SIZE = 32
BATCH_SIZE = 64
SHAPES = ("cross", "disc", "ring", "square")


def draw(folder: Path, pictures_per_class: int) -> None:
    """Draws shapes of random colours, sizes and places on noise; pictures differ in size too."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for number in range(pictures_per_class):
            width, height = rng.integers(48, 97, size=2).tolist()
            noise = rng.integers(0, 160, (height, width, 3), dtype=np.uint8)
            picture = Image.fromarray(noise)
            radius = int(rng.integers(14, min(width, height) // 2 - 4))
            x = int(rng.integers(radius, width - radius))
            y = int(rng.integers(radius, height - radius))
            box = (x - radius, y - radius, x + radius, y + radius)
            colour = tuple(rng.integers(160, 256, size=3).tolist())
            pen = ImageDraw.Draw(picture)
            if shape == "disc":
                pen.ellipse(box, fill=colour)
            elif shape == "ring":
                pen.ellipse(box, outline=colour, width=radius // 3)
            elif shape == "square":
                pen.rectangle(box, fill=colour)
            else:
                pen.line((x, box[1], x, box[3]), fill=colour, width=radius // 2)
                pen.line((box[0], y, box[2], y), fill=colour, width=radius // 2)
            picture.save(folder / shape / f"{number:05}.jpg", quality=90)


def augment(record: dict, rng: np.random.Generator) -> dict:
    """Mirrors, shifts by up to 3 pixels, and scales the image to floats."""
    image = record["image"][:, ::-1] if rng.random() < 0.5 else record["image"]
    down, right = rng.integers(0, 7, size=2)
    padded = np.pad(image, ((3, 3), (3, 3), (0, 0)), mode="edge")
    image = padded[down : down + SIZE, right : right + SIZE].astype(np.float32) / 255
    return {"image": image, "label": record["label"]}


class CNN(nnx.Module):
    def __init__(self, num_classes: int, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(3, 16, kernel_size=(3, 3), strides=2, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, kernel_size=(3, 3), strides=2, rngs=rngs)
        self.hidden = nnx.Linear(SIZE // 4 * (SIZE // 4) * 32, 64, rngs=rngs)
        self.logits = nnx.Linear(64, num_classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv1(images))
        x = nnx.relu(self.conv2(x))
        return self.logits(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))


@nnx.jit
def train_step(model: CNN, optimizer: nnx.Optimizer, batch: dict) -> jax.Array:
    def loss_of(model: CNN) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def train(
    data: feeder.sources.TensorStore, num_classes: int, epochs: int, num_workers: int
) -> list[float]:
    """The loss of every step."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    model = CNN(num_classes, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
    loader = feeder.DataLoader(
        data,
        batch_size=BATCH_SIZE,
        shuffle=feeder.BlockShuffle(data.chunk_records),
        seed=0,
        num_epochs=epochs,
        transforms=[feeder.RandomMap(augment)],
        num_workers=num_workers,
        sharding=feeder.batch_sharding(mesh, "data"),
    )
    with loader, iter(loader) as batches:
        losses = [train_step(model, optimizer, batch) for batch in batches]
        stats = batches.stats()
        rate = stats.batches * BATCH_SIZE / stats.elapsed_s
        print(
            f"{num_workers} workers: {rate:,.0f} images/s, {stats.wait_share:.1%} waiting for data"
        )
    return [float(loss) for loss in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, metavar="DIR", help="class folders; default: drawn")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where to convert them to")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        if options.images is None:
            options.images = Path(folder) / "images"
            draw(options.images, 400)
        place = options.data or Path(folder) / "data"
        images = feeder.sources.ImageFolder(options.images, size=(SIZE, SIZE))
        print(f"{len(images)} images of {', '.join(images.classes[:8])}")
        if not place.exists():
            began = time.perf_counter()
            feeder.sources.write_tensorstore(
                images, place, num_workers=options.workers, chunk_records=64
            )
            print(f"decoded and written in {time.perf_counter() - began:.1f} s")
        data = feeder.sources.TensorStore(place)
        losses = train(data, len(images.classes), options.epochs, options.workers)
        again = train(data, len(images.classes), options.epochs, 0)

    first, last = np.mean(losses[:10]), np.mean(losses[-10:])
    print(f"loss: {first:.3f} in the first ten steps, {last:.3f} in the last ten")
    print(f"final loss: {losses[-1].hex()}")
    if losses != again:
        raise SystemExit(f"FAILED: without workers the final loss is {again[-1].hex()}")
    if not last < 0.5 * first:
        raise SystemExit("FAILED: the loss did not fall to a half")


if __name__ == "__main__":
    main()
