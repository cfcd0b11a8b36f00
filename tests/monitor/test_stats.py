"""What an iterator measures of itself, with every kind of producer and source."""

import dataclasses
import itertools
import logging
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import feeder
from feeder.monitor.stats import STAGES
from feeder.monitor.timeline import STEPS_KEPT

from ..support import kill_one, rows

KINDS = {
    "here": {},
    "process": {"num_workers": 2},
    "thread": {"num_workers": 2, "worker_type": "thread"},
}
SOURCES = {
    "arrays": lambda: rows(400),
    "stream": lambda: feeder.Stream(
        lambda shard, epoch, state: iter([{"index": np.int32(n)} for n in range(100)]), 4
    ),
    "callable": lambda: feeder.FromCallable(lambda size: [{"x": np.ones(3)}] * size),
}


def busy(seconds):
    def work(record):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        return record

    return work


def take(batches, count):
    for _ in range(count):
        next(batches)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_stage_is_measured(kind, source):
    options = {"transforms": [busy(1e-4)], "batch_transforms": [lambda batch: batch]}
    with feeder.DataLoader(SOURCES[source](), 10, **options, **KINDS[kind]) as loader:
        batches = iter(loader)
        take(batches, 30)
        stats, timeline = batches.stats(), batches.timeline()
    assert (stats.batches, stats.recent_batches, stats.records) == (30, 29, 300)
    assert (stats.worker_type, stats.num_workers) == (kind, KINDS[kind].get("num_workers", 0))
    assert tuple(stats.stages) == STAGES
    for name, stage in stats.stages.items():
        assert 0 <= stage.p50_s <= stage.p90_s <= stage.p99_s <= stage.max_s, name
        assert stage.mean_s <= stage.max_s, name
    assert stats.transform_s == stats.stages["transform"].total_s >= 300 * 1e-4
    for name in ("read", "collate", "batch_transform", "place", "wait"):
        assert stats.stages[name].total_s == getattr(stats, f"{name}_s") > 0, name
    assert (stats.stages["call"].total_s > 0) == (source == "callable")
    assert (stats.stages["wait_worker"].total_s > 0) == (kind != "here")
    assert 0 < stats.wait_share <= 1
    assert stats.elapsed_s >= stats.recent_s > 0
    assert stats.num_bytes > 0
    assert stats.batches_per_s == pytest.approx(29 / stats.recent_s)
    assert stats.records_per_s == pytest.approx(10 * stats.batches_per_s)
    assert stats.bytes_per_s > 0
    assert stats.mean_ready > 0
    assert stats.memory[0].process == "parent"
    assert len(stats.memory) == 1 + len(stats.worker_pids)
    assert all(0 < used.own_bytes <= used.rss_bytes for used in stats.memory)
    assert stats.bottleneck in str(stats)
    assert dataclasses.asdict(stats)["stages"]["read"]["total_s"] == stats.read_s

    assert timeline.steps == tuple(range(30))
    workers = {lane for lane in timeline.lanes if lane.startswith("worker")}
    assert workers <= {"worker 0", "worker 1"}
    assert bool(workers) == (kind != "here")
    assert ("this process" in timeline.lanes) == (kind == "here" or source == "callable")
    assert {"collector", "place", "user"} < set(timeline.lanes)
    check(timeline)


def check(timeline):
    """Spans make sense: no lane does two things at once, and stages of a step follow each other."""
    assert list(timeline.spans) == sorted(timeline.spans, key=lambda span: span[3:])
    for lane in timeline.lanes:
        spans = [span for span in timeline.spans if span.lane == lane]
        assert all(span.began_s <= span.ended_s for span in spans)
        if lane != "collector":
            pairs = itertools.pairwise(spans)
            assert all(one.ended_s <= other.began_s + 1e-9 for one, other in pairs), lane
    for step in timeline.steps:
        ended = {span.stage: span.ended_s for span in timeline.spans if span.step == step}
        assert max(ended["read"], ended.get("collate", 0)) <= ended["place"] <= ended["wait"]
        assert ended["ready"] == ended["wait"]


def test_before_the_first_batch_there_is_nothing_to_tell():
    with feeder.DataLoader(rows(8), 4) as loader:
        batches = iter(loader)
        stats = batches.stats()
        assert (stats.batches, stats.elapsed_s, stats.wait_s, stats.recent_batches) == (0, 0, 0, 0)
        assert str(stats).endswith("No batch was delivered yet.")
        assert batches.timeline() == feeder.Timeline()
        assert len(list(batches)) == 2
        assert batches.stats().batches == 2


def test_the_first_batch_does_not_count_but_in_the_totals():
    def slow_at_first(record):
        if record["index"] == 0:
            busy(0.1)(record)
        return record

    with feeder.DataLoader(rows(80), 4, transforms=[slow_at_first]) as loader:
        batches = iter(loader)
        take(batches, 20)
        stats = batches.stats()
    assert stats.first_batch_s > 0.1
    assert stats.stages["transform"].total_s > 0.1 > stats.stages["transform"].max_s


def test_chunks_of_one_batch_are_spans_of_their_own():
    options = {"num_workers": 2, "chunks_per_batch": 2, "transforms": [busy(1e-4)]}
    with feeder.DataLoader(rows(400), 20, **options) as loader:
        batches = iter(loader)
        take(batches, 20)
        timeline, stats = batches.timeline(), batches.stats()
    check(timeline)
    for step in timeline.steps[5:]:  # before, nobody knows how large a batch is
        spans = [span for span in timeline.spans if span.step == step and span.stage == "collate"]
        assert len(spans) == 2
    assert stats.transform_s >= 400 * 1e-4
    assert stats.can_split


def test_a_timeline_shows_the_last_steps():
    with feeder.DataLoader(np.arange(STEPS_KEPT + 50), 1) as loader:
        batches = iter(loader)
        list(batches)
        assert batches.timeline().steps == tuple(range(50, STEPS_KEPT + 50))
        assert batches.stats().batches == STEPS_KEPT + 50


def test_padding_is_no_record_and_records_left_out_are_none():
    def picky(record):
        if record["index"] in (3, 17):
            raise ValueError("bad")
        return record

    with feeder.DataLoader(rows(22), 8, last_batch="pad") as loader:
        batches = iter(loader)
        assert len(list(batches)) == 3
        assert batches.stats().records == 22
    with feeder.DataLoader(rows(24), 8, transforms=[picky], on_bad_record="skip") as loader:
        batches = iter(loader)
        list(batches)
        stats = batches.stats()
        assert (stats.records, stats.num_bad_records) == (22, 2)
        assert "2 bad records" in str(stats)


def test_a_worker_that_was_killed_stands_in_the_timeline():
    with feeder.DataLoader(rows(4000), 4, num_workers=2) as loader:
        batches = iter(loader)
        take(batches, 20)
        kill_one(batches, signal.SIGKILL)
        while not batches.stats().restarts:
            next(batches)
        restart, *others = batches.timeline().restarts
        assert not others
        assert restart.process in ("worker 0", "worker 1")
        assert 0 < restart.at_s < batches.stats().elapsed_s
        assert iter(loader).timeline().restarts == ()


def test_memory_is_told_of_all_processes_and_of_the_slots():
    with feeder.DataLoader(rows(400), 4, num_workers=2) as loader:
        batches = iter(loader)
        take(batches, 20)
        stats, memory = batches.stats(), batches.timeline().memory
    assert {each.process for each in memory} == {"parent", "worker 0", "worker 1", "slots"}
    assert {used.pid for used in stats.memory} == {os.getpid(), *stats.worker_pids}
    assert stats.slots_bytes >= stats.slot_bytes > 0
    assert stats.slots_bytes <= stats.max_memory_bytes


def test_time_in_a_next_that_raises_is_a_wait_without_a_batch():
    def fails_once(record, failed=[]):  # noqa: B006
        if record["index"] == 4 and not failed:
            failed.append(busy(0.05)(record))
            raise ValueError("once")
        return record

    with feeder.DataLoader(rows(12), 4, transforms=[fails_once]) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ValueError, match="once"):
            next(batches)
        assert len(list(batches)) == 2
        stats = batches.stats()
    assert stats.batches == 3
    assert stats.wait_s > 0.05 > stats.stages["wait"].total_s


def test_placing_is_measured_with_a_sharding():
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    with feeder.DataLoader(rows(160), 8, sharding=sharding, num_workers=2) as loader:
        batches = iter(loader)
        take(batches, 15)
        stats = batches.stats()
        check(batches.timeline())
    assert 0 < stats.place_s < stats.wait_s


def test_other_threads_may_ask_while_batches_flow():
    with feeder.DataLoader(np.arange(1500), 1) as loader:
        batches, over, counts = iter(loader), threading.Event(), []

        def ask():
            while not over.is_set():
                counts.append(batches.stats().batches)
                batches.timeline()

        asking = threading.Thread(target=ask)
        asking.start()
        list(batches)
        over.set()
        asking.join()
        assert counts == sorted(counts)
        assert batches.stats().batches == 1500


def test_a_line_is_logged_at_an_interval(caplog):
    caplog.set_level(logging.INFO, "feeder")
    with feeder.DataLoader(np.arange(200), 1) as loader:
        batches = iter(loader)
        assert batches.log_every(1e-9) is batches
        take(batches, 100)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 99  # none at the first next(): there is nothing to tell
        assert lines[-1].startswith("99 batches: ")
        assert " records/s, " in lines[-1]
        batches.log_every(None)
        caplog.clear()
        take(batches, 50)
        batches.log_every(1000)
        take(batches, 50)
        assert not caplog.records


@pytest.mark.parametrize("seconds", [0, -1.5, float("inf"), float("nan"), True, "1"])
def test_an_interval_that_is_none_is_refused(seconds):
    with feeder.DataLoader(np.arange(8), 1) as loader:
        kind = TypeError if isinstance(seconds, bool | str) else ValueError
        with pytest.raises(kind) as found:
            iter(loader).log_every(seconds)
    rule = f"`seconds` must be a number of seconds above 0, or None, got {seconds!r}"
    assert str(found.value) == rule
