"""Orders and permutations: bijective, independent, and as good as a true shuffle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.plan.order import (
    TABLE_SIZE,
    FeistelPermutation,
    Sequential,
    Shuffled,
    permutation,
)

LENGTHS = sorted(
    {1, 2, 3, 7, 8191, 8192, 8193, 10007, *(2**k + d for k in (4, 14, 16) for d in (-1, 0, 1))}
)


@pytest.mark.parametrize("num_records", LENGTHS)
def test_every_record_is_hit_once(num_records):
    indices = permutation(num_records, seed=0, epoch=0)(np.arange(num_records))
    assert np.array_equal(np.sort(indices), np.arange(num_records))


@given(st.integers(1, 50_000), st.integers(0, 2**80), st.integers(0, 2**20))
def test_any_length_seed_and_epoch_gives_a_permutation(num_records, seed, epoch):
    indices = permutation(num_records, seed, epoch)(np.arange(num_records))
    assert np.array_equal(np.sort(indices), np.arange(num_records))


@pytest.mark.parametrize("num_records", [TABLE_SIZE + 1, 10**12, 2**61 + 1, 2**62])
def test_the_cipher_stays_in_range_and_repeats_nothing_at_any_length(num_records):
    generator = np.random.default_rng(0)
    offsets = np.unique(generator.integers(0, num_records, 20_000))
    indices = permutation(num_records, 1, 2)(offsets)
    assert indices.dtype == np.int64
    assert indices.min() >= 0
    assert indices.max() < num_records
    assert len(np.unique(indices)) == len(offsets)


@given(st.integers(1, 30_000), st.lists(st.integers(0, 29_999), min_size=1, max_size=50))
def test_an_offset_has_its_index_whatever_is_asked_for_beside_it(num_records, offsets):
    offsets = np.array(offsets) % num_records
    permuted = permutation(num_records, 5, 1)
    together = permuted(offsets)
    assert together.tolist() == [int(permuted(offsets[i : i + 1])[0]) for i in range(len(offsets))]


def test_seed_0_epoch_1_is_not_seed_1_epoch_0():
    for num_records in (100, 100_000):
        offsets = np.arange(num_records)
        first = permutation(num_records, seed=0, epoch=1)(offsets)
        second = permutation(num_records, seed=1, epoch=0)(offsets)
        assert np.count_nonzero(first == second) < 10


def test_the_permutations_are_pinned():
    # These numbers are a promise: a checkpoint restored by a later version must go on alike.
    assert permutation(10, 0, 0)(np.arange(10)).tolist() == [1, 4, 5, 6, 8, 2, 0, 3, 9, 7]
    assert permutation(10**12, 0, 0)(np.arange(4)).tolist() == [
        663696642221,
        934321331737,
        305157036180,
        710440043172,
    ]


def statistics(indices):
    """Deviations from what a true permutation has, each about standard normal."""
    n = len(indices)
    place = np.histogram2d(np.arange(n), indices, bins=32)[0]
    found = [_chi_square(place, 31 * 31)]
    for lag in (1, 2, 3):
        gaps = (indices[lag:] - indices[:-lag]) % n
        found.append(_chi_square(np.histogram(gaps, bins=256, range=(0, n))[0], 255))
    pairs = np.histogram2d(indices[1:], indices[:-1], bins=32)[0]
    found.append(_chi_square(pairs, 32 * 32 - 1))
    near = np.count_nonzero(np.abs(np.diff(indices)) <= 32)
    found.append((near - 64) / 8)
    fixed = np.count_nonzero(indices == np.arange(n))
    found.append(float(fixed - 1))
    parity = np.count_nonzero((indices[1:] ^ indices[:-1]) & 1)
    found.append((parity - n / 2) / np.sqrt(n / 4))
    return found


def _chi_square(counts, degrees):
    expected = counts.sum() / counts.size
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


@pytest.mark.parametrize("num_records", [60_000, 65_536, 100_003])
def test_the_cipher_is_not_told_apart_from_a_true_shuffle(num_records):
    seeds = range(24)
    ciphered = np.mean(
        [statistics(permutation(num_records, seed, 0)(np.arange(num_records))) for seed in seeds], 0
    )
    true = np.mean(
        [statistics(np.random.default_rng(seed).permutation(num_records)) for seed in seeds], 0
    )
    # Means of 24 standard normals, and their difference: 5 sigma is 5 · √(2 / 24).
    assert np.all(np.abs(ciphered - true) < 5 * np.sqrt(2 / len(seeds))), (ciphered, true)


def test_the_statistics_tell_a_cipher_of_too_few_rounds_apart(monkeypatch):
    monkeypatch.setattr("feeder.plan.order._ROUNDS", 2)
    weak = FeistelPermutation(65_536, np.random.Philox(key=0))
    assert max(np.abs(statistics(weak(np.arange(65_536))))) > 50


def test_sequential_order_begins_each_epoch_anew():
    order = Sequential(3)
    assert order(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 200))
def test_a_shuffled_order_permutes_each_epoch_by_itself(num_records, seed, start):
    order = Shuffled(num_records, seed)
    positions = np.arange(start, start + 3 * num_records)
    for position, index in zip(positions.tolist(), order(positions).tolist(), strict=True):
        epoch, offset = divmod(position, num_records)
        assert index == permutation(num_records, seed, epoch)(np.array([offset]))[0]
