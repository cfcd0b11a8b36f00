"""Loaders that the commands are tried on, as a user's module has them."""

import os
import sys

import cloudpickle
import numpy as np

import feeder

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers start sooner
NUMBER = 3


def rows(num_records):
    index = np.arange(num_records, dtype=np.int32)
    return {
        "image": np.arange(num_records * 12, dtype=np.float32).reshape(-1, 3, 4),
        "index": index,
    }


def noisy(record, rng):
    return {**record, "image": record["image"] + rng.random(dtype=np.float32)}


def loader(**options):
    """A reproducible one."""
    return feeder.DataLoader(
        rows(40),
        8,
        **{"shuffle": True, "num_epochs": 2, "transforms": [feeder.RandomMap(noisy)], **options},
    )


ready = loader()


def images(num_records=24):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (num_records, 8, 6, 3), np.uint8)
    source = {
        "pixels": pixels,
        "planes": np.moveaxis(pixels, -1, 1).astype(np.float32) / 255,
        "digit": pixels[..., 0].astype(np.int32),
        "name": np.array([f"image {number}" for number in range(num_records)], object),
        "weight": np.where(np.arange(num_records) % 3, 0.5, np.nan).astype(np.float32),
    }
    return feeder.DataLoader(source, 6, num_workers=1)


def whose(record):
    return {**record, "pid": np.int64(os.getpid())}


def depends_on_workers(**options):
    return loader(transforms=[whose], **options)


def seeded_by_workers(num_workers=0):
    return feeder.DataLoader(rows(40), 8, shuffle=True, seed=num_workers)


def of_odd_batches():
    return feeder.DataLoader(rows(7), batch_sampler=[[0], [3, 1], [2, 4, 5], [6]])


def collated():
    return loader(collate=lambda records: np.stack([record["index"] for record in records]))


def read(shard, _epoch, state):
    for number in range(state or 0, 30):
        yield {"number": np.int64(100 * shard + number)}


def stream():
    return feeder.DataLoader(feeder.Stream(read, 2), 4, shuffle=True, num_workers=2)


class Count:
    def __init__(self):
        self.count = 0

    def __call__(self, batch_size):
        self.count += 1
        return {"count": np.full(batch_size, self.count)} if self.count <= 30 else None


class SavedCount(Count):
    def state_dict(self):
        return self.count

    def load_state_dict(self, count):
        self.count = count


live = feeder.DataLoader(feeder.FromCallable(Count()), 4)
saved = feeder.DataLoader(feeder.FromCallable(SavedCount()), 4)


def live_anew():
    return feeder.DataLoader(feeder.FromCallable(Count()), 4)


def broken(record):
    raise KeyError(f"nothing is known of {record['index']}")


def breaks():
    return loader(transforms=[broken], num_workers=1)


def raises():
    raise RuntimeError("there are no data today")


def of_file(path):
    return feeder.DataLoader(np.load(path), 8)


def no_loader():
    return [1, 2, 3]


def announced(record):
    print("at work", flush=True)
    return record


def endless():
    return loader(transforms=[announced], num_epochs=None, num_workers=1)


def sharded():
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("data",))
    return loader(sharding=NamedSharding(mesh, P("data")), num_workers=1)
