"""`worker_type="thread"`: the same batches, errors and limits, from threads of this process."""

import gc
import os
import re
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder
from tests.support import digest, noisy, rows
from tests.test_chunks import RECIPES


def threaded(source, batch_size, num_workers=2, **options):
    return feeder.DataLoader(
        source, batch_size, num_workers=num_workers, worker_type="thread", **options
    )


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"global random"}))
def test_threads_change_no_byte(name):
    source, options = RECIPES[name]
    options = {"shuffle": True, "num_epochs": 3, **options}
    expected = digest(feeder.DataLoader(source, 8, **options))
    for num_workers in (1, 2, 3):
        with threaded(source, 8, num_workers, **options) as loader:
            assert digest(loader) == expected
            assert digest(loader) == expected


def test_they_build_in_this_process_and_several_at_once():
    meet = threading.Barrier(2, timeout=30)

    def met(record):
        meet.wait()
        return {**record, "pid": np.int64(os.getpid())}

    with threaded(rows(8), 1, transforms=[met]) as loader:
        assert {int(batch["pid"][0]) for batch in loader} == {os.getpid()}


def test_an_exception_keeps_its_type_and_place_and_the_run_goes_on_there():
    failed = []

    def failing(record):
        if record["index"] == 9 and not failed:
            failed.append(1)
            raise KeyError("once")
        return record

    with threaded(rows(40), 4, transforms=[failing]) as loader:
        batches = iter(loader)
        seen = [next(batches), next(batches)]
        with pytest.raises(KeyError, match="once") as caught:
            next(batches)
        assert caught.value.__cause__.index == 9
        seen += batches
    assert digest(seen) == digest(feeder.DataLoader(rows(40), 4))


def test_a_thread_that_is_stuck_is_an_error_and_the_others_go_on():
    release = threading.Event()
    stuck = []

    def once_stuck(record):
        if record["index"] == 9 and not stuck:
            stuck.append(1)
            release.wait()
        return record

    with threaded(rows(40), 4, transforms=[once_stuck], timeout_s=0.3) as loader:
        batches = iter(loader)
        seen = [next(batches), next(batches)]
        with pytest.raises(feeder.WorkerTimeoutError) as caught:
            next(batches)
        assert str(caught.value) == (
            "step 2 took longer than `timeout_s` = 0.3 in a worker thread, which is left to "
            "itself; one of its records is at fault: 8, 9, 10, 11; raise `timeout_s` if it needs "
            "more time"
        )
        seen += batches
        release.set()
    assert digest(seen) == digest(feeder.DataLoader(rows(40), 4))


def test_a_resumed_run_is_the_uninterrupted_run():
    options = {"shuffle": True, "transforms": [feeder.RandomMap(noisy)], "num_epochs": 2}
    whole = list(feeder.DataLoader(rows(40), 4, **options))
    with threaded(rows(40), 4, **options) as loader:
        batches = iter(loader)
        head = [next(batches) for _ in range(7)]
        saved = batches.get_state()
        again = iter(loader)
        again.set_state(saved)
        assert digest([*head, *again]) == digest(whole)


def test_kept_batches_are_never_overwritten_and_too_many_are_an_error():
    with threaded(rows(4000), 8, shuffle=True, max_memory_bytes=40 * 4096) as loader:
        kept = []
        with pytest.raises(feeder.MemoryLimitError):
            kept.extend(loader)
    with threaded(rows(4000), 8, shuffle=True, max_memory_bytes=400 * 4096) as loader:
        batches = iter(loader)
        kept = [next(batches) for _ in range(300)]
        assert digest(kept) == digest(list(feeder.DataLoader(rows(4000), 8, shuffle=True))[:300])


def test_prefetching_never_fails_at_the_limit_by_itself():
    expected = digest(feeder.DataLoader(rows(400), 8))
    with threaded(rows(400), 8, max_memory_bytes=4 * 4096, prefetch_batches=8) as loader:
        assert digest(loader) == expected


def test_batches_reach_the_devices():
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    plain = [batch["index"].tolist() for batch in feeder.DataLoader(rows(400), 8, shuffle=True)]
    with threaded(rows(400), 8, shuffle=True, sharding=sharding) as loader:
        assert [batch["index"].tolist() for batch in loader] == plain


def test_closing_ends_the_threads_and_the_waits():
    before = threading.active_count()
    loader = threaded(rows(400), 4)
    batches = iter(loader)
    next(batches)
    assert threading.active_count() == before + 2
    loader.close()
    loader.close()
    assert threading.active_count() == before
    with pytest.raises(feeder.ClosedError):
        next(batches)


def test_a_loader_that_is_dropped_ends_its_threads():
    before = threading.active_count()
    loader = threaded(rows(400), 4)
    next(iter(loader))
    del loader
    gc.collect()
    assert threading.active_count() == before


def test_several_iterators_of_one_loader_do_not_disturb_each_other():
    with threaded(rows(40), 4, shuffle=True) as loader:
        expected = digest(loader)
        one, other = iter(loader), iter(loader)
        pairs = list(zip(one, other, strict=True))
        assert digest(a for a, _ in pairs) == digest(b for _, b in pairs) == expected
        given_up = iter(loader)
        next(given_up)
        given_up.close()
        assert digest(loader) == expected


def test_where_processes_cannot_be_had_threads_take_their_place_with_one_warning(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    message = (
        "worker processes need Linux's memfd and pidfd, which linux lacks here: batches are built "
        'in threads; say `worker_type="thread"` to have it so without this warning'
    )
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$") as caught:
        loader = feeder.DataLoader(rows(40), 4, num_workers=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with loader:
        assert digest(loader) == digest(feeder.DataLoader(rows(40), 4))
        assert iter(loader).stats().worker_pids == ()


@pytest.mark.timeout(20)  # the 60 s that a start may take would be a hang
def test_a_thread_that_is_stuck_in_its_first_batch_or_its_second_try_is_late_in_time():
    gate = threading.Event()

    def stuck(record):
        gate.wait()
        return record

    loader = feeder.DataLoader(
        list(range(8)), 2, transforms=[stuck], num_workers=2, worker_type="thread", timeout_s=0.2
    )
    with loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(feeder.WorkerTimeoutError):
                next(batches)
        gate.set()
        assert len(list(batches)) == 4
