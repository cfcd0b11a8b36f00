"""`feeder.FromCallable`: batches of a function that is called in this process."""

import functools
import json
import os
import signal
import time

import numpy as np
import pytest

import feeder
from tests.streams.shards import WORKERS, each_of
from tests.support import as_bytes, kill_one

anyhow = each_of()


class Asked:
    """Gives ten batches, and remembers how it was asked."""

    def __init__(self, kind, steps=10):
        self.kind, self.steps, self.sizes, self.pids = kind, steps, [], set()

    def __call__(self, batch_size):
        if len(self.sizes) == self.steps:
            return None
        first = len(self.sizes) * 100
        self.sizes.append(batch_size)
        self.pids.add(os.getpid())
        numbers = range(first, first + batch_size)
        if self.kind == "records":
            return [{"x": np.float64(number)} for number in numbers]
        if self.kind == "functions":
            return [lambda number=number: {"x": np.float64(number)} for number in numbers]
        return {"x": np.arange(first, first + batch_size, dtype=np.float64)}


KINDS = pytest.mark.parametrize("kind", ["records", "functions", "batch"])


def add(record):
    return {"x": record["x"] + 0.5}


@KINDS
@anyhow
def test_batches_come_in_the_order_of_the_calls(kind, workers):
    asked = Asked(kind)
    with feeder.DataLoader(feeder.FromCallable(asked), 4, transforms=[add], **workers) as loader:
        got = [batch["x"].tolist() for batch in loader]
    assert got == [[100 * step + row + 0.5 for row in range(4)] for step in range(10)]
    assert asked.sizes == [4] * 10
    assert asked.pids == {os.getpid()}


@KINDS
def test_without_workers_it_is_called_when_its_batch_is_asked_for(kind):
    asked = Asked(kind)
    with feeder.DataLoader(feeder.FromCallable(asked), 4) as loader:
        batches = iter(loader)
        for step in range(1, 11):
            next(batches)
            assert len(asked.sizes) == step
        assert list(batches) == []


@pytest.mark.parametrize("prefetch", [None, 1, 3])
def test_calls_and_deliveries_take_turns_in_the_same_way_in_every_run(prefetch):
    for workers in WORKERS[1:]:
        asked = Asked("records", 30)
        options = {"prefetch_batches": prefetch, **workers}
        ahead = prefetch or workers["num_workers"]
        with feeder.DataLoader(feeder.FromCallable(asked), 4, **options) as loader:
            batches = iter(loader)
            for delivered in range(1, 20):
                next(batches)
                assert len(asked.sizes) == delivered + ahead, workers


def test_the_time_of_the_calls_is_that_of_reading():
    def slow(batch_size):
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            pass
        return {"x": np.zeros(batch_size)}

    with feeder.DataLoader(feeder.FromCallable(slow), 4) as loader, iter(loader) as batches:
        for _ in range(5):
            next(batches)
        assert batches.stats().read_s >= 0.05


def test_a_function_that_returns_nothing_is_an_error():
    with feeder.DataLoader(feeder.FromCallable(lambda batch_size: None), 4) as loader:
        with pytest.raises(feeder.StreamError, match="got None at the first call of FromCallable"):
            next(iter(loader))


@anyhow
def test_what_is_live_is_copied_when_it_is_given(workers):
    buffer = np.zeros((4, 2))

    def sample(batch_size):
        buffer[:] += 1
        return {"x": buffer}

    options = {"prefetch_batches": 1, **workers}
    with feeder.DataLoader(feeder.FromCallable(sample), 4, **options) as loader:
        batches = iter(loader)
        kept = [next(batches)["x"] for _ in range(5)]
    assert [float(x[0, 0]) for x in kept] == [1, 2, 3, 4, 5]


def test_random_draws_depend_on_the_position_alone():
    def drawn(**workers):
        noise = feeder.RandomMap(lambda record, rng: {"x": record["x"] + rng.random()})
        source = feeder.FromCallable(Asked("functions"))
        with feeder.DataLoader(source, 4, transforms=[noise], **workers) as loader:
            return list(map(as_bytes, loader))

    expected = drawn()
    assert all(drawn(**workers) == expected for workers in WORKERS)


def test_functions_of_a_killed_worker_are_run_again():
    source = feeder.FromCallable(Asked("functions", 60))
    with feeder.DataLoader(source, 4, num_workers=2) as loader, iter(loader) as batches:
        got = []
        for step, batch in enumerate(batches):
            got.append(batch["x"][0])
            if step % 10 == 3:
                kill_one(batches, signal.SIGKILL, step)
        assert batches.stats().restarts
    assert got == [100.0 * step for step in range(60)]


@anyhow
def test_a_batch_that_failed_is_tried_again_with_what_was_given(workers, tmp_path):
    flag = tmp_path / "fail"
    flag.touch()

    def picky(record):
        if record["x"] == 201 and flag.exists():
            raise KeyError("no")
        return record

    asked = Asked("functions")
    with feeder.DataLoader(feeder.FromCallable(asked), 4, transforms=[picky], **workers) as loader:
        batches = iter(loader)
        got = [next(batches), next(batches)]
        with pytest.raises(KeyError, match="no") as caught:
            next(batches)
        assert (caught.value.__cause__.step, caught.value.__cause__.index) == (2, 1)
        flag.unlink()
        got += list(batches)
    assert [batch["x"][0] for batch in got] == [100.0 * step for step in range(10)]
    assert len(asked.sizes) == 10


def test_what_the_callable_raises_arrives_and_it_is_called_again():
    calls = []

    def sometimes(batch_size):
        calls.append(batch_size)
        if len(calls) == 3:
            raise ConnectionError("gone")
        return {"x": np.arange(batch_size)}

    with feeder.DataLoader(feeder.FromCallable(sometimes), 4, num_workers=1) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        with pytest.raises(ConnectionError, match="gone") as caught:
            next(batches)
        assert caught.value.__cause__.step == 2
        assert batches.get_state()["step"] == 2
        next(batches)
        assert batches.get_state()["step"] == 3


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ([1, 2, 3], "3 records"),
        ({"x": np.zeros(4), "y": [np.zeros((3, 2))]}, "the shape (3, 2) at batch['y'][0]"),
        ({}, "{}"),
        ("text", "a str at batch"),
        (range(4), "a range at batch"),
        ((1, 2, 3, 4), "a int at batch[0]"),
    ],
)
def test_another_number_of_rows_is_an_error(given, got):
    with feeder.DataLoader(feeder.FromCallable(lambda batch_size: given), 4) as loader:
        with pytest.raises(feeder.StreamError) as caught:
            next(iter(loader))
    assert str(caught.value) == (
        "a FromCallable must give 4 rows for `batch_size` 4, as a list of records or of functions, "
        f"or as a batch, a pytree of arrays with so many rows, got {got} for step 0; return None "
        "to end the run"
    )
    assert caught.value.step == 0


class Generator:
    """A callable with a state."""

    def __init__(self):
        self.number = 0

    def __call__(self, batch_size):
        self.number += 1
        return {"x": np.full(batch_size, self.number)}

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


@anyhow
def test_a_callable_with_a_state_goes_on_from_it(workers):
    with feeder.DataLoader(feeder.FromCallable(Generator()), 4, **workers) as loader:
        with iter(loader) as batches:
            for _ in range(5):
                next(batches)
            state = json.loads(json.dumps(batches.get_state()))
            assert state["draws"] == {"state": {"number": 5}}
            assert next(batches)["x"][0] == 6
    with feeder.DataLoader(feeder.FromCallable(Generator()), 4, **workers) as loader:
        with iter(loader) as batches:
            batches.set_state(state)
            assert next(batches)["x"][0] == 6
            assert batches.get_state()["step"] == 6
    with feeder.DataLoader(feeder.FromCallable(Asked("batch")), 4) as loader:
        with pytest.raises(feeder.StateError, match="must have load_state_dict"):
            iter(loader).set_state(state)


def test_a_state_before_the_first_batch_is_one_too():
    wrapped = functools.partial(Generator().__call__)
    with feeder.DataLoader(feeder.FromCallable(wrapped), 4) as loader, iter(loader) as batches:
        start = json.loads(json.dumps(batches.get_state()))
        first = next(batches)["x"].tolist()
        batches.set_state(start)
        assert next(batches)["x"].tolist() == first == [1] * 4


def test_large_batches_reach_the_workers():
    def large(batch_size):
        return {"x": np.full((batch_size, 100_000), len(sizes.append(1) or sizes), np.float32)}

    sizes = []
    double = [lambda record: {"x": record["x"] * 2}]
    source = feeder.FromCallable(large)
    with feeder.DataLoader(source, 4, num_workers=2, transforms=double) as loader:
        batches = iter(loader)
        assert [float(next(batches)["x"].mean()) for _ in range(6)] == [2, 4, 6, 8, 10, 12]


def test_hosts_ask_for_their_own_rows():
    asked = Asked("batch")
    with feeder.DataLoader(
        feeder.FromCallable(asked), 6, process_index=1, process_count=3
    ) as loader:
        next(iter(loader))
    assert asked.sizes == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True}, "`shuffle` must be left out with a FromCallable"),
        ({"last_batch": "keep"}, "`last_batch` must be left out with a FromCallable"),
        ({"num_epochs": 2}, "`num_epochs` must be left out with a FromCallable"),
        ({"on_bad_record": "replace"}, '`on_bad_record` must be "raise" or "skip"'),
    ],
)
def test_what_a_callable_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        feeder.DataLoader(feeder.FromCallable(Generator()), 4, **options)


def test_what_is_not_known_beforehand_is_a_type_error():
    with pytest.raises(TypeError, match=r"`function` must be callable as function\(batch_size\)"):
        feeder.FromCallable(lambda: 3)
    with feeder.DataLoader(feeder.FromCallable(Generator()), 4, num_workers="auto") as loader:
        with pytest.raises(TypeError, match="a FromCallable has no end, or none known"):
            len(loader)
        with pytest.raises(TypeError, match="is only called for batches"):
            print(loader.element_spec)
        with pytest.raises(TypeError, match="gives each batch once"):
            loader.batch(0)
        assert next(iter(loader))["x"].tolist() == [1] * 4
