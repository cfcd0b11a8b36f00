"""Workers that take too long, die too often, or want to know who they are."""

import os
import re
import signal
import threading
import time

import numpy as np
import psutil
import pytest

import feeder
from tests.support import digest, indices_of, kill_one, rows


def stuck_at(bad, once=None):
    """A transform that never returns from a record; only the first time, with a file ``once``."""

    def transform(record):
        if record["index"] == bad and not (once and once.exists()):
            if once:
                once.touch()
            threading.Event().wait()
        return record

    return transform


def test_a_worker_that_is_stuck_is_replaced_and_its_batch_computed_again(tmp_path, caplog):
    transforms = [stuck_at(17, once=tmp_path / "stuck")]
    with feeder.DataLoader(
        rows(40), 4, transforms=transforms, num_workers=2, timeout_s=0.5
    ) as loader:
        batches = iter(loader)
        assert sum(indices_of(batches), []) == list(range(40))
        assert batches.stats().restarts == 1
    (record,) = caplog.records
    assert re.fullmatch(
        r"worker process \d+ took longer than `timeout_s` = 0.5, and was killed; it is replaced",
        record.message,
    )


def test_a_batch_that_is_stuck_three_times_is_an_error_at_its_place():
    with feeder.DataLoader(
        rows(40), 4, transforms=[stuck_at(17)], num_workers=2, timeout_s=0.3
    ) as loader:
        batches = iter(loader)
        assert sum(indices_of(next(batches) for _ in range(4)), []) == list(range(16))
        with pytest.raises(feeder.WorkerTimeoutError) as caught:
            next(batches)
    assert str(caught.value) == (
        "step 4 took longer than `timeout_s` = 0.3 in each of 3 worker processes, which were "
        "killed; one of its records is at fault: 16, 17, 18, 19; raise `timeout_s` if they need "
        "more time"
    )
    error = caught.value
    assert (error.step, error.indices, error.timeout_s) == (4, [16, 17, 18, 19], 0.3)
    assert isinstance(error, feeder.WorkerDiedError)


def test_a_stopped_worker_is_stuck_too():
    def busy(record):
        threading.Event().wait(0.002)
        return record

    with feeder.DataLoader(rows(400), 8, transforms=[busy], num_workers=1, timeout_s=1.0) as loader:
        batches = iter(loader)
        seen = [next(batches)]  # so it has loaded the recipe, which may take longer
        kill_one(batches, signal.SIGSTOP)
        seen += batches
        assert batches.stats().restarts == 1
    assert digest(seen) == digest(feeder.DataLoader(rows(400), 8))


def test_a_slow_loop_makes_no_worker_late():
    with feeder.DataLoader(rows(24), 4, transforms=[dict], num_workers=2, timeout_s=0.2) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
            threading.Event().wait(0.5)
        assert len(list(batches)) == 3
        assert batches.stats().restarts == 0


def test_loading_the_recipe_may_take_longer_than_a_chunk():
    def slow_start(info):
        threading.Event().wait(0.8)

    with feeder.DataLoader(
        rows(24), 4, transforms=[dict], num_workers=1, timeout_s=0.2, worker_init=slow_start
    ) as loader:
        batches = iter(loader)
        assert len(list(batches)) == 6
        assert batches.stats().restarts == 0


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_more_than_max_restarts_are_an_error_that_names_it(max_restarts):
    with feeder.DataLoader(
        rows(4000), 4, transforms=[dict], num_workers=2, max_restarts=max_restarts
    ) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        with pytest.raises(feeder.WorkerDiedError) as caught:  # noqa: PT012
            killed = 0
            for batch in batches:
                seen.append(batch)
                # One at a time, and none too many: a death that is noticed late counts for later.
                noticed = batches.stats().restarts == killed
                if len(seen) % 20 == 0 and noticed and killed <= max_restarts:
                    killed += 1
                    kill_one(batches, signal.SIGKILL)
        assert f"more than `max_restarts` = {max_restarts} worker processes ended" in str(
            caught.value
        )
        assert caught.value.step == len(seen)  # nothing was passed over
        seen += batches  # it goes on, exactly there
    assert digest(seen) == digest(feeder.DataLoader(rows(4000), 4, transforms=[dict]))


@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_worker_init_is_called_once_in_each_worker_with_its_info(worker_type, tmp_path):
    def note(info):
        path = tmp_path / f"{info.worker_id}-{info.num_workers}-{info.seed}"
        assert not path.exists()
        path.touch()

    def known(record):
        info = feeder.get_worker_info()
        return {**record, "worker": np.int64(info.worker_id), "seed": np.int64(info.seed)}

    with feeder.DataLoader(
        rows(400),
        4,
        seed=7,
        transforms=[known],
        num_workers=2,
        worker_type=worker_type,
        worker_init=note,
    ) as loader:
        batches = list(loader)
        list(loader)
    assert {path.name for path in tmp_path.iterdir()} == {"0-2-7", "1-2-7"}
    assert {int(worker) for batch in batches for worker in batch["worker"]} <= {0, 1}
    assert {int(seed) for batch in batches for seed in batch["seed"]} == {7}
    assert feeder.get_worker_info() is None


def test_a_replacement_has_the_number_of_the_worker_it_replaces():
    def known(record):
        return {**record, "worker": np.int64(feeder.get_worker_info().worker_id)}

    with feeder.DataLoader(rows(2000), 4, transforms=[known], num_workers=2) as loader:
        batches = iter(loader)
        workers = set()
        for step, batch in enumerate(batches):
            workers |= set(batch["worker"].tolist())
            if step % 100 == 50:
                kill_one(batches, signal.SIGKILL, step)
        assert workers <= {0, 1}
        assert batches.stats().restarts > 0


def test_there_is_no_worker_info_in_this_process():
    def known(record):
        assert feeder.get_worker_info() is None
        return record

    assert len(list(feeder.DataLoader(rows(8), 4, transforms=[known]))) == 2


@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_what_worker_init_raises_arrives_as_itself(worker_type):
    def broken(info):
        raise PermissionError("no licence")

    with (
        feeder.DataLoader(
            rows(8), 4, num_workers=2, worker_init=broken, worker_type=worker_type
        ) as loader,
        pytest.raises(PermissionError, match="no licence") as caught,
    ):
        next(iter(loader))
    assert "the start of a worker failed: PermissionError: no licence" in str(
        caught.value.__cause__
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"timeout_s": 0},
            ValueError,
            "`timeout_s` must be a number of seconds above 0, or None, got 0",
        ),
        (
            {"timeout_s": "1"},
            TypeError,
            "`timeout_s` must be a number of seconds above 0, or None, got '1'",
        ),
        (
            {"max_restarts": -1},
            ValueError,
            "`max_restarts` must be an integer of at least 0, got -1",
        ),
        (
            {"worker_init": 3},
            TypeError,
            "`worker_init` must be callable as worker_init(info), got 3",
        ),
        (
            {"worker_type": "fiber"},
            ValueError,
            "`worker_type` must be 'process' or 'thread', got 'fiber'",
        ),
        (
            {"num_workers": "some"},
            TypeError,
            "`num_workers` must be an integer of at least 0, got 'some'; or \"auto\"",
        ),
    ],
)
def test_what_cannot_work_is_refused(options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        feeder.DataLoader(rows(8), 4, **options)


@pytest.mark.parametrize(("price_s", "inline"), [(1e-5, True), (1e-2, False)])
def test_auto_builds_cheap_batches_here_and_dear_ones_in_workers(price_s, inline, monkeypatch):
    monkeypatch.setattr("feeder.produce.here.seconds", lambda recipe, chunk: price_s)

    def with_pid(record):
        return {**record, "pid": np.int64(os.getpid())}

    with feeder.DataLoader(rows(80), 4, transforms=[with_pid], num_workers="auto") as loader:
        pids = {pid for batch in loader for pid in batch["pid"].tolist()}
    assert (pids == {os.getpid()}) == inline
    assert (os.getpid() in pids) == inline


def test_auto_measures_a_dear_batch():
    def dear(record):
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        return {**record, "pid": np.int64(os.getpid())}

    with feeder.DataLoader(rows(80), 4, transforms=[dear], num_workers="auto") as loader:
        assert os.getpid() not in {pid for batch in loader for pid in batch["pid"].tolist()}


def test_auto_changes_nothing_and_leaves_errors_in_their_place():
    def failing(record):
        if record["index"] == 0:
            raise ValueError("the very first")
        return record

    with feeder.DataLoader(rows(80), 4, transforms=[failing], num_workers="auto") as loader:
        batches = iter(loader)
        with pytest.raises(ValueError, match="the very first"):
            next(batches)
    assert digest(feeder.DataLoader(rows(80), 4, num_workers="auto")) == digest(
        feeder.DataLoader(rows(80), 4)
    )


def test_user_code_in_a_worker_finds_the_whole_package():
    def looks(record):
        from feeder import BlockShuffle, testing

        assert feeder.__version__
        assert feeder.DataLoader.__module__ == "feeder.loader"
        assert not hasattr(feeder, "no_such_name")
        return {"block": np.int64(BlockShuffle(3).block_size), "digest": testing.digest([1])[:4]}

    with feeder.DataLoader(rows(8), 4, transforms=[looks], num_workers=2) as loader:
        assert [batch["block"].tolist() for batch in loader] == [[3] * 4] * 2


def test_workers_start_with_the_iterator_not_with_the_first_batch(tmp_path):
    def note(info):
        (tmp_path / str(info.worker_id)).touch()

    with feeder.DataLoader(rows(8), 4, num_workers=2, worker_init=note) as loader:
        assert psutil.Process().children() == []
        batches = iter(loader)
        assert len(psutil.Process().children()) == 1  # the one that forks them
        assert len(list(batches)) == 2
