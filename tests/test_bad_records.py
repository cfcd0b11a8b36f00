"""Records that cannot be read or transformed: raised, left out, or replaced; always alike."""

import logging
import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder
from tests.support import digest, indices_of, noisy, rows

pytestmark = pytest.mark.matrix

BAD = {3, 8, 9, 21}


def picky(record):
    if int(record["index"]) in BAD:
        raise ValueError(f"record {int(record['index'])} is bad")
    return record


class Source:
    def __init__(self, bad=BAD):
        self.bad = bad

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"record {index} cannot be read")
        return {"index": np.int64(index), "image": np.full(3, index)}


class Batches(Source):
    def read(self, indices):
        for index in indices:
            self[int(index)]
        return {"index": np.asarray(indices), "image": np.asarray(indices)[:, None] * np.ones(3)}


class Listed(Source):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def collated(records):
    return {"index": np.array([record["index"] for record in records])}


def doubled(batch):
    return {**batch, "double": 2 * batch["index"]}


RECIPES = {
    "transform": (rows(40), {"transforms": [picky]}),
    "source": (Source(), {}),
    "read": (Batches(), {}),
    "read, random map": (Batches(), {"transforms": [feeder.RandomMap(noisy)]}),
    "listed": (Listed(), {}),
    "collate": (Source(), {"collate": collated}),
    "batch transform": (Batches(), {"batch_transforms": [doubled]}),
}


def made(name, mode, num_workers=0, **options):
    source, recipe = RECIPES[name]
    return feeder.DataLoader(
        source,
        **{"batch_size": 4, "shuffle": True, "num_epochs": 2, "last_batch": "keep", **options},
        on_bad_record=mode,
        num_workers=num_workers,
        **recipe,
    )


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, "feeder")


@pytest.mark.parametrize("name", RECIPES)
def test_skip_leaves_their_rows_out_and_nothing_else(name):
    with_bad = [
        [index for index in batch if index not in BAD]
        for batch in indices_of(feeder.DataLoader(rows(40), 4, shuffle=True, num_epochs=2))
    ]
    batches = iter(made(name, "skip"))
    assert indices_of(batches) == with_bad
    stats = batches.stats()
    assert stats.num_bad_records == 2 * len(BAD)
    assert {record.index for record in stats.bad_records} == BAD
    assert all(record.replaced_by is None for record in stats.bad_records)


@pytest.mark.parametrize("name", RECIPES)
def test_replace_puts_others_of_the_epoch_in_their_rows_and_nothing_else(name):
    plain = indices_of(feeder.DataLoader(rows(40), 4, shuffle=True, num_epochs=2))
    batches = iter(made(name, "replace"))
    found = indices_of(batches)
    replaced = {
        (record.position, record.index): record.replaced_by
        for record in batches.stats().bad_records
    }
    assert len(replaced) == 2 * len(BAD)
    for step, (got, expected) in enumerate(zip(found, plain, strict=True)):
        for row, (one, other) in enumerate(zip(got, expected, strict=True)):
            if other in BAD:
                assert one == replaced[step * 4 + row, other]
                assert one not in BAD
            else:
                assert one == other


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_workers_chunks_resumes_and_single_batches_agree(name, mode):
    expected = list(made(name, mode))
    assert digest(made(name, mode).batch(step) for step in range(20)) == digest(expected)
    for num_workers, chunks in ((2, 1), (3, 4)):
        with made(name, mode, num_workers, chunks_per_batch=chunks) as loader:
            batches = iter(loader)
            assert digest(batches) == digest(expected)
            assert batches.stats().num_bad_records == 2 * len(BAD)
            batches = iter(loader)
            batches.set_state({**batches.get_state(), "step": 5, "position": 20})
            assert digest(batches) == digest(expected[5:])


def test_simulated_processes_replace_alike():
    whole = indices_of(made("transform", "replace"))
    parts = [
        indices_of(made("transform", "replace", process_index=index, process_count=2))
        for index in range(2)
    ]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole


def test_the_batch_size_does_not_change_what_replaces_a_record():
    flat = [
        sum(indices_of(made("transform", "replace", batch_size=size)), []) for size in (1, 4, 10)
    ]
    assert flat[0] == flat[1] == flat[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_more_than_max_bad_records_are_an_error_at_the_very_batch(num_workers):
    plain = indices_of(feeder.DataLoader(rows(40), 4, shuffle=True, num_epochs=2))
    counts = np.cumsum([len(BAD.intersection(batch)) for batch in plain])
    last = int(np.searchsorted(counts, 3, side="right"))
    with made("transform", "skip", num_workers, max_bad_records=3) as loader:
        batches = iter(loader)
        for _ in range(last):
            next(batches)
        for _ in range(2):
            with pytest.raises(feeder.BadRecordsError) as caught:
                next(batches)
            assert caught.value.step == last
            assert caught.value.limit == 3
            assert str(caught.value).startswith(
                "at most `max_bad_records` = 3 records may be bad in one run, got "
            )
            assert "is bad; mend or leave out these records, or raise `max_bad" in str(caught.value)
    assert len(list(made("transform", "skip", max_bad_records=8))) == 20


@pytest.mark.parametrize("num_workers", [0, 1])
def test_each_is_logged_once_when_its_batch_is_delivered(num_workers, caplog):
    caplog.set_level(logging.WARNING, "feeder")
    loader = feeder.DataLoader(Source({1, 6}), 4, on_bad_record="skip", num_workers=num_workers)
    with loader:
        batches = iter(loader)
        next(batches)
        assert [record.message for record in caplog.records] == [
            "record 1 (step 0, position 1) is left out: OSError: record 1 cannot be read"
        ]
        next(batches)
        assert len(caplog.records) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_bad_records_alone_is_the_error_of_the_last(num_workers):
    source = Source(set(range(4, 8)))
    for mode in ("skip", "replace"):
        everywhere = source if mode == "skip" else Source(set(range(40)))
        with (
            feeder.DataLoader(everywhere, 4, on_bad_record=mode, num_workers=num_workers) as loader,
            pytest.raises(OSError, match="cannot be read"),
        ):
            list(loader)


def test_records_that_do_not_fit_each_other_are_no_bad_records():
    def odd(record):
        return (
            {"image": record["image"][:1]} if record["index"] == 5 else {"image": record["image"]}
        )

    with pytest.raises(feeder.RecordMismatchError):
        list(feeder.DataLoader(rows(8), 4, transforms=[odd], on_bad_record="skip"))


def test_a_mask_follows_the_rows_that_are_left():
    *_, last = feeder.DataLoader(Source({38}), 12, last_batch="pad", on_bad_record="skip")
    assert last["index"].tolist() == [36, 37, *[39] * 9]
    assert last["mask"].tolist() == [True] * 3 + [False] * 8


def test_replaced_rows_go_to_the_devices():
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    loader = feeder.DataLoader(Source(), 8, on_bad_record="replace", sharding=sharding)
    for batch in loader:
        assert batch["index"].shape == (8,)
        assert not BAD.intersection(batch["index"].tolist())


def test_a_sampler_s_own_records_replace_bad_ones():
    kept = [index for index in range(40) if index % 4 != 2]
    for sampler in (kept, feeder.WeightedSampler([index % 4 != 2 for index in range(40)])):
        loader = feeder.DataLoader(Source(), 5, sampler=sampler, on_bad_record="replace")
        assert set(sum(indices_of(loader), [])) <= set(kept) - BAD


def test_element_spec_passes_over_a_bad_first_record():
    for mode in ("skip", "replace"):
        spec = feeder.DataLoader(Source({0, 1}), 4, on_bad_record=mode).element_spec
        assert spec["image"].shape == (4, 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"on_bad_record": "drop"},
            ValueError,
            "`on_bad_record` must be 'raise', 'skip' or 'replace', got 'drop'",
        ),
        (
            {"max_bad_records": -1},
            ValueError,
            "`max_bad_records` must be an integer of at least 0, got -1",
        ),
        (
            {"on_bad_record": "replace", "batch_size": None, "batch_sampler": [[1]]},
            ValueError,
            '`on_bad_record` must be "raise" or "skip" with a batch_sampler, or with a sampler '
            'without len() and [], got "replace": which records are in the epoch is not known',
        ),
    ],
)
def test_what_cannot_work_is_refused(options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(rows(40), **{"batch_size": 4, **options})


def test_skip_is_refused_with_a_sharding():
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    message = (
        '`on_bad_record` must be "raise" or "replace" with a `sharding`, got "skip": the shorter '
        "batch would not fit the devices"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(rows(40), 8, sharding=sharding, on_bad_record="skip")


def test_a_batch_without_a_good_record_says_what_helps():
    def bad(record):
        if 10 <= record < 20:
            raise ValueError("bad")
        return record

    for option, note in (
        (
            "skip",
            "All 10 records of it are bad, and a batch must have one: "
            '`on_bad_record="replace"` puts others in their place; feeder.filtered, or a '
            "`sampler`, leaves them out beforehand.",
        ),
        ("replace", None),
    ):
        with feeder.DataLoader(
            list(range(40)), 10, transforms=[bad], on_bad_record=option
        ) as loader:
            batches = iter(loader)
            next(batches)
            if note is None:
                assert not set(next(batches).tolist()) & set(range(10, 20))
                continue
            with pytest.raises(ValueError, match=r"^bad") as caught:
                next(batches)
            assert note in caught.value.__notes__


def test_half_of_the_records_may_be_bad_and_all_of_them_are_told():
    def odd(record):
        if record % 2:
            raise ValueError("odd")
        return record

    options = {"on_bad_record": "replace", "shuffle": True}
    with feeder.DataLoader(list(range(2000)), 100, transforms=[odd], **options) as loader:
        assert not any((batch % 2).any() for batch in loader)

    def worse(record):
        raise ValueError("bad")

    with feeder.DataLoader(list(range(20)), 4, transforms=[worse], **options) as loader:
        with pytest.raises(ValueError, match=r"^bad") as caught:
            next(iter(loader))
    assert (
        'The 16 records that were drawn to replace it with `on_bad_record="replace"` are bad too.'
        in caught.value.__notes__
    )
