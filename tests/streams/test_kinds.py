"""What counts as a stream, and streams with the rest of the loader: devices, auto, testing."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import feeder
import feeder.testing
from tests.streams.shards import LENGTHS, Opener, Stateful, ids_of, run, stream
from tests.support import as_bytes


class Sharded:
    """Not a `Stream`, but all that one needs."""

    num_shards = len(LENGTHS)

    def open(self, shard, epoch, state):
        return Opener()(shard, epoch, state)


class Anew:
    """An iterable that begins anew, without len()."""

    def __iter__(self):
        return iter([{"id": np.int64(number)} for number in range(10)])


class Counted(Anew):
    def __len__(self):
        return 10


class IterableDataset:
    """As PyTorch has it: with a `[]` that only raises."""

    def __getitem__(self, index):
        raise NotImplementedError

    def __len__(self):
        return 10


class TorchLike(IterableDataset):
    def __iter__(self):
        return iter(Anew())


def generated():
    yield from Anew()


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["inline", "2"])
def test_what_can_be_read_anew_is_a_stream(workers):
    assert ids_of(run(Sharded(), 4, **workers)) == ids_of(run(stream(), 4))
    values = {number: {"id": np.int64(number)} for number in range(10)}.values()
    for source in (Anew(), Counted(), TorchLike(), generated, lambda: Anew(), values):
        if source is values and workers:
            continue  # a view of a dict cannot be pickled
        got = run(source, 4, num_epochs=2, last_batch="keep", **workers)
        assert ids_of(got) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    with feeder.DataLoader(Counted(), 4, num_epochs=2, last_batch="keep") as loader:
        assert len(loader) == 6


def test_what_is_used_up_is_refused():
    for source in (generated(), iter([1]), map(int, "12"), open(__file__)):  # noqa: SIM115
        with pytest.raises(TypeError, match="`source` must be readable more than once, got"):
            feeder.DataLoader(source, 1)
        getattr(source, "close", int)()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["inline", "2"])
def test_streams_are_placed_on_devices(options):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    expected = run(stream(kind=Stateful), 8, last_batch="pad")
    with feeder.DataLoader(
        stream(kind=Stateful), 8, last_batch="pad", sharding=sharding, **options
    ) as loader:
        assert loader.element_spec["x"].sharding == sharding
        with iter(loader) as batches:
            got = [next(batches) for _ in range(3)]
            state = batches.get_state()
            got += list(batches)
            batches.set_state(state)
            again = list(batches)
    assert all(batch["x"].sharding == sharding for batch in got)
    assert [batch["id"].tolist() for batch in got] == ids_of(expected)
    assert [batch["id"].tolist() for batch in again] == ids_of(expected)[3:]
    with pytest.raises(ValueError, match='"pad"'):
        feeder.DataLoader(stream(), 8, last_batch="keep", sharding=sharding)


def test_auto_measures_reading_too():
    with feeder.DataLoader(stream(), 4, num_workers="auto") as loader:
        assert list(map(as_bytes, loader)) == list(map(as_bytes, run(stream(), 4)))

    def slow(record):
        return max([record] * 200_000, key=lambda record: 0)

    with feeder.DataLoader(stream(), 8, num_workers="auto", transforms=[slow]) as loader:
        with iter(loader) as batches:
            next(batches)
            assert batches.stats().worker_pids


def test_streams_pass_the_assertions_for_users():
    def make(**options):
        return feeder.DataLoader(stream(kind=Stateful), 6, shuffle=True, **options)

    feeder.testing.assert_reproducible(make, num_workers=(0, 2), process_counts=(1, 3), steps=8)


def test_strings_and_objects_keep_their_rows_over_several_workers():
    def words(shard, epoch, state):
        for number in range(7 + shard):
            yield {"word": f"{shard}.{number}" * shard, "n": number, "any": {shard, number}}

    source = feeder.Stream(words, 5, block_length=1)
    expected = run(source, 8, last_batch="pad")
    assert expected[0]["word"].tolist() == ["", "1.0", "2.02.0", "3.03.03.0", "4.04.04.04.0", "",
                                            "1.1", "2.12.1"]  # fmt: skip
    for workers in (1, 2, 3):
        got = run(source, 8, last_batch="pad", num_workers=workers)
        assert [batch["word"].tolist() for batch in got] == [
            batch["word"].tolist() for batch in expected
        ]
        assert [batch["any"].tolist() for batch in got] == [
            batch["any"].tolist() for batch in expected
        ]


@pytest.mark.parametrize("rows", [3_000, 40_000])
def test_large_batches_are_asked_for_in_packets(rows):
    source = feeder.Stream(lambda shard, epoch, state: iter(range(30_000)), 4, block_length=1)
    (one,) = (next(iter(feeder.DataLoader(source, rows))),)
    with feeder.DataLoader(source, rows, num_workers=2) as loader:
        assert np.array_equal(next(iter(loader)), one)
    assert one[:9].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_a_stream_under_memory_pressure_loses_nothing():
    def large(shard, epoch, state):
        for number in range(40):
            yield np.full(50_000, shard * 1000 + number, np.float32)

    source = feeder.Stream(large, 3)
    for workers in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}):
        with feeder.DataLoader(source, 6, max_memory_bytes=4 * 1_200_000, **workers) as loader:
            firsts = [batch[:, 0].tolist() for batch in loader]
        assert firsts == [
            [shard * 1000 + 2 * step + n for shard in range(3) for n in range(2)]
            for step in range(20)
        ]


def test_a_stream_of_iterables_reads_each_as_a_shard():
    stream = feeder.stream_of([range(4), range(10, 14)])
    with feeder.DataLoader(stream, 4) as loader:
        assert sorted(np.concatenate(list(loader)).tolist()) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_integers_of_another_dtype_are_no_rows_of_unsigned_ones():
    for records in ([2**63, 5], [5, 2**63]):
        with feeder.DataLoader(feeder.Stream(lambda *_: iter(records)), 2) as loader:  # noqa: B023
            with pytest.raises(feeder.RecordMismatchError, match="must have the same dtype"):
                next(iter(loader))
