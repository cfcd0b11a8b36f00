"""Batches of streams: the same whoever reads them, each record once, and how they end."""

import numpy as np
import pytest

import feeder
from tests.streams.shards import (
    LENGTHS,
    WORKERS,
    Stateful,
    each_of,
    everything,
    ids_of,
    run,
    stream,
)
from tests.support import as_bytes

anyhow = each_of()


def shaken(value, rng):
    return {**value, "x": value["x"] + rng.random(dtype=np.float32)}


def is_even(value):
    return value["id"] % 2 == 0


def copies(value):
    return [{**value, "copy": np.int8(n)} for n in range(int(value["id"]) % 4)]


def join(records):
    return {"id": np.concatenate([[record["id"]] for record in records])}


CASES = {
    "plain": ({}, {}),
    "short cycle": ({"cycle_length": 3}, {"last_batch": "keep"}),
    "blocks": ({"block_length": 4}, {"last_batch": "keep"}),
    "stateful": ({"kind": Stateful}, {"transforms": [feeder.RandomMap(shaken)]}),
    "filter": ({}, {"transforms": [feeder.Filter(is_even), feeder.RandomMap(shaken)]}),
    "random, then filter": (
        {"cycle_length": 2},
        {"transforms": [feeder.RandomMap(shaken), feeder.Filter(is_even)]},
    ),
    "flat map": ({}, {"transforms": [feeder.FlatMap(copies, 3), feeder.RandomMap(shaken)]}),
    "shuffle": ({"cycle_length": 4}, {"shuffle": True, "seed": 3}),
    "small window": ({}, {"shuffle": feeder.WindowShuffle(16), "num_epochs": 2}),
    "rollover": ({}, {"last_batch": "rollover", "num_epochs": 3}),
    "pad": ({"kind": Stateful}, {"last_batch": "pad", "num_epochs": 2}),
    "collate": ({"block_length": 2}, {"collate": join, "last_batch": "keep"}),
}


@pytest.mark.parametrize(("variant", "options"), CASES.values(), ids=CASES)
def test_batches_depend_on_no_number_of_workers(variant, options):
    expected = run(stream(**variant), 4, **options)
    assert expected
    for workers in WORKERS[1:]:
        got = run(stream(**variant), 4, **options, **workers)
        assert list(map(as_bytes, got)) == list(map(as_bytes, expected)), workers


@anyhow
def test_every_record_is_read_once_in_an_epoch(workers, tmp_path):
    log = tmp_path / "opened"
    batches = run(stream(log=log), 4, last_batch="keep", num_epochs=2, **workers)
    assert sorted(sum(ids_of(batches), [])) == everything(epochs=2)
    opened = [line.split()[1:] for line in log.read_text().splitlines()]
    assert sorted(opened) == sorted(
        [str(shard), str(epoch), "None"] for shard in range(len(LENGTHS)) for epoch in range(2)
    )


@anyhow
@pytest.mark.parametrize(
    ("last_batch", "sizes"),
    [("drop", [10] * 5), ("keep", [10] * 5 + [5]), ("pad", [10] * 6), ("rollover", [10] * 5)],
)
def test_the_last_batch_is_what_last_batch_says(last_batch, sizes, workers):
    batches = run(stream(), 10, last_batch=last_batch, **workers)
    if last_batch == "pad":
        assert [int(batch["mask"].sum()) for batch in batches] == [10] * 5 + [5]
        assert (batches[-1]["id"][5:] == batches[-1]["id"][4]).all()
    assert [len(batch["id"]) for batch in batches] == sizes


@anyhow
@pytest.mark.parametrize(
    ("last_batch", "count"), [("drop", 0), ("keep", 1), ("pad", 1), ("rollover", 0)]
)
def test_a_stream_shorter_than_a_batch_ends(last_batch, count, workers):
    batches = run(stream([2, 1]), 8, last_batch=last_batch, **workers)
    assert len(batches) == count


def test_an_endless_run_of_epochs_without_a_batch_is_an_error():
    with feeder.DataLoader(stream([2, 1]), 8, num_epochs=None) as loader:
        with pytest.raises(feeder.StreamError) as caught:
            next(iter(loader))
    assert str(caught.value) == (
        "`source` must give at least 8 records in each epoch, with `batch_size` 8 and `last_batch` "
        "'drop', got 3 in epoch 0, and would go on so for ever"
    )
    assert caught.value.epoch == 0


@anyhow
def test_an_endless_stream_goes_on(workers):
    with feeder.DataLoader(stream([10**9, 10**9]), 4, **workers) as loader:
        batches = iter(loader)
        for first in range(0, 40, 2):
            expected = [first, first + 1, 1000 + first, 1001 + first]
            assert next(batches)["id"].tolist() == expected
        assert batches.get_state()["step"] == 20


@anyhow
def test_an_empty_stream_has_no_batch(workers):
    assert run(stream([0, 0, 0]), 2, last_batch="keep", **workers) == []


@anyhow
def test_each_epoch_opens_its_shards_with_its_number(workers):
    batches = run(stream([4, 4]), 4, num_epochs=3, **workers)
    assert [batch["id"][0] // 10**6 for batch in batches] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("workers", [WORKERS[0], WORKERS[2]], ids=["inline", "2"])
def test_simulated_hosts_share_the_rows_of_every_batch(workers):
    options = {"last_batch": "pad", "num_epochs": 2, "transforms": [feeder.RandomMap(shaken)]}
    whole = run(stream(), 6, **options)
    for count in (2, 3):
        parts = [
            run(stream(), 6, process_index=index, process_count=count, **options, **workers)
            for index in range(count)
        ]
        assert {len(part) for part in parts} == {len(whole)}
        for step, batch in enumerate(whole):
            joined = {key: np.concatenate([part[step][key] for part in parts]) for key in batch}
            assert as_bytes(joined) == as_bytes(batch)


def test_a_shuffle_is_another_one_in_each_epoch_and_for_each_seed():
    def order(seed, epochs):
        got = run(stream([40] * 6), 8, shuffle=True, seed=seed, num_epochs=epochs)
        return [number % 10**6 for number in sum(ids_of(got), [])]

    one, two = order(0, 2)[:240], order(0, 2)[240:]
    assert sorted(one) == sorted(two) == everything([40] * 6)
    assert one != two
    assert order(1, 1) != one
    assert one != sorted(one)


def test_a_window_holds_so_many_records_over_all_shards():
    source = stream([100, 100])
    order = sum(ids_of(run(source, 10, shuffle=feeder.WindowShuffle(20))), [])
    for shard in range(2):
        mine = [number % 1000 for number in order if number // 1000 == shard]
        assert mine != sorted(mine)
        assert all(number // 10 == place // 10 for place, number in enumerate(mine))


def test_random_draws_depend_on_the_record_and_not_on_its_batch():
    options = {"transforms": [feeder.RandomMap(shaken)], "last_batch": "keep"}

    def drawn(size):
        return {
            int(number): float(x)
            for batch in run(stream(), size, **options)
            for number, x in zip(batch["id"], batch["x"], strict=True)
        }

    assert drawn(3) == drawn(10)
    assert len({x - number % 1000 / 7 for number, x in drawn(3).items()}) > 50


def test_two_epochs_draw_anew():
    batches = run(stream([8]), 4, num_epochs=2, transforms=[feeder.RandomMap(shaken)])
    assert not (batches[0]["x"] == batches[2]["x"]).any()


def test_batch_is_the_batch_of_a_run():
    loader = feeder.DataLoader(stream(), 5, last_batch="pad", num_epochs=2)
    with loader:
        batches = list(loader)
        for step in (0, 7, 10, 21):
            assert as_bytes(loader.batch(step)) == as_bytes(batches[step])
        with pytest.raises(ValueError, match="`step` must be a step of the run, which ends before"):
            loader.batch(22)


def test_the_spec_is_known_from_one_record():
    for options in ({}, {"transforms": [feeder.FlatMap(copies, 3)]}, {"collate": join}):
        with feeder.DataLoader(stream(), 4, **options) as loader:
            batch = next(iter(loader))
            spec = loader.element_spec
            assert {name: (leaf.shape, leaf.dtype) for name, leaf in spec.items()} == {
                name: (leaf.shape, leaf.dtype) for name, leaf in batch.items()
            }


def test_a_length_makes_a_loader_countable():
    with feeder.DataLoader(stream(length=sum(LENGTHS)), 10, num_epochs=2) as loader:
        assert len(loader) == 10 == len(list(loader))
        assert loader.steps_per_epoch == 5
        assert ids_of(loader.epoch(1)) == ids_of(loader)[5:]
    with feeder.DataLoader(stream(), 10) as loader:
        with pytest.raises(
            TypeError, match="len\\(\\) of a loader needs an end, and the stream has"
        ):
            len(loader)
        with pytest.raises(TypeError):
            print(loader.steps_per_epoch)
        assert ids_of(loader.epoch(0)) == ids_of(loader)
    options = {"num_epochs": 2, "last_batch": "rollover"}
    with feeder.DataLoader(stream(length=sum(LENGTHS)), 10, **options) as loader:
        with pytest.raises(TypeError, match="begins within a batch: use iter"):
            loader.epoch(1)


@pytest.mark.parametrize("length", [54, 56, 0])
@anyhow
def test_a_length_that_proves_wrong_is_an_error(length, workers):
    with feeder.DataLoader(stream(length=length), 10, last_batch="keep", **workers) as loader:
        with pytest.raises(feeder.StreamError) as caught:
            list(loader)
    assert str(caught.value) == (
        "`length` must be the number of records that the shards of an epoch hold, got "
        f"{length} where epoch 0 has 55; correct it, or leave it out"
    )
