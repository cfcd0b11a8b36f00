"""The global `random` and `numpy.random`: what is drawn is the same for any number of workers."""

import itertools
import random

import numpy as np
import pytest

import feeder
from tests.support import digest, rows


def from_both(record):
    return {**record, "a": random.random(), "b": np.random.random()}


class DrawingSource:
    """Augments in `[]`, as many a PyTorch dataset does."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"index": index, "a": random.gauss(0, 1), "b": np.random.randn()}


class BatchedSource(DrawingSource):
    def read(self, indices):
        return {"index": np.array(indices), "a": np.random.rand(len(indices))}


class ListedSource(DrawingSource):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def seldom(record):
    """Draws only for a few records."""
    return {"index": record["index"], "a": random.random() if record["index"] % 7 == 6 else 0.0}


def reseeding(record):
    np.random.seed(3)
    random.seed(4)
    return {"index": record["index"], "a": np.random.random(), "b": random.random()}


def shuffled(records):
    random.shuffle(records)
    return {"index": np.array([record["index"] for record in records])}


def scaled(batch):
    return {**batch, "scale": np.full(len(batch["index"]), np.random.random())}


def cropped(record):
    """A batch whose size depends on a draw."""
    return {"index": record["index"], "crop": "x" * random.randint(1, 5)}


def padded(records):
    width = max(len(record["crop"]) for record in records) + random.randint(0, 3000)
    return {
        "index": np.array([r["index"] for r in records]),
        "pad": np.zeros((len(records), width)),
    }


RECIPES = {
    "transform": (rows(24), {"transforms": [from_both]}),
    "source": (DrawingSource(), {}),
    "read": (BatchedSource(), {}),
    "read, transform": (BatchedSource(), {"transforms": [from_both]}),
    "getitems": (ListedSource(), {}),
    "seldom": (rows(24), {"transforms": [seldom]}),
    "reseeding": (rows(24), {"transforms": [reseeding]}),
    "collate": (rows(24), {"collate": shuffled}),
    "batch transform": (rows(24), {"batch_transforms": [scaled]}),
    "layout": (rows(24), {"transforms": [cropped], "collate": padded}),
}


@pytest.mark.parametrize(("source", "options"), RECIPES.values(), ids=RECIPES)
def test_workers_and_places_change_nothing(source, options):
    def make(num_workers=0, **more):
        return feeder.DataLoader(
            source, 4, shuffle=True, num_epochs=2, num_workers=num_workers, **options, **more
        )

    inline = make()
    expected = list(inline)
    assert digest(inline) == digest(expected)
    assert digest(inline.batch(step) for step in range(12)) == digest(expected)
    batches = iter(make())
    batches.set_state({**batches.get_state(), "step": 3, "position": 12})
    assert digest(batches) == digest(expected[3:])
    for num_workers in (1, 2, 3):
        with make(num_workers) as pooled:
            assert digest(pooled) == digest(expected)


@pytest.mark.parametrize("name", ["transform", "source", "seldom", "read, transform"])
def test_a_record_s_draws_do_not_depend_on_the_batch_it_is_in(name):
    source, options = RECIPES[name]
    kept = ("index", "a") if name != "read, transform" else ("index", "b")
    runs = [
        [
            tuple(np.asarray(batch[leaf])[row] for leaf in kept)
            for batch in feeder.DataLoader(source, size, last_batch="keep", **options)
            for row in range(len(batch["index"]))
        ]
        for size in (1, 4, 5, 24)
    ]
    assert all(run == runs[0] for run in runs)


def test_records_seeds_and_epochs_draw_differently():
    def draws(seed):
        loader = feeder.DataLoader(rows(24), 4, seed=seed, num_epochs=2, transforms=[from_both])
        return [float(x) for batch in loader for leaf in "ab" for x in batch[leaf]]

    assert len(set(draws(0) + draws(1))) == 2 * 2 * 48


@pytest.mark.parametrize("keyed", [True, False])
def test_the_caller_s_own_generators_go_on_undisturbed(keyed):
    transforms = [from_both] if keyed else [dict]

    def draws(loader):
        random.seed(1)
        np.random.seed(2)
        batches = itertools.repeat(None, 6) if loader is None else loader
        return [
            (random.random(), np.random.random(), random.gauss(0, 1), np.random.randn())
            for _ in batches
        ]

    loader = feeder.DataLoader(rows(24), 4, transforms=transforms)
    assert draws(loader) == draws(None)
    loader.batch(2)
    own = np.random.get_bit_generator()
    loader.batch(2)
    assert np.random.get_bit_generator() is own


def test_a_look_at_the_spec_disturbs_nothing_either():
    loader = feeder.DataLoader(DrawingSource(), 4)
    state, numpy_state = random.getstate(), np.random.get_state()[1].copy()
    assert loader.element_spec["a"].shape == (4,)
    assert random.getstate() == state
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_an_error_leaves_the_caller_s_generators_alone_and_depends_on_the_draws_alone():
    def picky(record):
        draw = random.random()
        if draw < 0.1:
            raise ValueError(f"drew {draw}")
        return record

    def first_error(num_workers):
        with (
            feeder.DataLoader(rows(240), 4, transforms=[picky], num_workers=num_workers) as loader,
            pytest.raises(ValueError, match="drew") as caught,
        ):
            list(loader)
        return str(caught.value)

    random.seed(5)
    state = random.getstate()
    message = first_error(0)
    assert random.getstate() == state
    assert first_error(1) == first_error(2) == message


def test_code_that_draws_nothing_runs_once_and_code_that_draws_once_more():
    counts = {"calm": 0, "drawing": 0}

    def calm(record):
        counts["calm"] += 1
        return record

    def drawing(record):
        counts["drawing"] += 1
        return {**record, "draw": random.random()}

    for transform in (calm, drawing):
        list(feeder.DataLoader(rows(24), 4, transforms=[transform]))
    assert counts == {"calm": 24, "drawing": 24 + 4}


def test_the_draws_are_pinned():
    batch = feeder.DataLoader(rows(24), 3, seed=7, transforms=[from_both]).batch(2)
    assert batch["a"].tolist() == [0.550968299338221, 0.6769372475133563, 0.24049283248763642]
    assert batch["b"].tolist() == [0.6358244646640764, 0.41932026398194944, 0.5756543630535225]


class Looked:
    """A source that looks at the generators, and draws from copies."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        python, copied = random.Random(), np.random.RandomState()
        python.setstate(random.getstate())
        copied.set_state(np.random.get_state())
        return {"python": python.random(), "numpy": copied.random_sample()}


def test_code_that_only_looks_finds_the_same_state_for_every_batch():
    expected = None
    for workers in (0, 1, 2):
        with feeder.DataLoader(Looked(), 4, num_workers=workers) as loader:
            found = [(batch["python"].tolist(), batch["numpy"].tolist()) for batch in loader]
        assert all(batch == found[0] for batch in found)
        expected = expected or found
        assert found == expected
