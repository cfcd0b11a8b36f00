"""The promise: the same bytes, whatever the workers, deaths, interruptions and processes."""

import itertools
import os
import random
import signal
from typing import NamedTuple

import numpy as np
import pytest

import feeder

from .support import as_bytes, digest, indices_of, noisy, rows, run

OPTIONS = {"shuffle": True, "seed": 5, "num_epochs": 3}


class Pair(NamedTuple):
    first: object
    second: object


class Squares:
    """A source with `[]` alone, of records of mixed leaves."""

    def __len__(self):
        return 37

    def __getitem__(self, index):
        return {
            "index": index,
            "square": float(index) ** 2,
            "pair": (np.full(3, index), f"#{index}"),
        }


class Batched(Squares):
    def read(self, indices):
        return {"index": indices.copy(), "row": np.stack([np.full(4, i) for i in indices])}


class Listed(Squares):
    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def __getitem__(self, index):
        return super().__getitem__(index)


def pad_to_longest(records):
    longest = max(len(record) for record in records)
    return np.stack([np.pad(record, (0, longest - len(record))) for record in records])


def double(batch):
    return {**batch, "image": batch["image"] * 2}


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (rows(50), {}),
        (rows(50), {"transforms": [feeder.RandomMap(noisy), feeder.RandomMap(noisy)]}),
        (rows(50), {"last_batch": "keep", "batch_transforms": [double]}),
        (rows(50), {"last_batch": "pad", "transforms": [feeder.RandomMap(noisy)]}),
        (rows(50), {"last_batch": "rollover"}),
        (np.arange(60.0).reshape(20, 3), {"last_batch": "pad"}),
        (Pair(np.arange(20), {"deep": (np.arange(20) * 2,)}), {"last_batch": "pad"}),
        (Squares(), {"last_batch": "keep"}),
        (Squares(), {"last_batch": "pad", "batch_transforms": [lambda batch: batch]}),
        (Batched(), {}),
        (Batched(), {"transforms": [lambda record: record["row"] + record["index"]]}),
        (Listed(), {"last_batch": "pad"}),
        ([np.arange(k % 7 + 1) for k in range(40)], {"collate": pad_to_longest}),
        (["a", "bcd", "é" * 300] * 10, {}),
        ([{"text": "x" * k, "raw": bytes(k)} for k in range(60)], {}),
    ],
)
def test_the_number_of_workers_never_changes_a_byte(source, options):
    expected = run(source, 8, num_workers=0, **OPTIONS, **options)
    assert len(expected) > 1
    for num_workers in (1, 2, 3):
        got = run(source, 8, num_workers=num_workers, **OPTIONS, **options)
        assert [as_bytes(batch) for batch in got] == [as_bytes(batch) for batch in expected]


def test_fifty_random_sigkills_change_nothing():
    options = {**OPTIONS, "num_epochs": 40, "transforms": [feeder.RandomMap(noisy)]}
    expected = digest(run(rows(200), 8, **options))
    chance = random.Random(0)
    killed = set()
    received = []
    with feeder.DataLoader(rows(200), 8, num_workers=2, **options) as loader:
        batches = iter(loader)
        for step, batch in enumerate(batches):
            received.append(batch)
            alive = sorted(set(batches.stats().worker_pids) - killed)
            if len(killed) < 50 and step % 15 == 7 and alive:
                victim = chance.choice(alive)
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
        assert len(killed) == 50
        assert batches.stats().restarts == 50
    assert digest(received) == expected


def test_a_killed_zygote_changes_nothing():
    options = {**OPTIONS, "num_epochs": 20, "transforms": [feeder.RandomMap(noisy)]}
    expected = digest(run(rows(200), 8, **options))
    received = []
    killed = set()
    with feeder.DataLoader(rows(200), 8, num_workers=2, **options) as loader:
        for step, batch in enumerate(loader):
            received.append(batch)
            if step % 100 == 3:
                for zygote in set(children()) - killed:
                    os.kill(zygote, signal.SIGKILL)
                    killed.add(zygote)
    assert len(killed) >= 3
    assert digest(received) == expected


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        return [int(pid) for pid in listed.read().split()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_run_is_the_uninterrupted_run(num_workers):
    options = {**OPTIONS, "transforms": [feeder.RandomMap(noisy)], "num_workers": num_workers}
    with feeder.DataLoader(rows(50), 8, **options) as loader:
        whole = list(loader)
        assert len(whole) == len(loader) == 18
        for cut in (0, 1, 5, 6, 7, 17, 18):
            with iter(loader) as batches:
                head = list(itertools.islice(batches, cut))
                saved = batches.get_state()
            with iter(loader) as batches:
                batches.set_state(saved)
                assert batches.get_state() == saved
                tail = list(batches)
            assert digest(head + tail) == digest(whole)


def test_a_state_moves_between_numbers_of_workers_and_processes():
    def loader(num_workers, index=0, count=1):
        return feeder.DataLoader(
            rows(50),
            8,
            num_workers=num_workers,
            process_index=index,
            process_count=count,
            **OPTIONS,
        )

    with loader(0) as one, loader(2) as other:
        whole = indices_of(one)
        with iter(other) as batches:
            head = indices_of(itertools.islice(batches, 7))
            saved = batches.get_state()
    assert head == whole[:7]
    for count in (1, 2, 4):
        parts = []
        for index in range(count):
            with loader(0, index, count) as part, iter(part) as batches:
                assert batches.get_state().keys() == saved.keys()
                batches.set_state(saved)
                parts.append(indices_of(batches))
        joined = [sum(split, []) for split in zip(*parts, strict=True)]
        assert joined == whole[7:]


def test_an_iterator_may_go_back_and_forth():
    with feeder.DataLoader(rows(50), 8, num_workers=2, **OPTIONS) as loader:
        whole = indices_of(loader)
        with iter(loader) as batches:
            states = [batches.get_state()]
            for _ in range(10):
                next(batches)
                states.append(batches.get_state())
            for step in (9, 2, 10, 0):
                batches.set_state(states[step])
                assert indices_of(itertools.islice(batches, 3)) == whole[step : step + 3]


def test_several_iterators_of_one_loader_do_not_disturb_each_other():
    with feeder.DataLoader(rows(50), 8, num_workers=2, **OPTIONS) as loader:
        whole = indices_of(loader)
        first, second = iter(loader), iter(loader)
        mixed = [(indices_of([a]), indices_of([b])) for a, b in zip(first, second, strict=True)]
        assert [a for pair in mixed for a in pair[0]] == whole
        assert [b for pair in mixed for b in pair[1]] == whole
        pids = first.stats().worker_pids
        assert len(pids) == 2
        third = iter(loader)
        next(third)
        assert third.stats().worker_pids == pids


def test_several_loaders_live_side_by_side():
    with (
        feeder.DataLoader(rows(50), 5, num_workers=1) as first,
        feeder.DataLoader(np.arange(50) + 1000, 5, num_workers=1) as second,
    ):
        for step, (a, b) in enumerate(zip(first, second, strict=True)):
            assert a["index"].tolist() == list(range(5 * step, 5 * step + 5))
            assert b.tolist() == list(range(1000 + 5 * step, 1005 + 5 * step))


def test_no_record_is_fed_twice_in_an_epoch_and_epochs_differ():
    batches = indices_of(run(rows(48), 8, **OPTIONS, num_workers=2))
    epochs = [sum(batches[6 * e : 6 * e + 6], []) for e in range(3)]
    assert all(sorted(epoch) == list(range(48)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_batch_too_large_for_a_packet_is_planned_in_its_slot():
    source = np.arange(50_000, dtype=np.int32)
    expected = run(source, 20_000, shuffle=True, last_batch="pad")
    got = run(source, 20_000, shuffle=True, last_batch="pad", num_workers=2)
    assert digest(got) == digest(expected)
    assert sorted(np.concatenate([b[m] for b, m in got]).tolist()) == list(range(50_000))


def test_one_slow_record_delays_no_batch_but_its_own(tmp_path):
    os.mkfifo(tmp_path / "gate")

    def gated(record):
        if record == 0:
            (tmp_path / "gate").read_text()  # until someone opens the gate
        else:
            (tmp_path / str(record)).touch()
        return record

    with feeder.DataLoader(
        list(range(8)), 1, transforms=[gated], num_workers=2, prefetch_batches=8
    ) as loader:
        batches = iter(loader)
        opener = open_when(tmp_path / "gate", [tmp_path / str(k) for k in range(1, 8)])
        assert [int(batch[0]) for batch in batches] == list(range(8))
        assert opener.wait() == 0


def open_when(gate, files):
    """A process that opens the gate once all files are there."""
    import subprocess
    import sys

    code = (
        "import os, sys, pathlib, select\n"
        "gate, *files = map(pathlib.Path, sys.argv[1:])\n"
        "while not all(file.exists() for file in files): select.select([], [], [], 0.01)\n"
        "gate.write_text('')\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(gate), *map(str, files)])
