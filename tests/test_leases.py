"""A batch is the user's as long as any array on it lives."""

import gc

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder

from .support import digest, rows, run

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def eight_devices():
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))


@WORKERS
def test_kept_batches_are_never_overwritten(num_workers):
    expected = run(rows(400), 8, num_epochs=2)
    expected_digest = digest(expected)
    with feeder.DataLoader(rows(400), 8, num_epochs=2, num_workers=num_workers) as loader:
        kept = list(loader)
    assert digest(kept) == expected_digest


@WORKERS
def test_a_view_keeps_its_batch(num_workers):
    with feeder.DataLoader(rows(400), 8, num_workers=num_workers) as loader:
        views = [batch["index"][2:5] for batch in loader]
    assert [view.tolist() for view in views] == [
        [8 * k + 2, 8 * k + 3, 8 * k + 4] for k in range(50)
    ]


@WORKERS
def test_arrays_on_devices_stay_as_they_are_while_batches_flow_on(num_workers):
    # On CPU a jax.Array may be the slot's memory itself. Kept shards, and work in flight, must
    # see the batch that they were made of, however late they are looked at.
    source = {"x": np.arange(4096 * 64, dtype=np.float32).reshape(4096, 64)}
    expected = run(source, 64, shuffle=True)
    sums, shards = [], []
    total = jax.jit(lambda x: (x * 2).sum(axis=1))
    with feeder.DataLoader(
        source, 64, shuffle=True, num_workers=num_workers, sharding=eight_devices()
    ) as loader:
        for step, batch in enumerate(loader):
            sums.append(total(batch["x"]))
            if step % 3 == 0:
                shards.append((step, batch["x"].addressable_shards[5].data))
            del batch
    for step, batch in enumerate(expected):
        assert np.array_equal(np.asarray(sums[step]), (batch["x"] * 2).sum(axis=1))
    for step, shard in shards:
        assert np.array_equal(np.asarray(shard), expected[step]["x"][40:48])


@WORKERS
def test_delivered_arrays_may_be_written_to_and_the_source_stays(num_workers):
    source = rows(64)
    with feeder.DataLoader(source, 8, num_epochs=2, num_workers=num_workers) as loader:
        for batch in loader:
            assert np.array_equal(batch["image"], rows(64)["image"][batch["index"]])
            batch["image"][:] = -1
    assert digest([source]) == digest([rows(64)])


@WORKERS
def test_a_transform_that_writes_into_its_record_leaves_the_source(num_workers):
    def clear(record):
        record["image"][:] = 0
        return record

    source = rows(64)
    run(source, 8, transforms=[clear], num_workers=num_workers)
    assert digest([source]) == digest([rows(64)])


class Stored:
    """A source that hands out what it holds."""

    def __init__(self):
        self.records = [{"x": np.zeros(3), "deep": [np.zeros(2), k]} for k in range(12)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


@pytest.mark.parametrize("make", [Stored, lambda: Stored().records])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_records_changed_in_place_change_no_later_batch(make, num_workers):
    def spoil(record, rng):
        record["x"] += rng.random()
        record["deep"][0][:] = record["deep"][1]
        record["new"] = record.pop("x")
        return record

    def collate(records):
        for record in records:
            record["deep"].append(np.float32(len(record["deep"])))
        return np.array([record["deep"][2] for record in records])

    for options in ({"transforms": [feeder.RandomMap(spoil)]}, {"collate": collate}):
        source = make()
        expected = [run(make(), 4, shuffle=True, num_epochs=epochs, **options) for epochs in (1, 3)]
        with feeder.DataLoader(
            source, 4, shuffle=True, num_epochs=3, num_workers=num_workers, **options
        ) as loader:
            for _ in range(2):
                got = list(loader)
                assert digest(got) == digest(expected[1])
                assert digest(got[:3]) == digest(expected[0])


@WORKERS
def test_batches_stay_valid_after_close(num_workers):
    loader = feeder.DataLoader(rows(64), 8, num_workers=num_workers)
    batches = iter(loader)
    first, second = next(batches), next(batches)
    batches.close()
    loader.close()
    del loader, batches
    gc.collect()
    assert first["index"].tolist() == list(range(8))
    assert second["index"].tolist() == list(range(8, 16))


@WORKERS
def test_keeping_too_much_is_an_error_and_letting_go_cures_it(num_workers):
    source = np.arange(200 * 4096, dtype=np.uint8).reshape(200, 4096)
    with feeder.DataLoader(
        source, 4, num_workers=num_workers, prefetch_batches=2, max_memory_bytes=10 * 16384
    ) as loader:
        batches = iter(loader)
        kept = []
        with pytest.raises(feeder.MemoryLimitError, match=r"raise `max_memory_bytes`$") as caught:
            kept.extend(batches)
        assert caught.value.limit_bytes == 10 * 16384
        assert 7 <= len(kept) <= 10
        delivered = len(kept)
        assert np.array_equal(np.concatenate(kept), source[: 4 * delivered])
        kept.clear()
        for step, batch in enumerate(batches, start=delivered):
            assert np.array_equal(batch, source[4 * step : 4 * step + 4])
        assert step == 49


@WORKERS
def test_batches_that_grow_find_larger_slots(num_workers):
    records = [np.full(1 + 50 * k, k, np.int32) for k in range(60)]

    def pad(items):
        longest = max(map(len, items))
        return np.stack([np.pad(item, (0, longest - len(item))) for item in items])

    kept = run(records, 2, collate=pad, num_workers=num_workers)
    for step, batch in enumerate(kept):
        assert batch.shape == (2, 1 + 50 * (2 * step + 1))
        assert batch[1].tolist() == [2 * step + 1] * batch.shape[1]
