"""Several workers share a batch: the same batches and the same errors as with one."""

import os
import signal

import numpy as np
import pytest

import feeder
from tests.support import digest, kill_one, noisy, rows

pytestmark = pytest.mark.matrix


class Records:
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return {"index": np.int64(index), "text": "x" * index, "image": np.full((3, 5), index)}


class Batches(Records):
    def read(self, indices):
        return {
            "index": np.asarray(indices),
            "image": np.ones((len(indices), 7)) * indices[:, None],
        }


class Listed(Records):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def drawing(record):
    return {**record, "draw": np.random.random()}


def padded(records):
    return np.array([record["index"] for record in records])


def reversed_rows(batch):
    return {name: leaf[::-1] for name, leaf in batch.items()}


RECIPES = {
    "arrays": (rows(50), {}),
    "records": (Records(), {}),
    "batches": (Batches(), {}),
    "listed": (Listed(), {}),
    "random map": (rows(50), {"transforms": [feeder.RandomMap(noisy)]}),
    "global random": (Listed(), {"transforms": [drawing]}),
    "pad": (rows(50), {"last_batch": "pad"}),
    "keep": (Records(), {"last_batch": "keep"}),
    "collate": (Records(), {"collate": padded}),
    "batch transform": (Batches(), {"batch_transforms": [reversed_rows]}),
}


@pytest.mark.parametrize(("source", "options"), RECIPES.values(), ids=RECIPES)
def test_the_number_of_chunks_never_changes_a_byte(source, options):
    def made(**more):
        return feeder.DataLoader(
            source, 8, shuffle=True, num_epochs=3, **{"last_batch": "drop", **options}, **more
        )

    expected = digest(made())
    for chunks in (1, 2, 3, 8, 100):
        with made(num_workers=3, chunks_per_batch=chunks) as loader:
            assert digest(loader) == expected


def test_the_workers_share_a_batch():
    def with_pid(record):
        return {**record, "pid": np.int64(os.getpid())}

    with feeder.DataLoader(
        rows(400), 40, transforms=[with_pid], num_workers=2, chunks_per_batch=4
    ) as loader:
        batches = list(loader)
    shared = [len(set(batch["pid"].tolist())) for batch in batches]
    assert max(shared) == 2
    assert digest(batch["index"] for batch in batches) == digest(
        batch["index"] for batch in feeder.DataLoader(rows(400), 40)
    )


def test_a_killed_worker_s_chunk_is_built_again():
    with feeder.DataLoader(
        rows(4000), 40, transforms=[dict], num_workers=2, chunks_per_batch=4
    ) as loader:
        batches = iter(loader)
        seen = []
        for batch in batches:
            seen.append(batch)
            if len(seen) % 10 == 0:
                kill_one(batches, signal.SIGKILL)
    assert digest(seen) == digest(feeder.DataLoader(rows(4000), 40, transforms=[dict]))


def odd_at(bad):
    def transform(record):
        if record["index"] == bad:
            return {**record, "image": record["image"][:1]}
        return record

    return transform


@pytest.mark.parametrize("bad", [16, 17, 19, 20, 23])
def test_an_error_is_that_of_the_whole_batch(bad):
    def failing(record):
        if record["index"] == bad:
            raise ValueError(f"bad record {bad}")
        return record

    def error_of(transform, **options):
        with feeder.DataLoader(rows(80), 8, transforms=[transform], **options) as loader:
            batches = iter(loader)
            next(batches), next(batches)
            with pytest.raises((ValueError, feeder.RecordMismatchError)) as caught:
                next(batches)
            where = caught.value if isinstance(caught.value, feeder.FeederError) else None
            where = where or caught.value.__cause__
            return str(caught.value), where.index, where.position, where.step

    for transform in (failing, odd_at(bad)):
        expected = error_of(transform)
        assert expected[1:] == (17 if bad == 16 and transform is not failing else bad,) * 2 + (2,)
        assert error_of(transform, num_workers=2, chunks_per_batch=4) == expected


def test_a_chunk_that_kills_its_workers_fails_its_batch_alone():
    def dying(record):
        if record["index"] == 29:
            os._exit(3)
        return record

    with feeder.DataLoader(
        rows(80), 8, transforms=[dying], num_workers=2, chunks_per_batch=4
    ) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(3)]
        with pytest.raises(feeder.WorkerDiedError) as caught:
            next(batches)
        assert caught.value.step == 3
        assert 29 in caught.value.indices
        assert digest(seen) == digest(list(feeder.DataLoader(rows(80), 8))[:3])


def test_batches_that_grow_are_built_in_one_piece_and_then_in_chunks_again():
    def growing(record):
        size = 10 if record["index"] < 40 else 5000
        return {"index": record["index"], "data": np.full(size, record["index"])}

    expected = digest(feeder.DataLoader(rows(80), 8, transforms=[growing]))
    with feeder.DataLoader(
        rows(80), 8, transforms=[growing], num_workers=2, chunks_per_batch=3
    ) as loader:
        assert digest(loader) == expected


def test_a_batch_of_more_rows_than_fit_a_packet_travels_in_more_chunks():
    big = rows(40_000)
    expected = digest(feeder.DataLoader(big, 20_000, transforms=[dict], num_epochs=3))
    with feeder.DataLoader(
        big, 20_000, transforms=[dict], num_epochs=3, num_workers=2, chunks_per_batch=2
    ) as loader:
        assert digest(loader) == expected


def test_closing_and_several_iterators_leave_nothing_behind():
    with feeder.DataLoader(
        rows(800), 8, transforms=[dict], num_workers=2, chunks_per_batch=3, shuffle=True
    ) as loader:
        expected = digest(loader)
        for _ in range(5):
            one, other = iter(loader), iter(loader)
            next(one), next(other), next(one)
            one.close()
            del other
        assert digest(loader) == expected


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_number_of_chunks_that_is_none_is_refused(value, error):
    message = f"^`chunks_per_batch` must be an integer of at least 1, got {value}$"
    with pytest.raises(error, match=message):
        feeder.DataLoader(rows(8), 4, chunks_per_batch=value)
