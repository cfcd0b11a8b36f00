"""Plans of local batches: pure, complete, and without overlap between processes."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.plan.batches import PositionPlanner
from feeder.plan.order import Shuffled
from feeder.plan.rows import rows_of_process, rows_of_slices
from feeder.plan.schedule import LAST_BATCH, Cursor, Schedule


def planner(num_records, batch_size, last_batch="drop", epochs=2, index=0, count=1):
    schedule = Schedule(num_records, batch_size, epochs, last_batch)
    return PositionPlanner(
        schedule, Shuffled(num_records, 7), lambda rows: rows_of_process(rows, index, count)
    )


def described(plans):
    return [
        (
            plan.chunk.step,
            plan.chunk.positions.tolist(),
            plan.chunk.indices.tolist(),
            None if plan.chunk.mask is None else plan.chunk.mask.tolist(),
            plan.num_rows,
            plan.after,
        )
        for plan in plans
    ]


@given(st.integers(1, 50), st.integers(1, 20), st.sampled_from(LAST_BATCH), st.data())
def test_plans_do_not_depend_on_where_planning_began(num_records, batch_size, last_batch, data):
    batch_size = min(batch_size, num_records)
    planned = planner(num_records, batch_size, last_batch)
    whole = described(planned.batches(Cursor(0, 0)))
    cut = data.draw(st.integers(0, len(whole)))
    after = whole[cut - 1][-1] if cut else Cursor(0, 0)
    assert described(planned.batches(after)) == whole[cut:]
    if cut < len(whole):
        assert described([planned.batch(cut)]) == whole[cut : cut + 1]


@settings(deadline=None)
@given(st.integers(1, 4096), st.integers(1, 3), st.sampled_from(["drop", "pad", "rollover"]))
def test_the_processes_of_a_job_split_each_batch_without_overlap_or_gap(count, share, last_batch):
    size = count * share
    num_records = size + size // 2 + 1
    whole = described(planner(num_records, size, last_batch).batches(Cursor(0, 0)))
    sampled = sorted({0, count // 2, count - 1})
    for index in sampled:
        local = described(
            planner(num_records, size, last_batch, index=index, count=count).batches(Cursor(0, 0))
        )
        mine = slice(index * share, (index + 1) * share)
        for part, all_rows in zip(local, whole, strict=True):
            assert part[1] == all_rows[1][mine]
            assert part[2] == all_rows[2][mine]
            assert part[3] == (None if all_rows[3] is None else all_rows[3][mine])
            assert part[4:] == all_rows[4:]


def test_padding_repeats_the_last_real_record_and_the_mask_tells():
    *_, last = described(planner(5, 4, "pad", epochs=1).batches(Cursor(0, 0)))
    _, positions, indices, mask, num_rows, after = last
    assert positions == [4, 4, 4, 4]
    assert len(set(indices)) == 1
    assert mask == [True, False, False, False]
    assert num_rows == 4
    assert after == Cursor(2, 5)


def test_a_large_batch_is_planned_alone_and_small_ones_together():
    for size in (1, 10_000):
        plans = list(itertools.islice(planner(20_000, size).batches(Cursor(0, 0)), 3))
        assert [plan.chunk.step for plan in plans] == list(range(min(3, len(plans))))
        assert all(len(plan.chunk.indices) == size for plan in plans)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=6))
def test_rows_held_by_several_devices_are_loaded_once_and_in_order(num_rows, bounds):
    slices = [slice(min(a, b), max(a, b)) for a, b in bounds]
    rows = rows_of_slices(num_rows, slices).tolist()
    held = {row for part in slices for row in range(num_rows)[part]}
    assert rows == sorted(held)


def test_the_slice_of_everything_holds_all_rows():
    assert rows_of_slices(5, [slice(None)]).tolist() == [0, 1, 2, 3, 4]


def test_indices_are_read_only_for_user_code():
    plan = next(planner(10, 5).batches(Cursor(0, 0)))
    assert not plan.chunk.indices.flags.writeable
    assert np.array_equal(plan.chunk.positions, np.arange(5))
