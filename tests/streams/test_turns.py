"""Threads that share the lanes of a stream: none waits for what a later chunk waits for."""

import os
import threading

import numpy as np
import pytest

import feeder
from feeder.plan.chunks import StreamChunk
from feeder.plan.patterns import of_rows
from feeder.produce.session import GivenUpError
from feeder.produce.turns import Turns
from tests.streams.shards import ids_of, record


def chunk(step, *lanes):
    numbers = np.array(lanes)
    pattern = of_rows(numbers, np.zeros_like(numbers), np.zeros_like(numbers))
    return StreamChunk(step, pattern, 0, 0, 0, 1, (1,), 0, True)


def test_a_turn_comes_in_the_order_in_which_chunks_were_begun():
    turns = Turns()
    first, second, third = chunk(0, 0, 1), chunk(1, 1, 2), chunk(2, 3)
    for each in (first, second, third):
        turns.begin(each)
    turns.wait(first)
    turns.wait(third)  # it shares no lane
    came = threading.Event()
    waiting = threading.Thread(target=lambda: (turns.wait(second), came.set()))
    waiting.start()
    assert not came.is_set()
    free = []
    turns.if_free(1, 1, second, lambda: free.append(1))
    turns.if_free(1, 9, second, lambda: free.append(9))
    turns.if_free(1, 3, third, lambda: free.append(3))
    turns.if_free(2, 1, second, lambda: free.append("of another run"))
    assert free == [9, 3, "of another run"]
    turns.end(first)
    turns.end(first)
    waiting.join()
    turns.end(second)
    turns.if_free(1, 1, third, lambda: free.append(1))
    assert free[-1] == 1


def test_a_batch_comes_though_later_ones_wait_in_every_other_thread(tmp_path):
    fifo = tmp_path / "block"
    os.mkfifo(fifo)

    def shard(number, epoch, state):
        for at in range(12):
            if at == 6:
                os.close(os.open(fifo, os.O_RDONLY))  # waits for a writer
            yield record(number, at)

    slow = [feeder.RandomMap(lambda record, rng: (rng.random(), record)[1])]
    loader = feeder.DataLoader(
        feeder.Stream(shard, 2),
        4,
        num_workers=4,
        worker_type="thread",
        transforms=slow,
        prefetch_batches=4,
    )
    with loader, iter(loader) as batches:
        got = [next(batches) for _ in range(3)]  # the fourth is asked for, and waits
        writer = os.open(fifo, os.O_RDWR)
        got += list(batches)
        os.close(writer)
    assert ids_of(got)[:2] == [[0, 1, 1000, 1001], [2, 3, 1002, 1003]]
    assert len(got) == 6


def test_nobody_waits_for_a_chunk_that_was_given_up_or_once_all_is_closed():
    turns = Turns()
    first, second = chunk(0, 0), chunk(1, 0)
    turns.begin(first)
    turns.begin(second)
    ended = []

    def wait():
        try:
            turns.wait(second)
        except GivenUpError:
            ended.append("given up")

    waiting = threading.Thread(target=wait)
    waiting.start()
    turns.close()
    waiting.join()
    turns.end(first)
    with pytest.raises(GivenUpError):
        turns.wait(first)
    assert ended == ["given up"]


@pytest.mark.timeout(30)
def test_shards_that_a_stuck_thread_has_open_are_opened_again_by_others():
    gate = threading.Event()
    opened = []

    def shard(number, epoch, state):
        opened.append(number)
        for at in range(8):
            if at == 4 and number == 1 and opened.count(1) == 1:
                gate.wait()
            yield record(number, at)

    loader = feeder.DataLoader(
        feeder.Stream(shard, 2), 4, num_workers=2, worker_type="thread", timeout_s=0.3
    )
    before = threading.active_count()
    with loader, iter(loader) as batches:
        got = [next(batches), next(batches)]
        with pytest.raises(feeder.WorkerTimeoutError, match=r"^step 2 took longer than"):
            list(batches)
        got += list(batches)
        assert threading.active_count() <= before + 3  # with the one that is stuck
        gate.set()
    assert ids_of(got) == [[2 * i, 2 * i + 1, 1000 + 2 * i, 1001 + 2 * i] for i in range(4)]


@pytest.mark.timeout(30)
def test_a_thread_that_wakes_up_after_others_took_its_shards_leaves_them_alone():
    gate = threading.Event()
    opened = []
    stuck = []

    def shard(number, epoch, state):
        opened.append(number)
        for at in range(8):
            if at == 4 and number == 0 and not stuck:
                stuck.append(threading.current_thread())
                gate.wait()
            yield record(number, at)

    options = {"num_workers": 2, "worker_type": "thread", "timeout_s": 0.3}
    with feeder.DataLoader(feeder.Stream(shard, 3), 6, **options) as loader:
        with iter(loader) as batches:
            got = [next(batches), next(batches)]
            with pytest.raises(feeder.WorkerTimeoutError):
                next(batches)
            got.append(next(batches))
            gate.set()
            stuck[0].join()
            got += list(batches)
    assert [sorted(ids) for ids in ids_of(got)] == [
        [number * 1000 + at for number in range(3) for at in (2 * i, 2 * i + 1)] for i in range(4)
    ]
    assert sorted(opened) == [0, 0, 1, 1, 2, 2]


def test_waiting_for_a_turn_is_not_taking_long():
    turn = threading.Event()

    def shard(number, epoch, state):
        for at in range(4):
            turn.wait(0.15)  # each batch takes a third of a second, and the last waits for three
            yield record(number, at)

    options = {"num_workers": 4, "worker_type": "thread", "timeout_s": 0.9}
    with feeder.DataLoader(feeder.Stream(shard, 2), 2, **options) as loader:
        assert len(list(loader)) == 4
