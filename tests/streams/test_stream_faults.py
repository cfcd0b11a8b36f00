"""Streams when something goes wrong: killed workers, blocked reads, bad records, bad functions."""

import json
import logging
import os
import random
import signal
import threading

import numpy as np
import psutil
import pytest

import feeder
from feeder.feed.reading import Reading
from feeder.plan.stream import StreamPlanner
from feeder.produce.builder import Builder
from feeder.produce.built import Built
from feeder.produce.recipe import Recipe
from feeder.produce.session import GivenUpError
from feeder.produce.streams import Streams
from feeder.produce.turns import Turns
from feeder.streaming import Streaming
from tests.streams.shards import (
    LENGTHS,
    WORKERS,
    OwnNames,
    Plain,
    Stateful,
    each_of,
    everything,
    ids_of,
    record,
    run,
    stream,
)
from tests.support import as_bytes, kill_one

pytestmark = pytest.mark.matrix

anyhow = each_of()
LONG = [200, 90, 0, 130, 160]


@pytest.mark.parametrize("kind", [Plain, Stateful, OwnNames])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": feeder.WindowShuffle(30), "last_batch": "rollover"}]
)
def test_killed_workers_change_no_batch(kind, options):
    expected = list(map(as_bytes, run(stream(LONG, kind), 5, num_epochs=2, **options)))
    source = stream(LONG, kind)
    with feeder.DataLoader(source, 5, num_epochs=2, num_workers=2, **options) as loader:
        got = []
        with iter(loader) as batches:
            for step, batch in enumerate(batches):
                got.append(as_bytes(batch))
                if step % 9 == 4:
                    kill_one(batches, signal.SIGKILL, step)
            assert batches.stats().restarts > 5
    assert got == expected


def test_a_killed_worker_reads_on_from_the_last_snapshot(tmp_path):
    log = tmp_path / "opened"
    source = stream([10_000], Stateful, log)
    with feeder.DataLoader(source, 5, num_workers=1, prefetch_batches=1) as loader:
        batches = iter(loader)
        for _ in range(100):
            next(batches)
        kill_one(batches, signal.SIGKILL)
        assert next(batches)["id"].tolist() == list(range(500, 505))
        assert next(batches)["id"].tolist() == list(range(505, 510))
    again = log.read_text().splitlines()[1:]
    # Where it was killed: one batch may have been on its way.
    assert [line.split(maxsplit=3)[3] in ("{'number': 500}", "{'number': 505}") for line in again]
    assert len(again) == 1


@anyhow
def test_what_an_iterator_raises_says_where_and_the_batch_is_tried_again(workers, tmp_path):
    flag = tmp_path / "fail once"
    flag.touch()

    def shard(number, epoch, state):
        for at in range(10):
            if (number, at) == (1, 5) and flag.exists():
                raise KeyError("broken")
            yield record(number, at)

    with feeder.DataLoader(feeder.Stream(shard, 3), 6, **workers) as loader:
        batches = iter(loader)
        got = [next(batches), next(batches)]
        for _ in range(2):
            with pytest.raises(KeyError, match="broken") as caught:
                next(batches)
            where = caught.value.__cause__
            assert isinstance(where, feeder.RecordError)
            assert (where.step, where.stage, where.shard, where.index) == (2, "read", 1, 5)
            assert where.position == 15
            assert "at record 5 of shard 1 (position 15)" in str(where)
        flag.unlink()
        got += list(batches)
    assert sorted(sum(ids_of(got), [])) == everything([10] * 3)


@anyhow
def test_what_a_transform_raises_says_where(workers):
    def picky(value):
        if value["id"] in (3003, 4002):
            raise ValueError("no")
        return value

    late = {"transforms": [picky]}
    early = {"transforms": [picky, feeder.Filter(bool)]}
    for options in (late, early):
        with feeder.DataLoader(stream(), 4, **options, **workers) as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            with pytest.raises(ValueError, match="no") as caught:
                list(batches)
            where = caught.value.__cause__
            assert (where.stage, where.shard, where.index) == ("transform", 3, 3)


@anyhow
def test_records_that_differ_are_an_error_that_names_them(workers):
    def shard(number, epoch, state):
        for at in range(8):
            yield {"x": np.zeros(3 if (number, at) == (2, 1) else 2)}

    with feeder.DataLoader(feeder.Stream(shard, 4), 8, **workers) as loader:
        with pytest.raises(feeder.RecordMismatchError) as caught:
            next(iter(loader))
    assert str(caught.value).split("\n")[0] == (
        "record['x'] must have the same shape in every record of a batch, got (3,) in record 1 of "
        "shard 2 and (2,) in record 0 of shard 0, in step 0; make them equal in a transform, or "
        "give a `collate` that can join them"
    )
    assert (caught.value.shard, caught.value.index) == (2, 1)


@anyhow
def test_bad_records_are_left_out_as_if_by_a_filter(workers):
    def picky(value):
        if value["id"] % 5 == 0:
            raise ValueError(f"bad {value['id']}")
        return value

    options = {"transforms": [picky], "on_bad_record": "skip", "last_batch": "keep"}
    with feeder.DataLoader(stream(), 4, **options, **workers) as loader:
        with iter(loader) as batches:
            got = list(batches)
            stats = batches.stats()
    kept = [number for number in everything() if number % 5]
    assert sorted(sum(ids_of(got), [])) == kept
    assert all(len(batch["id"]) == 4 for batch in got[:-1])
    assert stats.num_bad_records == len(everything()) - len(kept)
    assert {(bad.shard, bad.index) for bad in stats.bad_records} == {
        divmod(number, 1000) for number in everything() if number % 5 == 0
    }
    expected = run(
        stream(), 4, transforms=[feeder.Filter(lambda value: value["id"] % 5)], last_batch="keep"
    )
    assert list(map(as_bytes, got)) == list(map(as_bytes, expected))


def test_too_many_bad_records_are_an_error():
    def bad(value):
        raise ValueError("bad")

    options = {"transforms": [bad], "on_bad_record": "skip"}
    with feeder.DataLoader(stream(), 4, **options) as loader, iter(loader) as batches:
        assert list(batches) == []
        assert batches.stats().num_bad_records == len(everything())
    with feeder.DataLoader(stream(), 4, max_bad_records=9, **options) as loader:
        with pytest.raises(feeder.BadRecordsError, match="at most `max_bad_records` = 9"):
            list(loader)


@each_of(first=1)
def test_a_read_that_blocks_is_late(workers):
    def shard(number, epoch, state):
        yield record(number, 0)
        yield record(number, 1)
        threading.Event().wait(20)
        yield record(number, 2)

    with feeder.DataLoader(
        feeder.Stream(shard, 1), 2, prefetch_batches=1, timeout_s=0.4, **workers
    ) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(feeder.WorkerTimeoutError, match=r"`timeout_s` = 0\.4"):
            next(batches)


@pytest.mark.parametrize("workers", [WORKERS[2], WORKERS[4]], ids=["2", "2 threads"])
def test_close_does_not_wait_for_a_read_that_blocks(workers):
    def shard(number, epoch, state):
        yield record(number, 0)
        threading.Event().wait(60)

    loader = feeder.DataLoader(feeder.Stream(shard, 2), 2, timeout_s=50, **workers)
    batches = iter(loader)
    next(batches)
    pids = batches.stats().worker_pids
    closing = threading.Timer(0.3, loader.close)
    closing.start()
    with pytest.raises(feeder.ClosedError):
        next(batches)
    closing.join()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@each_of()
def test_ctrl_c_ends_a_wait_for_a_read_that_blocks_and_nothing_is_lost(workers, tmp_path):
    fifo = tmp_path / "block"
    os.mkfifo(fifo)

    def shard(number, epoch, state):
        for at in range(6):
            if (number, at) == (1, 3) and fifo.exists():
                os.close(os.open(fifo, os.O_RDONLY))  # waits for a writer
            yield record(number, at)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with feeder.DataLoader(feeder.Stream(shard, 2), 4, **workers) as loader:
            batches = iter(loader)
            got = [next(batches)]
            timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            timer.join()
            writer = os.open(fifo, os.O_RDWR)  # a thread may still be waiting
            fifo.unlink()
            os.close(writer)
            got += list(batches)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ids_of(got) == [[0, 1, 1000, 1001], [2, 3, 1002, 1003], [4, 5, 1004, 1005]]


def test_the_shards_of_a_run_that_was_left_are_closed(tmp_path):
    log = tmp_path / "closed"

    def shard(number, epoch, state):
        try:
            for at in range(1000):
                yield record(number, at)
        finally:
            with open(log, "a") as file:
                file.write(f"{number}\n")

    for workers in WORKERS:
        with feeder.DataLoader(feeder.Stream(shard, 2), 4, **workers) as loader:
            with iter(loader) as batches:
                next(batches)
            with iter(loader) as batches:
                next(batches)
            assert set(log.read_text().split()) == {"0", "1"}, workers
        log.write_text("")


def test_two_iterators_read_side_by_side():
    for workers in WORKERS:
        with feeder.DataLoader(stream(), 4, last_batch="keep", **workers) as loader:
            one, other = iter(loader), iter(loader)
            got = [[next(one), next(other)] for _ in range(14)]
            pairs = [list(map(as_bytes, pair)) for pair in got]
            assert all(left == right for left, right in pairs)


class Live(Plain):
    """Returns the dict that it goes on changing: the state must be taken as it was."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.place = {"number": 0}

    def __next__(self):
        value = super().__next__()
        self.place["number"] = self.number
        return value

    def state_dict(self):
        return self.place

    def load_state_dict(self, state):
        self.place, self.number = dict(state), state["number"]


@pytest.mark.parametrize("options", [{}, {"shuffle": feeder.WindowShuffle(30)}])
def test_a_state_that_goes_on_changing_is_taken_as_it_was(options):
    expected = list(map(as_bytes, run(stream(LONG), 5, **options)))
    with feeder.DataLoader(stream(LONG, Live), 5, num_workers=2, **options) as loader:
        got = []
        with iter(loader) as batches:
            for step, batch in enumerate(batches):
                got.append(as_bytes(batch))
                if step == 20:
                    kill_one(batches, signal.SIGKILL)
                if step % 10 == 7:
                    batches.set_state(json.loads(json.dumps(batches.get_state())))
        assert got == expected


@pytest.mark.parametrize("workers", [WORKERS[0], WORKERS[2], WORKERS[4]], ids=["0", "2", "threads"])
def test_a_state_that_cannot_be_saved_is_an_error_once(workers, tmp_path):
    flag = tmp_path / "fail"
    flag.touch()

    class Unsaved(Stateful):
        def state_dict(self):
            if self.number == 4 and self.shard == 1 and flag.exists():
                raise OSError("cannot say")
            return super().state_dict()

    with feeder.DataLoader(stream([20, 20], Unsaved), 4, **workers) as loader:
        batches = iter(loader)
        got = [next(batches)]
        with pytest.raises(OSError, match="cannot say") as caught:
            next(batches)
        assert caught.value.__cause__.shard == 1
        flag.unlink()
        got += list(batches)
    assert sorted(sum(ids_of(got), [])) == everything([20, 20])


def add_in_place(value):
    value["id"] += 100
    return value


@pytest.mark.parametrize(
    "options",
    [
        {"transforms": [add_in_place, feeder.Filter(lambda value: True)]},
        {"transforms": [add_in_place], "on_bad_record": "skip"},
        {"transforms": [feeder.FlatMap(lambda value: [value], 1), add_in_place]},
    ],
)
def test_changing_a_record_in_place_changes_no_source(options):
    held = [{"id": np.full((), number, np.int64)} for number in range(8)]
    got = run(held.__iter__, 4, num_epochs=2, **options)
    assert ids_of(got) == [[100, 101, 102, 103], [104, 105, 106, 107]] * 2


@pytest.mark.parametrize("workers", [WORKERS[1], WORKERS[4]], ids=["1", "2 threads"])
def test_reading_again_is_not_late_as_long_as_records_come(workers):
    def shard(number, epoch, state):
        for at in range(120):
            threading.Event().wait(0.01)
            yield record(number, at)

    with feeder.DataLoader(feeder.Stream(shard, 1), 4, timeout_s=0.5, **workers) as loader:
        with iter(loader) as batches:
            for _ in range(20):
                next(batches)
            state = batches.get_state()
        with iter(loader) as batches:
            batches.set_state(state)
            with pytest.warns(RuntimeWarning, match="80 records of the stream were read again"):
                assert next(batches)["id"].tolist() == [80, 81, 82, 83]


def test_a_data_set_that_is_told_its_epoch_is_the_runs_own():
    class Told:
        epoch = -1

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            for number in range(8):
                yield self.epoch * 100 + number

    with feeder.DataLoader(Told(), 2, num_epochs=3) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        assert loader.batch(0).tolist() == [0, 1]
        assert next(batches).tolist() == [102, 103]


def drawing(value):
    return {**value, "x": np.float32(random.random() + np.random.random())}


def shuffled_shard(number, epoch, state):
    order = list(range(12))
    random.shuffle(order)
    for at in order:
        yield {"id": np.int64(number * 1000 + at), "x": np.float32(np.random.random())}


@pytest.mark.parametrize("transforms", [[drawing], []], ids=["late", "none"])
def test_the_global_generators_are_the_same_for_any_number_of_workers(transforms):
    def got(**workers):
        source = feeder.Stream(shuffled_shard, 5)
        return list(map(as_bytes, run(source, 4, transforms=transforms, **workers)))

    expected = got()
    assert got() == got(num_workers=1) == got(num_workers=3) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda: (n for n in range(3)).__next__, "must be opened as an iterator over records"),
        (lambda: None, "does the function end without a return?"),
        (lambda: 3, "got int for shard 0"),
    ],
)
def test_what_is_opened_must_be_an_iterator(source, message):
    for workers in WORKERS[:3]:
        with feeder.DataLoader(source, 2, **workers) as loader:
            with pytest.raises(TypeError, match=message):
                next(iter(loader))


def test_a_function_that_returns_what_was_read_before_is_an_error():
    used = (n for n in range(3))
    next(used)
    with feeder.DataLoader(lambda: used, 2) as loader:
        with pytest.raises(TypeError, match="a generator for shard 0 that was read before"):
            next(iter(loader))


def test_a_stream_that_gives_other_records_when_read_again_is_found_out():
    class Shrinking:
        """Half as long each time it is opened."""

        def __init__(self):
            self.length = 64

        def __iter__(self):
            length, self.length = self.length, self.length // 2
            return iter(range(length))

    with feeder.DataLoader(Shrinking(), 4) as loader:
        with iter(loader) as batches:
            for _ in range(12):
                next(batches)
            state = batches.get_state()
        with iter(loader) as batches:
            batches.set_state(state)
            assert list(batches) == []  # its end comes sooner


def test_workers_that_would_have_nothing_to_do_are_not_started(caplog):
    caplog.set_level(logging.INFO, "feeder")
    with feeder.DataLoader(range(20).__iter__, 4, num_workers=3) as loader:
        with iter(loader) as batches:
            next(batches)
            assert len(batches.stats().worker_pids) == 1
    assert "3 workers for a stream of which 1 shards are read side by side" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [1]}, "`sampler` must be left out with a stream"),
        ({"batch_sampler": [[1]], "batch_size": 4}, "`batch_sampler` must be left out"),
        ({"shuffle": feeder.BlockShuffle(4)}, "`shuffle` must be True, False or a feeder.Window"),
        ({"on_bad_record": "replace"}, '`on_bad_record` must be "raise" or "skip" with a stream'),
        ({"snapshot_every": 0}, "`snapshot_every` must be an integer of at least 1, got 0"),
        (
            {"last_batch": "keep", "process_index": 0, "process_count": 2},
            '`last_batch` must be "drop", "pad" or "rollover" where batches are split',
        ),
    ],
)
def test_arguments_that_need_random_access_are_refused(options, message):
    options = {"batch_size": 4, **options}
    with pytest.raises((ValueError, TypeError), match=message):
        feeder.DataLoader(stream(), options.pop("batch_size"), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((print, 0), "`num_shards` must be an integer of at least 1, got 0"),
        ((3,), "`open` must be callable as open(shard, epoch, state), got int"),
        ((lambda shard: [],), "`open` must be callable as open(shard, epoch, state), got <lambda>"),
    ],
)
def test_a_stream_that_cannot_work_is_refused(arguments, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        feeder.Stream(*arguments)
    assert str(caught.value).startswith(message)


def test_a_filter_needs_a_stream():
    with pytest.raises(ValueError, match=r"`transforms\[0\]` must keep the number of records"):
        feeder.DataLoader(np.arange(4), 2, transforms=[feeder.Filter(bool)])


def test_a_flat_map_that_makes_too_many_is_an_error():
    with feeder.DataLoader(
        stream(), 4, transforms=[feeder.FlatMap(lambda value: [value] * 3, 2)]
    ) as loader:
        with pytest.raises(ValueError, match="at most `max_records` = 2 records for one"):
            next(iter(loader))


def test_a_filter_that_returns_nothing_is_an_error():
    for transform, message in (
        (feeder.Filter(lambda value: None), "a Filter's predicate must return whether"),
        (feeder.FlatMap(lambda value: None, 2), "a FlatMap's function must return an iterable"),
    ):
        with feeder.DataLoader(stream(), 4, transforms=[transform]) as loader:
            with pytest.raises(TypeError, match=message):
                next(iter(loader))


def test_shards_named_by_items_are_a_stream(tmp_path):
    paths = []
    for shard, length in enumerate(LENGTHS):
        paths.append(tmp_path / f"{shard}.txt")
        paths[-1].write_text("".join(f"{shard * 1000 + n}\n" for n in range(length)))

    def lines(path):
        with open(path) as file:
            yield from ({"id": np.int64(line)} for line in file)

    source = feeder.stream_of(paths, lines)
    for workers in WORKERS[:3]:
        assert ids_of(run(source, 4, **workers)) == ids_of(run(stream(), 4))
    with pytest.raises(ValueError, match="`items` must name at least one shard, got none"):
        feeder.stream_of([], lines)


def test_a_thread_that_comes_too_late_closes_no_shard_of_the_others(tmp_path):
    log = tmp_path / "opened"
    asked = Streaming.of(
        Recipe.of(
            source=stream([100, 100], Plain, log),
            transforms=(),
            collate=None,
            batch_transforms=(),
            seed=0,
            worker_init=None,
            on_bad_record="raise",
        ),
        num_epochs=1,
        shuffle=False,
        last_batch="drop",
        batch_size=4,
        sampler=None,
        batch_sampler=None,
        snapshot_every=1,
    )
    planner = StreamPlanner(2, None, 4, 1, "drop")
    reading = Reading(planner, np.arange, None)
    turns = Turns()
    builder = Builder(asked.recipe, None, Streams(asked.recipe, turns))

    def build(step, settled):
        place = planner.start()
        for _ in range(step):
            place = planner.plan(place, {}).after
        chunk = reading.chunk(planner.plan(place, {}), 1, (1,), settled, True)
        turns.begin(chunk)
        return builder.build(chunk, lambda size: (bytearray(size), 0))

    assert all(isinstance(build(step, max(0, step - 2)), Built) for step in range(20))
    with pytest.raises(GivenUpError):
        build(3, 0)
    assert isinstance(build(20, 18), Built)
    assert len(log.read_text().splitlines()) == 2


def test_a_thread_whose_chunk_was_given_to_others_reads_nothing_more():
    chunks = []
    opened = []

    def shard(number, epoch, state):
        opened.append(number)
        if number == 0:
            streams.forsake(chunks[0])  # as if it had been stuck here for too long
        yield from (record(number, at) for at in range(8))

    planner = StreamPlanner(2, None, 4, 1, "drop")
    recipe = feeder.DataLoader(feeder.Stream(shard, 2), 4)._ordering.recipe
    turns = Turns()
    streams = Streams(recipe, turns)
    plan = planner.plan(planner.start(), {})
    chunks.append(Reading(planner, np.arange, None).chunk(plan, 1, (1,), 0, True))
    turns.begin(chunks[0])
    with pytest.raises(GivenUpError):
        Builder(recipe, None, streams).build(chunks[0], lambda size: (bytearray(size), 0))
    assert opened == [0]
    assert not turns.has(chunks[0])


@pytest.mark.parametrize("odd", [[[3, 4], [5, 6]], [[3], [4]]])
@pytest.mark.parametrize("place", [1, 3])
def test_small_arrays_of_other_dimensions_are_never_taken_for_rows(odd, place):
    def shard(number, epoch, state):
        for at in range(4):
            yield np.array(odd if at == place else [at, at])

    with feeder.DataLoader(feeder.Stream(shard), 4) as loader:
        with pytest.raises(feeder.RecordMismatchError, match="must have the same shape"):
            next(iter(loader))


def test_records_without_leaves_are_none_the_less_records():
    source = feeder.Stream(lambda shard, epoch, state: iter([{}] * (5 + shard)), 3)
    for workers in WORKERS[:3]:
        assert len(run(source, 2, last_batch="keep", **workers)) == 9
