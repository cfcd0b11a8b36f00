"""Shards whose records say who they are, and iterators with and without a state."""

import os

import numpy as np
import pytest

import feeder

LENGTHS = [13, 4, 0, 21, 7, 1, 9]


def record(shard, number, epoch=0):
    return {"id": np.int64(epoch * 10**6 + shard * 10**3 + number), "x": np.float32(number) / 7}


class Plain:
    """An iterator without a state."""

    def __init__(self, shard, epoch, length):
        self.shard, self.epoch, self.length, self.number = shard, epoch, length, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == self.length:
            raise StopIteration
        self.number += 1
        return record(self.shard, self.number - 1, self.epoch)


class Stateful(Plain):
    """One that goes on from a state, under torchdata's names."""

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class OwnNames(Plain):
    """One that goes on from a state, under our own names, through `open` alone."""

    def get_state(self):
        return [self.shard, self.number]


class Opener:
    """Opens shards; picklable, and says so in a file where it is asked to."""

    def __init__(self, lengths=LENGTHS, kind=Plain, log=None):
        self.lengths, self.kind, self.log = lengths, kind, log

    def __call__(self, shard, epoch, state):
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()} {shard} {epoch} {state}\n")
        iterator = self.kind(shard, epoch, self.lengths[shard])
        if self.kind is OwnNames and state is not None:
            assert state[0] == shard
            iterator.number = state[1]
        return iterator


def stream(lengths=LENGTHS, kind=Plain, log=None, **options):
    return feeder.Stream(Opener(lengths, kind, log), len(lengths), **options)


def ids_of(batches):
    return [np.asarray(batch["id"]).tolist() for batch in batches]


def run(source, batch_size, **options):
    with feeder.DataLoader(source, batch_size, **options) as loader:
        return list(loader)


def everything(lengths=LENGTHS, epochs=1):
    return sorted(
        epoch * 10**6 + shard * 10**3 + number
        for epoch in range(epochs)
        for shard, length in enumerate(lengths)
        for number in range(length)
    )


WORKERS = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 3},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 3, "worker_type": "thread"},
]
WORKER_IDS = ["inline", "1", "2", "3", "2 threads", "3 threads"]


def each_of(first=0):
    """Runs a test with every number and kind of workers, some of them only where all tests run."""
    return pytest.mark.parametrize(
        "workers",
        [
            pytest.param(workers, id=name, marks=pytest.mark.exhaustive if number % 2 else ())
            for number, (workers, name) in enumerate(zip(WORKERS, WORKER_IDS, strict=True))
        ][first:],
    )
