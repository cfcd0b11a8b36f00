"""Block shuffle: a permutation, in runs."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.plan.blocks import BlockShuffle, BlockShuffled

sizes = st.tuples(st.integers(1, 300), st.integers(1, 40), st.integers(1, 5))


@given(sizes, st.integers(0, 2**40), st.integers(0, 3))
def test_every_record_is_hit_once_in_every_epoch(sizes, seed, epoch):
    num_records, block, window = sizes
    order = BlockShuffled(num_records, seed, BlockShuffle(block, window))
    positions = np.arange(epoch * num_records, (epoch + 1) * num_records)
    assert np.array_equal(np.sort(order(positions)), np.arange(num_records))


@given(sizes, st.integers(0, 5), st.lists(st.integers(0, 899), min_size=1, max_size=20))
def test_a_position_has_its_record_whatever_is_asked_for_beside_it(sizes, seed, positions):
    num_records, block, window = sizes
    order = BlockShuffled(num_records, seed, BlockShuffle(block, window))
    positions = np.sort(np.array(positions))
    alone = [int(order(positions[i : i + 1])[0]) for i in range(len(positions))]
    assert order(positions).tolist() == alone


@given(sizes, st.integers(0, 5))
def test_a_window_holds_few_blocks(sizes, seed):
    num_records, block, window = sizes
    order = BlockShuffled(num_records, seed, BlockShuffle(block, window))
    indices = order(np.arange(num_records))
    for start in range(0, num_records, window * block):
        assert len(set((indices[start : start + window * block] // block).tolist())) <= window + 2


def test_epochs_windows_and_seeds_differ():
    def epochs(seed):
        order = BlockShuffled(10_000, seed, BlockShuffle(100, 4))
        return order(np.arange(20_000)).reshape(2, 25, 400)

    first, other = epochs(0), epochs(1)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, other)
    within = {tuple(np.argsort(window).tolist()) for window in first[0]}
    assert len(within) == 25
    blocks = [tuple(sorted(set((window // 100).tolist()))) for window in first[0]]
    assert blocks != sorted(blocks)


def test_the_order_is_pinned():
    order = BlockShuffled(10, 0, BlockShuffle(3, 2))
    assert order(np.arange(20)).tolist() == [
        3,
        5,
        7,
        4,
        9,
        6,
        1,
        0,
        2,
        8,
        4,
        8,
        7,
        6,
        5,
        3,
        2,
        1,
        0,
        9,
    ]


def test_a_trillion_records_are_shuffled_in_blocks_at_once():
    order = BlockShuffled(10**12 + 7, 0, BlockShuffle(4096, 64))
    indices = order(np.arange(10**11, 10**11 + 5000))
    assert len(np.unique(indices)) == 5000


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((0,), ValueError, "`block_size` must be an integer of at least 1, got 0"),
        ((2.5,), TypeError, "`block_size` must be an integer of at least 1, got 2.5"),
        ((4, -1), ValueError, "`window_blocks` must be an integer of at least 1, got -1"),
    ],
)
def test_bad_sizes_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        feeder.BlockShuffle(*arguments)
