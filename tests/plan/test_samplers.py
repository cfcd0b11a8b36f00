"""Draws with replacement: stateless, fair, and never a record of weight 0."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder import InfiniteSampler, WeightedSampler
from feeder.plan.samplers import Drawn


def drawn(sampler, num_records, seed=0, start=0, count=100_000):
    return Drawn(sampler, num_records, seed)(np.arange(start, start + count))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20).filter(any), st.integers(0, 2**70))
def test_a_record_of_weight_zero_is_never_drawn(weights, seed):
    indices = drawn(WeightedSampler(weights), len(weights), seed, count=1000)
    assert ((indices >= 0) & (indices < len(weights))).all()
    assert (np.asarray(weights)[indices] > 0).all()


def test_records_are_drawn_in_proportion_to_their_weights():
    weights = np.array([1, 2, 0, 3, 4])
    counts = np.bincount(drawn(WeightedSampler(weights), 5), minlength=5)
    expected = weights / weights.sum() * 100_000
    chi_squared = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_squared < 16.3  # 3 degrees of freedom: one in a thousand; the seed is fixed


@pytest.mark.parametrize("num_records", [1, 2, 10, 1000])
def test_without_weights_all_records_are_drawn_alike(num_records):
    counts = np.bincount(drawn(InfiniteSampler(), num_records), minlength=num_records)
    expected = 100_000 / num_records
    assert ((counts - expected) ** 2 / expected).sum() < num_records + 5 * (2 * num_records) ** 0.5


@pytest.mark.parametrize("num_records", [2**31, 2**33 + 1, 10**12, 2**62])
def test_large_ranges_are_filled_evenly(num_records):
    indices = drawn(InfiniteSampler(), num_records)
    assert indices.min() >= 0
    assert indices.max() < num_records
    tenths = np.bincount((indices / num_records * 10).astype(int), minlength=10)
    assert ((tenths - 10_000) ** 2 / 10_000).sum() < 27.9  # 9 degrees: one in a thousand


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(1, 50))
def test_a_draw_depends_on_its_position_alone(start, skipped, count):
    for sampler in (InfiniteSampler(), WeightedSampler([3, 1, 2])):
        whole = drawn(sampler, 3, 7, start, skipped + count)
        assert drawn(sampler, 3, 7, start + skipped, count).tolist() == whole[skipped:].tolist()


def test_neighbours_seeds_and_epochs_have_nothing_in_common():
    a = drawn(InfiniteSampler(), 1000, seed=0)
    b = drawn(InfiniteSampler(), 1000, seed=1)
    for other in (b, np.roll(a, 1), np.roll(a, 1000)):
        assert abs(np.corrcoef(a, other)[0, 1]) < 0.015
        assert 50 < (a == other).sum() < 160  # 100 expected


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (["a"], TypeError, "`weights` must be numbers, got an array of dtype <U1"),
        (
            [[1, 2]],
            ValueError,
            "`weights` must have the shape (records,), with at least one, got (1, 2)",
        ),
        ([], ValueError, "`weights` must have the shape (records,), with at least one, got (0,)"),
        (
            [1, -1],
            ValueError,
            "`weights` must be finite and not negative, got -1 for record 1",
        ),
        (
            [1, np.nan],
            ValueError,
            "`weights` must be finite and not negative, got nan for record 1",
        ),
        ([0, 0], ValueError, "`weights` must have a finite sum above 0, got 0.0"),
    ],
)
@pytest.mark.parametrize("kind", [WeightedSampler, InfiniteSampler])
def test_weights_that_are_none_are_refused(kind, weights, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        kind(weights)


@pytest.mark.parametrize(
    ("number", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_number_of_samples_that_is_none_is_refused(number, error):
    message = f"`num_samples` must be an integer of at least 1, or None, got {number}"
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        WeightedSampler([1, 2], num_samples=number)


def test_the_draws_are_pinned():
    assert drawn(WeightedSampler([1, 2, 3]), 3, 5, count=12).tolist() == [
        2,
        2,
        0,
        2,
        2,
        1,
        2,
        2,
        2,
        2,
        0,
        1,
    ]
    assert drawn(InfiniteSampler(), 10**6, 5, count=4).tolist() == [957970, 544238, 39787, 822818]
