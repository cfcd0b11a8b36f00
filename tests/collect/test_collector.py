"""The collector: any order in, step order out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.collect.collector import Collector


@given(st.integers(0, 12).flatmap(lambda n: st.permutations(range(n))), st.integers(0, 10**9))
def test_whatever_the_order_of_arrival_steps_leave_in_order(arrivals, first):
    collector = Collector()
    for step in range(len(arrivals)):
        collector.expect(first + step)
    left = []
    for step in arrivals:
        collector.arrive(first + step, f"item {step}")
        while collector.ready:
            left.append(collector.pop())
    assert left == [(first + step, f"item {step}") for step in range(len(arrivals))]
    assert len(collector) == 0


@given(st.lists(st.sampled_from(["expect", "arrive", "pop"]), max_size=60), st.randoms())
def test_no_sequence_of_calls_repeats_skips_or_reorders_a_step(calls, random):
    collector = Collector()
    expected, waiting, left = 0, [], []
    for call in calls:
        if call == "expect":
            collector.expect(expected)
            waiting.append(expected)
            expected += 1
        elif call == "arrive" and waiting:
            step = waiting.pop(random.randrange(len(waiting)))
            collector.arrive(step, step)
        elif call == "pop" and collector.ready:
            left.append(collector.pop()[0])
    assert left == list(range(len(left)))
    assert len(collector) == expected - len(left)


def test_of_two_arrivals_for_a_step_the_first_stays():
    collector = Collector()
    collector.expect(0)
    collector.arrive(0, "first")
    collector.arrive(0, "second")
    assert collector.pop() == (0, "first")


def test_a_step_that_has_not_arrived_cannot_be_taken():
    collector = Collector()
    collector.expect(0)
    collector.expect(1)
    collector.arrive(1, "early")
    assert not collector.ready
    with pytest.raises(LookupError, match=r"^the next step has not arrived$"):
        collector.pop()
