"""mix: exact proportions at every prefix, passes that repeat nothing, ends that are said."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from tests.support import run

lengths_and_weights = st.lists(
    st.tuples(
        st.integers(1, 30), st.one_of(st.integers(1, 20), st.sampled_from([0.1, 0.25, 1 / 3, 7.5]))
    ),
    min_size=1,
    max_size=4,
)


def sources_of(lengths):
    return [{"of": np.full(n, i), "n": np.arange(n)} for i, n in enumerate(lengths)]


def taken(source, length=None):
    """Which record of which source each is."""
    batch = source.read(np.arange(len(source) if length is None else length))
    return batch["of"], batch["n"]


@settings(deadline=None, max_examples=40)
@given(
    lengths_and_weights,
    st.integers(0, 2**70),
    st.sampled_from([True, False, feeder.BlockShuffle(3, 2)]),
)
def test_any_prefix_has_its_proportions_and_no_pass_repeats_a_record(pairs, seed, shuffle):
    lengths, weights = zip(*pairs, strict=True)
    mixed = feeder.mix(sources_of(lengths), list(weights), seed=seed, shuffle=shuffle, length=120)
    of, n = taken(mixed)
    shares = np.array(weights, float) / sum(weights)
    counts = np.cumsum(of[:, None] == np.arange(len(lengths)), axis=0)
    assert np.all(np.abs(counts - np.arange(1, 121)[:, None] * shares) <= 1 + 1e-9)
    for source, length in enumerate(lengths):
        mine = n[of == source]
        for start in range(0, len(mine), length):
            records = mine[start : start + length]
            assert len(set(records.tolist())) == len(records)
            if shuffle is False:
                assert records.tolist() == list(range(len(records)))
    order = np.random.default_rng(0).permutation(120)
    assert np.array_equal(mixed.read(order)["n"], n[order])


@settings(deadline=None, max_examples=40)
@given(lengths_and_weights, st.integers(0, 9))
def test_a_mix_ends_before_a_second_pass_or_once_all_had_their_first(pairs, seed):
    lengths, weights = zip(*pairs, strict=True)
    sources = sources_of(lengths)
    first = len(feeder.mix(sources, list(weights), seed=seed))
    whole = len(feeder.mix(sources, list(weights), seed=seed, stop="all_exhausted"))
    assert first <= whole
    of, _ = taken(feeder.mix(sources, list(weights), seed=seed, length=whole + first + 1))
    ends = [np.flatnonzero(of == i) for i in range(len(lengths))]
    nexts = [end[length] for end, length in zip(ends, lengths, strict=True) if len(end) > length]
    assert first == min(nexts)  # there the next pass of a source would begin
    assert whole == 1 + max(end[n - 1] for end, n in zip(ends, lengths, strict=True))


def test_each_pass_of_a_source_has_an_order_of_its_own():
    of, n = taken(feeder.mix(sources_of([50, 50]), length=200, seed=1))
    passes = [n[of == i][start : start + 50].tolist() for i in (0, 1) for start in (0, 50)]
    assert len(set(map(tuple, passes))) == 4
    assert all(sorted(one) == list(range(50)) for one in passes)


def test_seeds_make_mixes_and_the_same_seed_the_same_one():
    mixes = [taken(feeder.mix(sources_of([40, 40]), seed=seed)) for seed in (0, 1, 0)]
    assert np.array_equal(mixes[0], mixes[2])
    assert not np.array_equal(mixes[0][1], mixes[1][1])
    firsts = {taken(feeder.mix(sources_of([4, 4]), seed=seed))[0][0] for seed in range(20)}
    assert firsts == {0, 1}


def test_weights_count_as_they_are_written():
    expected = taken(feeder.mix(sources_of([70, 20, 10]), [7, 2, 1]))
    for weights in ([0.7, 0.2, 0.1], np.array([7, 2, 1]), np.array([0.7, 0.2, 0.1], np.float32)):
        found = taken(feeder.mix(sources_of([70, 20, 10]), weights))
        assert np.array_equal(found, expected)
    assert len(expected[0]) == 100


def test_a_mix_reaches_workers_and_goes_on_there_after_a_resume():
    sources = [feeder.concat(sources_of([9, 4])), sources_of([6])[0]]
    mixed = feeder.mix(sources, [2, 1], length=60)
    again = pickle.loads(pickle.dumps(mixed._route))
    assert np.array_equal(again(np.arange(60)), mixed._route(np.arange(60)))
    expected = [batch["n"].tolist() for batch in run(mixed, 6, num_epochs=2)]
    with feeder.DataLoader(mixed, 6, num_epochs=2, num_workers=2) as loader:
        with iter(loader) as batches:
            got = [next(batches)["n"].tolist() for _ in range(7)]
            saved = json.loads(json.dumps(batches.get_state()))
        with iter(loader) as batches:
            batches.set_state(saved)
            got += [batch["n"].tolist() for batch in batches]
    assert got == expected


def test_a_loader_that_shuffles_keeps_the_whole_and_gives_up_the_prefixes():
    mixed = feeder.mix(sources_of([60, 60]), [3, 1])
    batches = run(mixed, 20, shuffle=True)
    of = np.concatenate([batch["of"] for batch in batches])
    assert np.count_nonzero(of == 0) == 60
    assert len({np.count_nonzero(batch["of"] == 1) for batch in batches}) > 1
    in_order = run(mixed, 20)
    assert {np.count_nonzero(batch["of"] == 1) for batch in in_order} == {5}


def test_the_order_is_pinned():
    # A checkpoint restored by a later version must go on alike.
    of, n = taken(feeder.mix(sources_of([10, 10]), [2, 1], seed=3))
    assert of.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert n.tolist() == [8, 7, 0, 5, 3, 1, 1, 6, 2, 9, 2, 4, 4, 0, 6]


two = sources_of([3, 3])


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: feeder.mix([two[0], []]),
            ValueError,
            "`sources[1]` must hold at least one record, to be mixed, got none",
        ),
        (
            lambda: feeder.mix(two, [1]),
            ValueError,
            "`weights` must be one for each of the 2 `sources`, got 1",
        ),
        (
            lambda: feeder.mix(two, 3),
            TypeError,
            "`weights` must be a list of numbers, got 3",
        ),
        (
            lambda: feeder.mix(two, [1, 0]),
            ValueError,
            "`weights[1]` must be a finite number above 0, got 0; leave its source out",
        ),
        (
            lambda: feeder.mix(two, [-0.5, 1]),
            ValueError,
            "`weights[0]` must be a finite number above 0, got -0.5",
        ),
        (
            lambda: feeder.mix(two, [1, float("nan")]),
            ValueError,
            "`weights[1]` must be a finite number above 0, got nan",
        ),
        (
            lambda: feeder.mix(two, [1, float("inf")]),
            ValueError,
            "`weights[1]` must be a finite number above 0, got inf",
        ),
        (
            lambda: feeder.mix(two, [1, True]),
            TypeError,
            "`weights[1]` must be a finite number above 0, got True",
        ),
        (
            lambda: feeder.mix(two, stop="never"),
            ValueError,
            "`stop` must be 'first_exhausted' or 'all_exhausted', got 'never'",
        ),
        (
            lambda: feeder.mix(two, length=9, stop="all_exhausted"),
            ValueError,
            "`stop` must be left out with `length`, got 'all_exhausted'",
        ),
        (
            lambda: feeder.mix(two, length=0),
            ValueError,
            "`length` must be an integer of at least 1, got 0",
        ),
        (
            lambda: feeder.mix(two, [10**30, 1], stop="all_exhausted"),
            ValueError,
            '`stop="all_exhausted"` must come to at most 2**62 records, got about 2**100',
        ),
        (
            lambda: feeder.mix(two, shuffle=feeder.WindowShuffle()),
            TypeError,
            "`shuffle` must be True, False or a feeder.BlockShuffle, got "
            "WindowShuffle(window_size=4096)",
        ),
    ],
)
def test_bad_arguments_say_what_to_change(make, kind, message):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == message
