"""`loader.batch(step)`, `loader.epoch(e)` and `loader.element_spec`."""

import re

import jax
import numpy as np
import optree
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder
import feeder.testing

from .support import as_bytes, digest, noisy, rows

SHARDING = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
LAST = pytest.mark.parametrize("last_batch", ["drop", "keep", "pad", "rollover"])


@LAST
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_computed_alone_is_the_batch_of_the_run(last_batch, num_workers):
    options = {"shuffle": True, "num_epochs": 3, "transforms": [feeder.RandomMap(noisy)]}
    with feeder.DataLoader(
        rows(50), 8, last_batch=last_batch, num_workers=num_workers, **options
    ) as loader:
        for step, batch in enumerate(loader):
            assert as_bytes(loader.batch(step)) == as_bytes(batch)
        message = f"`step` must be below {len(loader)}, the steps of the run, got {len(loader)}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            loader.batch(len(loader))


def test_a_batch_of_an_endless_run_is_computed_alone_however_far():
    loader = feeder.DataLoader(rows(50), 8, shuffle=True, num_epochs=None)
    assert sorted(
        np.concatenate([loader.batch(6 * 10**9 + k)["index"] for k in range(6)]).tolist()
    ) == sorted(set(np.concatenate([loader.batch(6 * 10**9 + k)["index"] for k in range(6)])))
    loader.close()


def test_a_batch_computed_alone_raises_what_the_run_raises():
    def fail(record):
        raise ZeroDivisionError("here")

    loader = feeder.DataLoader(rows(8), 4, transforms=[fail])
    with pytest.raises(ZeroDivisionError, match=r"^here$") as caught:
        loader.batch(1)
    assert caught.value.__cause__.index == 4


@LAST
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epochs_one_by_one_are_the_run(last_batch, num_workers):
    options = {"shuffle": True, "num_epochs": 5, "last_batch": last_batch}
    with feeder.DataLoader(rows(50), 8, num_workers=num_workers, **options) as loader:
        whole = list(loader)
        epochs = [list(loader.epoch(epoch)) for epoch in range(5)]
        assert digest(batch for epoch in epochs for batch in epoch) == digest(whole)
        assert all(len(epoch) - loader.steps_per_epoch in (0, 1) for epoch in epochs)
        if last_batch != "rollover":
            assert {len(epoch) for epoch in epochs} == {loader.steps_per_epoch}
        with pytest.raises(ValueError, match=r"^`epoch` must be below `num_epochs` = 5, got 5$"):
            loader.epoch(5)


def test_an_epoch_is_left_and_taken_up_again():
    with feeder.DataLoader(rows(48), 8, shuffle=True, num_epochs=3) as loader:
        whole = [batch["index"].tolist() for batch in loader.epoch(1)]
        batches = loader.epoch(1)
        head = [next(batches)["index"].tolist() for _ in range(2)]
        again = loader.epoch(1)
        again.set_state(batches.get_state())
        assert head + [batch["index"].tolist() for batch in again] == whole


class Counted:
    """A source that counts what is read."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.reads += 1
        return {"x": np.full(3, index, np.float32), "name": f"#{index}"}


class CountedRead(Counted):
    def read(self, indices):
        self.reads += len(indices)
        return {"x": np.zeros((len(indices), 3), np.float32)}


class CountedItems(Counted):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Counted, {}),
        (CountedRead, {}),
        (CountedItems, {}),
        (Counted, {"last_batch": "pad"}),
        (CountedRead, {"last_batch": "pad", "transforms": [lambda record: record["x"]]}),
        (Counted, {"collate": lambda records: np.stack([record["x"] for record in records])}),
        (Counted, {"batch_transforms": [lambda batch: {**batch, "more": batch["x"] * 2.0}]}),
        (Counted, {"sharding": SHARDING}),
        (lambda: {"x": np.zeros((40, 2)), "y": np.arange(40)}, {"sharding": SHARDING}),
        (lambda: np.zeros((40, 2), np.float16), {"last_batch": "pad"}),
    ],
)
def test_the_element_spec_is_that_of_a_delivered_batch_and_reads_one_record(make, options):
    source = make()
    with feeder.DataLoader(source, 8, **options) as loader:
        spec = loader.element_spec
        assert getattr(source, "reads", 1) == 1
        assert loader.element_spec is spec
        batch = next(iter(loader))
    leaves, structure = optree.tree_flatten(spec)
    assert structure == optree.tree_structure(batch)
    for found, leaf in zip(leaves, optree.tree_leaves(batch), strict=True):
        assert (found.shape, found.dtype) == (leaf.shape, leaf.dtype)
        if isinstance(leaf, jax.Array):
            assert isinstance(found, jax.ShapeDtypeStruct)
            assert found.sharding == leaf.sharding
        else:
            assert isinstance(found, feeder.ArraySpec)


def test_a_state_of_another_epoch_is_refused_by_an_epoch_s_iterator():
    loader = feeder.DataLoader(rows(20), 4, num_epochs=3, shuffle=True)
    states = [loader.epoch(epoch).get_state() for epoch in range(3)]
    batches = loader.epoch(1)
    next(batches)
    within = batches.get_state()
    for epoch, state in ((0, within), (2, within), (1, states[0])):
        with pytest.raises(feeder.StateError, match=rf"^`state` must be of epoch {epoch}, whose"):
            loader.epoch(epoch).set_state(state)
    again = loader.epoch(1)
    again.set_state(within)
    assert len(list(again)) == 4


def test_a_state_beyond_the_end_is_refused():
    batches = iter(feeder.DataLoader(rows(20), 4, num_epochs=5))
    for _ in range(12):
        next(batches)
    message = (
        "`state` must be of a place in the 2 epochs of this run, got one in epoch 2; raise "
        "`num_epochs`"
    )
    with pytest.raises(feeder.StateError, match=f"^{re.escape(message)}$"):
        iter(feeder.DataLoader(rows(20), 4, num_epochs=2)).set_state(batches.get_state())


def test_the_spec_builds_no_more_than_a_record():
    calls = []

    def counted(record):
        calls.append(1)
        return record

    loader = feeder.DataLoader(rows(1000), 500, transforms=[counted], last_batch="pad")
    assert loader.element_spec["image"].shape == (500, 3, 4)
    assert loader.element_spec["mask"].shape == (500,)
    assert len(calls) == 1


def test_a_digest_of_an_endless_loader_asks_for_a_number_of_steps():
    loader = feeder.DataLoader(rows(20), 4, num_epochs=None)
    with pytest.raises(ValueError, match=r"^`steps` must say how many batches, got None: len"):
        feeder.testing.digest(loader)
