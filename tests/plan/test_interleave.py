"""Turns of several sources: exact shares at every prefix, for any weights, at any position."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.plan.interleave import MAX_CYCLE, Cycle, Splits, interleaving

small = st.lists(st.integers(1, 40), min_size=1, max_size=9)
large = st.lists(st.integers(1, 10**20), min_size=1, max_size=9)


def counts_of(turns, weights, start, length):
    """Checks numbers and places of some records; counts of each source at each prefix."""
    positions = np.arange(start, start + length)
    sources, numbers = turns(positions)
    for source in range(len(weights)):
        mine = np.flatnonzero(sources == source)
        assert np.array_equal(np.diff(numbers[mine]), np.ones(max(0, len(mine) - 1)))
        for place in mine[:: max(1, len(mine) // 3)].tolist():
            assert turns.position_of(source, int(numbers[place])) == start + place
        before = numbers[mine[0]] if len(mine) else 0
        yield before + np.cumsum(sources == source)


def deviation(turns, weights, length):
    """The most that the counts are off their share, at the first prefixes."""
    total = sum(weights)
    return max(
        abs(int(count) - Fraction((n + 1) * weights[source], total))
        for source, counts in enumerate(counts_of(turns, weights, 0, length))
        for n, count in enumerate(counts)
    )


@settings(deadline=None, max_examples=50)
@given(small, st.randoms(use_true_random=False))
def test_small_weights_are_never_one_record_off(weights, random):
    ties = random.sample(range(len(weights)), len(weights))
    turns = interleaving(weights, ties)
    assert isinstance(turns, Cycle)
    assert deviation(turns, weights, min(300, 2 * sum(weights))) < 1


@settings(deadline=None, max_examples=50)
@given(large, st.randoms(use_true_random=False))
@example([10**20, 10**20 - 1, 10**20 - 3, 1], None)
def test_weights_of_any_size_are_off_by_no_more_than_is_said(weights, random):
    ties = random.sample(range(len(weights)), len(weights)) if random else [0, 1, 2, 3]
    turns = Splits(weights, ties)
    assert turns.max_deviation <= Fraction((len(weights) - 1).bit_length(), 2)
    assert deviation(turns, weights, 200) <= turns.max_deviation
    if len(weights) <= 4:
        assert turns.max_deviation <= 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=6), st.integers(0, 2**61))
def test_any_stretch_goes_on_as_if_all_before_it_had_been_taken(weights, start):
    for kind in (Splits, *([Cycle] if sum(weights) < 3000 else [])):
        turns = kind(weights, list(range(len(weights))))
        total = sum(weights)
        for source, counts in enumerate(counts_of(turns, weights, start, 50)):
            if counts[-1] > 0:  # some record of it is among them
                share = Fraction((start + 50) * weights[source], total)
                assert abs(int(counts[-1]) - share) <= turns.max_deviation


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 2**61))
def test_a_position_has_its_source_whatever_is_asked_for_beside_it(weights, position):
    for kind in (Cycle, Splits):
        turns = kind(weights, list(range(len(weights))))
        together = turns(np.array([position - 1, 0, position]))
        alone = turns(np.array([position]))
        assert [part[2] for part in together] == [part[0] for part in alone]


def test_a_common_factor_changes_nothing():
    one, other = interleaving([3, 1], [0, 1]), interleaving([3 * 10**30, 10**30], [0, 1])
    assert one(np.arange(40))[0].tolist() == other(np.arange(40))[0].tolist()


@pytest.mark.parametrize("more", [0, 1])
def test_cycles_are_tables_up_to_a_length(more):
    kind = Splits if more else Cycle
    assert isinstance(interleaving([MAX_CYCLE - 1 + more, 1], [0, 1]), kind)


def test_the_turns_are_pinned():
    # A checkpoint restored by a later version must go on alike.
    assert interleaving([5, 3, 2, 1], [0, 1, 2, 3])(np.arange(11))[0].tolist() == [
        *[0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 3]
    ]
    assert interleaving([10**6, 3**12, 7**6], [0, 1, 2])(np.arange(11))[0].tolist() == [
        *[0, 1, 0, 1, 0, 0, 2, 0, 1, 0, 0]
    ]
