"""Numbers of batches: sums of all, percentiles of the last, and what Linux says of processes."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.feed import Fed
from feeder.monitor import Meter
from feeder.monitor.meter import _late_s, _stage
from feeder.monitor.processes import Sample, Usage, usage, worker_cpus
from feeder.monitor.ring import Column, Ring, durations
from feeder.monitor.timeline import STEPS_KEPT
from feeder.plan.chunks import PlannedChunk
from feeder.produce.built import Built
from feeder.produce.clock import HERE, StageTimes
from feeder.produce.layout import Layout
from feeder.produce.session import LocalBatch
from feeder.produce.workforce import Workforce

WIDTH = len(Column)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 1500), max_size=4), st.integers(0, 2**32 - 1))
def test_sums_are_of_all_batches_and_rows_of_the_last_however_often_it_is_read(bursts, seed):
    generator, ring, all_rows = np.random.default_rng(seed), Ring(), np.empty((0, WIDTH), np.int64)
    for burst in bursts:
        new = generator.integers(0, 2**40, (burst, WIDTH))
        for row in new.tolist():
            ring.new.append(tuple(row))
        all_rows = np.concatenate([all_rows, new])
        count, sums, rows = ring.read()
        assert count == len(all_rows)
        assert np.array_equal(sums, durations(all_rows).sum(axis=0))
        assert np.array_equal(rows, all_rows[-STEPS_KEPT:])


def fed(step):
    rows = np.arange(4)
    times = StageTimes(0, 0, 0, 0, 0, 0, HERE)
    outcome = LocalBatch(Built(Layout.of(None, (), None), [], times), None)
    return Fed(PlannedChunk(step, rows, rows, None), 4, outcome, None)


def test_memory_does_not_grow_where_nobody_reads():
    meter = Meter(Workforce)
    for step in range(3 * STEPS_KEPT + 1):
        meter.delivered(fed(step), (), (0, 0), 0, 0)
    ring = meter._ring
    assert len(ring.new) == 1
    assert len(ring._rows) == STEPS_KEPT
    assert ring.read()[2][:, Column.STEP].tolist() == list(range(2 * STEPS_KEPT + 1, 3001))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_percentiles_are_times_of_batches_of_the_nearest_rank(spent):
    ordered = sorted(spent)
    found = _stage(np.array([sum(spent)]), np.array(spent))
    for share, got in ((0.5, found.p50_s), (0.9, found.p90_s), (0.99, found.p99_s)):
        rank = next(rank for rank in range(1, len(ordered) + 1) if rank >= share * len(ordered))
        assert got == ordered[rank - 1] / 1e9
    assert found.max_s == ordered[-1] / 1e9
    assert found.mean_s == pytest.approx(sum(spent) / len(spent) / 1e9)


def built(ended, slept):
    rows = np.zeros((len(ended), WIDTH), np.int64)
    rows[:, Column.ENDED], rows[:, Column.SLEPT] = ended, slept
    return rows


def test_a_wait_is_late_where_as_many_later_batches_as_workers_were_ready_before():
    second = 10**9
    even = built(np.arange(8) * second, [second] * 8)
    assert _late_s(even, 2) == 0
    one_slow = built([1 * second, 9 * second, 2 * second, 3 * second], [0, 7 * second, 0, 0])
    assert _late_s(one_slow, 2) == 6 / 4
    assert _late_s(one_slow, 0) == _late_s(one_slow, 4) == _late_s(one_slow[:0], 2) == 0


def test_what_linux_says_of_this_process(tmp_path):
    found = usage(os.getpid())
    assert 0 < found.own_bytes < found.rss_bytes
    assert found.cpu_s > 0
    assert usage(2**30) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text("100 50 20 1 0 10 0\n")
    fields = " ".join(map(str, range(4, 40)))
    (tmp_path / "7" / "stat").write_text(f"7 (a) name) S {fields}\n")
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    assert usage(7, tmp_path) == Usage(50 * page, 30 * page, (14 + 15) / tick)


def test_processors_of_workers_are_counted_between_samples_that_lie_apart():
    def sample(at_s, **cpu_s):
        used = {(name, pid): Usage(1, 1, cpu) for pid, (name, cpu) in enumerate(cpu_s.items())}
        return Sample(int(at_s * 1e9), used, 0)

    before, now = sample(0, parent=5, one=1), sample(2, parent=9, one=3, two=1)
    assert worker_cpus(before, now) == 1.5  # a new worker's from its beginning
    assert worker_cpus(before, sample(0.1, parent=5, one=2)) is None
