"""Hard cases of workers: slots that grow, limits, several iterators, threads that hang."""

import asyncio
import os
import random
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest

import feeder
from feeder.feed.planned import PlannedFeeds
from feeder.iterator import BatchIterator
from feeder.plan.schedule import START
from feeder.produce.clock import HERE, StageTimes
from feeder.produce.failures import Failure
from feeder.produce.workforce import Workforce
from tests.support import digest, rows
from tests.test_hard_cases import in_a_fork

PRODUCERS = pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}],
    ids=["inline", "processes", "threads"],
)


def test_a_batch_built_again_in_another_size_lies_in_the_slot_that_was_granted():
    def growing(record):
        if record["index"] < 40:
            return {"v": np.full(1000, 0.0)}
        draw = random.random()
        return {"v": np.full(8000 if draw < 0.5 else 900, draw)}

    def made(num_workers, **more):
        return feeder.DataLoader(
            rows(60), 1, seed=2, transforms=[growing], num_workers=num_workers, **more
        )

    expected = digest(made(0))
    for num_workers in (1, 2, 3):
        with made(num_workers) as loader:
            assert digest(loader) == expected


@PRODUCERS
def test_one_batch_that_fits_nowhere_spoils_no_other(options):
    source = [np.zeros(10 if index != 10 else 10**7) for index in range(20)]
    with feeder.DataLoader(source, 1, max_memory_bytes=2**20, **options) as loader:
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        with pytest.raises(feeder.MemoryLimitError):
            next(batches)
        assert next(iter(loader)).shape == (1, 10)


@PRODUCERS
@pytest.mark.parametrize("slots", [4, 6, 8])
def test_what_one_iterator_builds_ahead_leaves_room_for_another(options, slots):
    with feeder.DataLoader(
        np.zeros((400, 8)), 2, prefetch_batches=8, max_memory_bytes=slots * 4096, **options
    ) as loader:
        one = iter(loader)
        for _ in range(20):
            next(one)
        other = iter(loader)
        for _ in range(20):
            next(other)
            next(one)


@PRODUCERS
def test_any_exception_of_user_code_arrives_as_itself(options):
    def cancelled(record):
        raise asyncio.CancelledError("not today")

    with feeder.DataLoader(rows(8), 4, transforms=[cancelled], **options) as loader:
        with pytest.raises(asyncio.CancelledError, match="not today") as caught:
            next(iter(loader))
        assert isinstance(caught.value.__cause__, feeder.RecordError)


@PRODUCERS
def test_a_collate_or_batch_transform_that_forgets_to_return_is_told_so(options):
    for argument, message in (
        ({"collate": lambda records: None}, r"^`collate` must return the batch, got None"),
        ({"batch_transforms": [dict.clear]}, r"^`batch_transforms\[0\]` must return the new batch"),
    ):
        with (
            feeder.DataLoader(rows(8), 4, **argument, **options) as loader,
            pytest.raises(TypeError, match=message),
        ):
            next(iter(loader))


def test_a_bad_record_that_pads_a_batch_is_counted_once():
    def picky(record):
        if record["index"] == 4:
            raise ValueError("bad")
        return record

    loader = feeder.DataLoader(
        rows(5), 4, last_batch="pad", transforms=[picky], on_bad_record="replace", max_bad_records=1
    )
    batches = iter(loader)
    assert len(list(batches)) == 2
    assert batches.stats().num_bad_records == 1


def test_chunks_of_a_slow_batch_are_not_late_while_it_is_built_in_one_piece():
    def slow(record):
        threading.Event().wait(0.05)
        return record

    with feeder.DataLoader(
        rows(64), 16, transforms=[slow], num_workers=2, chunks_per_batch=4, timeout_s=0.5
    ) as loader:
        batches = iter(loader)
        assert digest(batches) == digest(feeder.DataLoader(rows(64), 16))
        assert batches.stats().restarts == 0


@pytest.mark.parametrize("give_up", ["close", "set_state", "another"])
def test_a_thread_that_hangs_in_what_nobody_wants_is_replaced_too(give_up):
    release = threading.Event()
    hung = threading.Event()

    def once_stuck(record):
        if record["index"] == 4 and not hung.is_set():
            hung.set()
            release.wait()
        return record

    with feeder.DataLoader(
        rows(40),
        4,
        transforms=[once_stuck],
        num_workers=1,
        worker_type="thread",
        timeout_s=0.3,
    ) as loader:
        batches = iter(loader)
        start = batches.get_state()
        next(batches)
        hung.wait()
        if give_up == "close":
            batches.close()
        elif give_up == "set_state":
            batches.set_state(start)
        other = batches if give_up == "set_state" else iter(loader)
        assert digest(other) == digest(feeder.DataLoader(rows(40), 4))
        release.set()


def test_a_closed_loader_measures_no_more():
    began, go_on = threading.Event(), threading.Event()

    def slow(record):
        began.set()
        go_on.wait()
        return record

    loader = feeder.DataLoader(rows(8), 4, transforms=[slow], num_workers="auto")
    raised = []

    def use():
        try:
            iter(loader)
        except feeder.ClosedError as error:
            raised.append(error)

    user = threading.Thread(target=use)
    user.start()
    began.wait()
    closer = threading.Thread(target=loader.close)
    closer.start()
    go_on.set()
    user.join()
    closer.join()
    assert len(raised) == 1


def test_auto_goes_to_workers_where_worker_init_prepares_them(tmp_path):
    ready = []

    def prepared(record):
        return {**record, "ready": np.int64(ready[0])}

    def prepare(info):
        ready.append(7)

    with feeder.DataLoader(
        rows(8), 4, transforms=[prepared], num_workers="auto", worker_init=prepare
    ) as loader:
        assert [batch["ready"].tolist() for batch in loader] == [[7] * 4] * 2


def test_a_forked_copy_says_so_while_another_thread_waits():
    def slow(record):
        threading.Event().wait(0.3)
        return record

    with feeder.DataLoader(rows(40), 4, transforms=[slow], num_workers=1) as loader:
        batches = iter(loader)
        waiter = threading.Thread(target=lambda: next(batches))
        waiter.start()
        while loader._stages.producer._pumper is None:
            pass

        def child():
            with pytest.raises(feeder.ClosedError):
                next(iter(loader))

        assert in_a_fork(child)
        waiter.join()


@PRODUCERS
def test_a_forked_copy_that_ends_leaves_the_batches_of_its_parent_as_they_are(options):
    source = np.ones((4096, 1024), np.float32)
    with feeder.DataLoader(source, 256, num_epochs=None, **options) as loader:
        batches = iter(loader)
        for _ in range(6):  # slots that are free when the copy is made
            next(batches)
        go = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX and Python warn of forks: rightly
            pid = os.fork()
        if pid == 0:
            os.read(go[0], 1)
            loader.close()
            os._exit(0)
        kept = [next(batches) for _ in range(6)]
        os.write(go[1], b"x")
        os.waitpid(pid, 0)
        os.close(go[0])
        os.close(go[1])
        assert [float(batch.sum()) for batch in kept] == [256.0 * 1024] * 6


NONE = {"needed_bytes": 1, "held_bytes": 1, "limit_bytes": 1}


class Crowded:
    """A producer that has no room for step 2 while anything else is under way."""

    window = 4
    workforce = Workforce

    def __init__(self):
        self.submitted = []

    def start(self):
        pass

    def session(self):
        self.submitted = []
        return self

    def submit(self, chunk):
        self.submitted.append(chunk)

    def poll(self):
        pass

    wait = close = poll

    def renew(self):
        self.submitted = []

    def take(self):
        chunks, crowded = self.submitted, len(self.submitted) > 1
        self.submitted = []
        error = feeder.MemoryLimitError("full", **NONE)
        full = Failure.of(error, "build", None)
        return [
            (chunk.step, full if chunk.step == 2 and crowded else Outcome(chunk))
            for chunk in chunks
        ]


class Outcome:
    times = StageTimes(0, 0, 0, 0, 0, 0, HERE)
    parts = bad = ()
    num_bytes = 0

    def __init__(self, chunk):
        self.tree = lambda: chunk.indices


def fed_by(producer, loader):
    feeds = PlannedFeeds(loader._sample._planner, None, producer)
    return replace(loader._stages, feeds=feeds, producer=producer)


def test_a_batch_that_finds_no_room_gets_that_of_the_batches_built_ahead():
    loader = feeder.DataLoader(np.arange(40), 4)
    batches = BatchIterator(fed_by(Crowded(), loader), START, loader)
    assert np.array_equal(np.concatenate(list(batches)), np.arange(40))


def test_a_batch_that_finds_no_room_although_it_is_alone_is_an_error():
    loader = feeder.DataLoader(np.arange(40), 4)
    producer = Crowded()
    producer.window = 1
    batches = BatchIterator(fed_by(producer, loader), START, loader)
    taken = producer.take

    def full():
        return [
            (step, Failure.of(feeder.MemoryLimitError("full", **NONE), "build", None))
            for step, _ in taken()
        ]

    producer.take = full
    with pytest.raises(feeder.MemoryLimitError, match=r"^full$"):
        next(batches)
