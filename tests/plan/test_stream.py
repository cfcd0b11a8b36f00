"""The plan of a stream, against a model that simply reads lists."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import StateError, StreamError
from feeder.plan.rotation import Phase, cycle_of
from feeder.plan.stream import StreamPlanner, Total, from_json, to_json


def model(lengths, block, batch=1):
    """The records of one epoch, as a rotation over lists that are popped."""
    lanes = {lane: list(range(length)) for lane, length in enumerate(lengths)}
    alive = set(lanes)
    out = []
    cycle = [slot for slot in range(len(lengths)) for _ in range(block or 1)]
    if block is None and len(lengths) <= batch:
        cycle = [row * len(lengths) // batch for row in range(batch)]
    for row in itertools.count():
        slot = cycle[row % len(cycle)]
        while alive:
            lane = min(alive, key=lambda lane: lane ^ slot)
            if lanes[lane]:
                out.append((lane, lanes[lane].pop(0)))
                break
            alive.discard(lane)
        if not alive:
            return out
    raise AssertionError


def delivered(planner, lengths, place=None, limit=10_000):
    """What is delivered where every end is found only by reading into it."""
    totals = {}
    place = place or planner.start()
    batches = []
    while (plan := planner.plan(place, totals)) is not None:
        found = {}
        for number, offset in zip(plan.lanes.tolist(), plan.offsets.tolist(), strict=True):
            epoch, lane = divmod(number, planner.num_lanes)
            length = lengths[epoch % len(lengths)][lane]
            if offset >= length:
                found[number] = Total(length, length)
        if found:
            assert not totals.keys() & found.keys()
            totals.update(found)
            continue
        batches.append(plan)
        place = plan.after
        if len(batches) == limit:
            break
    return batches


def records(plans, planner):
    return [
        (*divmod(number, planner.num_lanes), offset)
        for plan in plans
        for number, offset in zip(plan.lanes.tolist(), plan.offsets.tolist(), strict=True)
    ]


blocks = st.none() | st.integers(1, 4)
lengths = st.lists(st.integers(0, 12), min_size=1, max_size=7)


@given(lengths, blocks, st.integers(1, 9))
def test_an_epoch_is_the_rotation_that_the_docstring_describes(lengths, block, batch):
    planner = StreamPlanner(len(lengths), block, batch, 1, "keep")
    expected = [(0, *pair) for pair in model(lengths, block, batch)]
    assert records(delivered(planner, [lengths]), planner) == expected


@given(
    st.lists(lengths, min_size=1, max_size=3),
    blocks,
    st.integers(1, 9),
    st.sampled_from(["drop", "keep", "pad", "rollover"]),
)
def test_every_record_is_in_one_batch_but_those_that_last_batch_drops(epochs, block, batch, last):
    width = min(map(len, epochs))
    epochs = [lengths[:width] for lengths in epochs]
    planner = StreamPlanner(width, block, batch, len(epochs), last)
    plans = delivered(planner, epochs)
    got = records(plans, planner)
    everything = [
        (epoch, lane, offset)
        for epoch, lengths in enumerate(epochs)
        for lane, offset in model(lengths, 1)
    ]
    assert len(set(got)) == len(got)
    missing = set(everything) - set(got)
    assert set(got) <= set(everything)
    sizes = [sum(lengths) for lengths in epochs]
    if last == "drop":
        assert len(missing) == sum(size % batch for size in sizes)
    elif last == "rollover":
        assert len(missing) == sum(sizes) % batch
    else:
        assert not missing
    assert [plan.step for plan in plans] == list(range(len(plans)))
    assert all(plan.num_rows == batch for plan in plans if last != "keep")
    assert all(plan.num_rows == len(plan.pattern) for plan in plans if last != "pad")


@given(lengths, blocks, st.integers(1, 9), st.data())
def test_a_place_that_went_through_json_goes_on_with_the_very_next_batch(
    lengths, block, batch, data
):
    planner = StreamPlanner(len(lengths), block, batch, 2, "rollover")
    plans = delivered(planner, [lengths])
    if not plans:
        return
    at = data.draw(st.integers(0, len(plans) - 1))
    after = plans[at].after
    restored = from_json(planner, after.step, after.position, to_json(planner, after))
    rest = delivered(planner, [lengths], restored)
    assert records(rest, planner) == records(plans[at + 1 :], planner)
    assert [plan.position for plan in rest] == [plan.position for plan in plans[at + 1 :]]


@given(lengths, st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_the_order_of_records_is_the_same_for_every_batch_size(lengths, block, one, other):
    orders = [
        records(delivered(planner, [lengths]), planner)
        for planner in (
            StreamPlanner(len(lengths), block, size, 1, "keep") for size in (one, other)
        )
    ]
    assert orders[0] == orders[1]


@given(st.integers(1, 16), blocks, st.integers(1, 40), st.integers(0, 200), st.data())
def test_a_lane_ends_in_the_row_that_would_take_the_record_after_its_last(
    num_lanes, block, batch, row, data
):
    alive = data.draw(st.sets(st.integers(0, num_lanes - 1), min_size=1))
    taken = {lane: data.draw(st.integers(0, 50)) for lane in alive}
    phase = Phase.of(cycle_of(num_lanes, block, batch), row, taken)
    assert phase.taken(row) == dict(sorted(taken.items()))
    for at, lane, offset in zip(range(row, row + 60), *found(phase, row, 60), strict=True):
        assert phase.first_end({lane: offset}) == (at, lane)
    ends = {lane: data.draw(st.integers(taken[lane], 80)) for lane in alive}
    assert phase.first_end(ends) == min(phase.first_end({lane: ends[lane]}) for lane in alive)


def found(phase, row, count):
    pattern, cycle = phase.pattern(row, count)
    return pattern.lanes.tolist(), pattern.at(cycle).tolist()


def test_a_dry_lane_moves_no_row_of_another():
    phase = Phase.of(cycle_of(8, 2, 16), 0, dict.fromkeys(range(8), 0))
    later = phase.without(5, 26)
    before, after = (zip(*found(one, 26, 174), strict=True) for one in (phase, later))
    for one, other in zip(before, after, strict=True):
        assert one == other or one[0] in (4, 5)  # the lane that serves its rows now


def test_an_endless_run_of_empty_epochs_is_an_error():
    planner = StreamPlanner(1, 1, 4, None, "drop")
    with pytest.raises(StreamError, match=r"at least 4 records in each epoch.*got 3 in epoch 0"):
        delivered(planner, [[3]])
    with pytest.raises(StreamError, match=r"at least 1 records in each epoch.*got 0 in epoch 0"):
        delivered(StreamPlanner(1, 1, 4, None, "rollover"), [[0]])
    assert len(delivered(StreamPlanner(1, 1, 4, None, "rollover"), [[3]], limit=9)) == 9


def test_a_wrong_length_is_an_error_at_the_end_of_the_epoch():
    planner = StreamPlanner(2, 1, 4, 1, "keep", length=9)
    with pytest.raises(StreamError, match="got 9 where epoch 0 has 8"):
        delivered(planner, [[5, 3]])


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": -1},
        {"row": "1"},
        {"lanes": []},
        {"lanes": [[0, 1], [0, 2]]},
        {"lanes": [[7, 1]]},
        {"lanes": [[0]]},
        {"lanes": None},
    ],
)
def test_a_damaged_place_is_refused(damage):
    planner = StreamPlanner(2, 1, 4, 1, "keep")
    good = to_json(planner, planner.start())
    with pytest.raises(StateError, match="damaged"):
        from_json(planner, 0, 0, {**good, **damage})


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_processes_that_divide_the_lanes_need_none_of_each_other(hosts, lanes_each, rows_each):
    lanes, batch = hosts * lanes_each, hosts * rows_each
    cycle = cycle_of(lanes, None, batch)
    if lanes > batch and lanes % batch:
        return
    host = np.arange(len(cycle)) % batch // rows_each
    assert (
        all(len(set(host[cycle == lane])) <= 1 for lane in range(lanes)) or lanes_each % rows_each
    )
