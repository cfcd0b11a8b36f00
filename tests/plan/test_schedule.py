"""Steps, positions and epochs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.plan.schedule import LAST_BATCH, Cursor, Schedule

schedules = st.builds(
    Schedule,
    num_records=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    num_epochs=st.integers(1, 6),
    last_batch=st.sampled_from(LAST_BATCH),
).filter(lambda schedule: schedule.last_batch != "drop" or schedule.steps_per_epoch > 0)


def spans(schedule, cursor=None):
    return [span for span, _ in schedule.spans(cursor or Cursor(0, 0))]


def positions(schedule):
    return [p for span in spans(schedule) for p in range(span.start, span.start + span.num_real)]


@given(schedules)
def test_the_number_of_steps_is_exact(schedule):
    found = spans(schedule)
    assert [span.step for span in found] == list(range(len(found)))
    assert schedule.num_steps == len(found)


@given(schedules)
def test_positions_only_grow_and_only_drop_leaves_any_out(schedule):
    n, size, epochs = schedule.num_records, schedule.batch_size, schedule.num_epochs
    found = positions(schedule)
    if schedule.last_batch == "drop":
        kept = n // size * size
        assert found == [e * n + i for e in range(epochs) for i in range(kept)]
    elif schedule.last_batch == "rollover":
        assert found == list(range(n * epochs // size * size))
    else:
        assert found == list(range(n * epochs))


@given(schedules)
def test_only_keep_changes_the_size_of_a_batch(schedule):
    for span in spans(schedule):
        if schedule.last_batch == "keep":
            assert span.num_rows == span.num_real
        else:
            assert span.num_rows == schedule.batch_size
        assert 1 <= span.num_real <= schedule.batch_size
        if schedule.last_batch in ("drop", "rollover"):
            assert span.num_real == span.num_rows


@given(schedules, st.data())
def test_a_cursor_goes_on_with_the_very_same_batches(schedule, data):
    whole = list(schedule.spans(Cursor(0, 0)))
    cut = data.draw(st.integers(0, len(whole)))
    cursor = whole[cut - 1][1] if cut else Cursor(0, 0)
    assert list(schedule.spans(cursor)) == whole[cut:]


@given(schedules, st.data())
def test_any_step_is_found_without_those_before_it(schedule, data):
    found = spans(schedule)
    if found:
        step = data.draw(st.integers(0, len(found) - 1))
        assert next(schedule.spans(schedule.cursor(step)))[0] == found[step]


def test_an_endless_schedule_ends_nowhere():
    schedule = Schedule(num_records=5, batch_size=2, num_epochs=None, last_batch="drop")
    assert schedule.num_steps is None
    far = schedule.cursor(10**12)
    starts = [span.start for span, _ in itertools.islice(schedule.spans(far), 3)]
    assert starts == [5 * (10**12 // 2) + d for d in (0, 2, 5)]


@pytest.mark.parametrize(
    ("last_batch", "expected"),
    [
        ("drop", [(0, 3, 3), (3, 3, 3), (7, 3, 3), (10, 3, 3)]),
        ("keep", [(0, 3, 3), (3, 3, 3), (6, 1, 1), (7, 3, 3), (10, 3, 3), (13, 1, 1)]),
        ("pad", [(0, 3, 3), (3, 3, 3), (6, 1, 3), (7, 3, 3), (10, 3, 3), (13, 1, 3)]),
        ("rollover", [(0, 3, 3), (3, 3, 3), (6, 3, 3), (9, 3, 3)]),
    ],
)
def test_what_becomes_of_the_last_batch(last_batch, expected):
    schedule = Schedule(num_records=7, batch_size=3, num_epochs=2, last_batch=last_batch)
    assert [(span.start, span.num_real, span.num_rows) for span in spans(schedule)] == expected


@given(schedules, st.integers(1, 70), st.data())
def test_another_batch_size_goes_on_at_the_same_position(schedule, size, data):
    n, end = schedule.num_records, schedule.num_records * schedule.num_epochs
    if schedule.last_batch == "drop":
        size = min(size, n)
    whole = list(schedule.spans(Cursor(0, 0)))
    cut = data.draw(st.integers(0, len(whole)))
    at = whole[cut - 1][1] if cut else Cursor(0, 0)
    resized = schedule.resized(size, at)
    found = list(resized.spans(resized.origin))
    assert [span.step for span, _ in found] == list(range(cut, cut + len(found)))
    taken = [p for span, _ in found for p in range(span.start, span.start + span.num_real)]
    left = list(range(at.position, end))
    if schedule.last_batch == "drop":
        epochs = itertools.groupby(left, key=lambda p: p // n)
        kept = [list(positions) for _, positions in epochs]
        assert taken == [p for part in kept for p in part[: len(part) // size * size]]
    elif schedule.last_batch == "rollover":
        assert taken == left[: len(left) // size * size]
    else:
        assert taken == left
    for number, (span, after) in enumerate(found):
        assert resized.cursor(span.step).position == span.start
        assert resized.cursor(after.step) == after
        again = resized.spans(resized.cursor(cut + number))
        assert next(again)[0] == span
