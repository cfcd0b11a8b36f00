"""concat, zip, subset and repeat: index maps that nest, one read for each source, honest errors."""

import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.sources.in_place import in_place
from tests.support import run


def numbers(first, length):
    return {"n": np.arange(first, first + length)}


def no_shard(shard, epoch, state):
    return []


class Pair(NamedTuple):
    left: Any
    right: Any


class Counted:
    """Reads batches, and counts how often."""

    def __init__(self, first, length, dtype=np.int64, bad=None):
        self.first, self.length, self.dtype, self.bad = first, length, dtype, bad
        self.asked = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"n": self.dtype(self.first + index)}

    def read(self, indices):
        if self.bad in indices:
            raise OSError("bad block")
        self.asked.append(indices.tolist())
        return {"n": (self.first + indices).astype(self.dtype)}


class Failing:
    """Reads records, one of which cannot be read."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index == self.bad:
            raise IndexError(f"nothing at {index}")
        return {"n": index}


leaves = st.integers(0, 6).flatmap(
    lambda n: st.sampled_from(
        [
            lambda start: {"n": np.arange(start, start + n)},
            lambda start: [{"n": start + i} for i in range(n)],
            lambda start: Counted(start, n),
        ]
    )
)
trees = st.recursive(
    leaves,
    lambda below: st.one_of(
        st.tuples(st.just("concat"), st.lists(below, min_size=1, max_size=3)),
        st.tuples(st.just("repeat"), below, st.integers(1, 3)),
        st.tuples(st.just("subset"), below, st.randoms(use_true_random=False)),
        st.tuples(st.just("slice"), below, st.integers(-3, 3).filter(bool)),
    ),
    max_leaves=5,
)


def built(tree, start):
    """A source, the numbers of its records, and a first number that none of them has."""
    if callable(tree):
        source = tree(start)
        length = len(source["n"]) if isinstance(source, dict) else len(source)
        return source, list(range(start, start + length)), start + length
    kind, *rest = tree
    if kind == "concat":
        sources, expected = [], []
        for below in rest[0]:
            source, of_source, start = built(below, start)
            sources.append(source)
            expected += of_source
        return feeder.concat(sources), expected, start
    source, expected, start = built(rest[0], start)
    if kind == "repeat":
        return feeder.repeat(source, rest[1]), expected * rest[1], start
    if kind == "slice":
        return feeder.subset(source, slice(None, None, rest[1])), expected[:: rest[1]], start
    chosen = [rest[1].randrange(len(expected)) for _ in range(7)] if expected else []
    return feeder.subset(source, chosen), [expected[i] for i in chosen], start


@settings(deadline=None, max_examples=60)
@given(st.lists(trees, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_any_nesting_has_the_records_of_the_lists_that_it_stands_for(nested, random):
    source, expected, _ = built(("concat", nested), 0)
    assert len(source) == len(expected)
    assert [int(record["n"]) for record in source] == expected
    asked = [random.randrange(len(expected)) for _ in range(20)] if expected else []
    if hasattr(source, "read"):
        assert not hasattr(source, "__getitems__")
        found = source.read(np.array(asked, np.int64))["n"].tolist()
    else:
        found = [int(record["n"]) for record in source.__getitems__(asked)]
    assert found == [expected[i] for i in asked]
    again = pickle.loads(pickle.dumps(source)) if not hasattr(source, "read") else source
    assert len(again) == len(expected)


def test_each_source_below_is_read_once_for_a_chunk_however_deep():
    a, b = Counted(0, 10), Counted(100, 10)
    source = feeder.subset(
        feeder.concat([feeder.concat([a, b]), feeder.repeat(a, 2)]), range(39, -1, -1)
    )
    batch = source.read(np.array([39, 0, 25, 10, 38]))
    assert batch["n"].tolist() == [0, 9, 104, 9, 1]
    assert [len(a.asked), len(b.asked)] == [2, 1]  # a stands in two places
    assert sorted(map(tuple, a.asked)) == [(0, 1), (9, 9)]


def test_ten_to_the_twelve_records_cost_nothing():
    source = feeder.subset(feeder.repeat(numbers(0, 1000), 10**12), range(10**14, 2 * 10**14, 7))
    source = feeder.mix([source, feeder.repeat(numbers(1000, 5), 10**12)], [3, 1], seed=1)
    assert len(source) > 10**12
    assert len(pickle.dumps(source)) < 20_000
    (batch,) = run(feeder.subset(source, range(10**12, 10**12 + 4)), 4)
    assert sorted(batch["n"] >= 1000) == [False, False, False, True]


def test_records_of_arrays_are_copied_once_straight_into_the_batch():
    a, b = numbers(0, 10), numbers(10, 10)
    nested = feeder.zip({"x": feeder.concat([a, b]), "y": feeder.subset(numbers(0, 40), slice(20))})
    for source in (feeder.mix([a, b]), nested, feeder.repeat(nested, 2)):
        assert in_place(source).source is source
    assert in_place(feeder.concat([a, Counted(0, 3)])) is None
    names = {"n": np.array(["one", "three"], object)}
    assert in_place(feeder.concat([names, names])) is None
    (batch,) = run(feeder.concat([names, names]), 4)
    assert batch["n"].tolist() == ["one", "three", "one", "three"]


@pytest.mark.parametrize("row_bytes", [1, 5000, 200_000])
def test_rows_of_any_size_arrive_in_their_places(row_bytes):
    rows = np.arange(20, dtype=np.uint8)[:, None] * np.ones(row_bytes, np.uint8)
    source = feeder.concat([rows[:7], rows[7:7], rows[7:]])
    order = np.random.default_rng(0).permutation(20)
    assert np.array_equal(source.read(order), rows[order])


def test_zip_keeps_the_structure_and_takes_lists_as_sources_of_items():
    source = feeder.zip({"a": Pair(np.arange(3), ["x", "y", "z"]), "b": {"c": numbers(5, 3)}})
    assert source[-1] == {"a": Pair(2, "z"), "b": {"c": {"n": 7}}}
    assert feeder.zip([[1, 2], [3, 4]])[0] == (1, 3)
    assert [tuple(r) for r in feeder.zip((np.arange(2), np.arange(2)))] == [(0, 0), (1, 1)]


def test_the_builtin_zip_is_left_alone():
    namespace = {}
    exec("from feeder import *", namespace)
    assert "zip" not in namespace
    assert namespace["concat"] is feeder.concat


def test_what_subset_is_given_is_copied_and_may_be_a_mask():
    indices = np.array([2, 0, 2])
    source = feeder.subset(numbers(10, 4), indices)
    indices[:] = 1
    assert [int(record["n"]) for record in source] == [12, 10, 12]
    mask = np.array([True, False, False, True])
    assert [int(r["n"]) for r in feeder.subset(numbers(10, 4), mask)] == [10, 13]
    assert [int(r["n"]) for r in feeder.subset(numbers(10, 4), slice(-1, 0, -2))] == [13, 11]
    assert [len(feeder.subset(numbers(0, 4), none)) for none in ([], slice(0), range(0))] == [0] * 3


def test_an_index_is_that_of_a_list():
    source = feeder.concat([numbers(0, 3), numbers(10, 2)])
    assert source[-1]["n"] == source[np.int32(4)]["n"] == 11
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"from -5 to 4, of its 5 records, got {wrong}"):
            source[wrong]
    with pytest.raises(TypeError, match=r"an integer, got slice\(None, 2, None\); feeder.subset"):
        source[:2]
    with pytest.raises(IndexError, match="from 0 to 4, the last of its records, got 5"):
        source.read(np.array([0, 5]))


def test_an_index_error_of_a_source_below_ends_no_loop():
    with pytest.raises(IndexError, match="nothing at 3"):
        list(feeder.concat([Failing(9), Failing(3)]))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_names_the_record_here_and_below(num_workers):
    source = feeder.concat([Failing(9), feeder.subset(feeder.concat([Failing(3)]), [1, 3])])
    with pytest.raises(IndexError, match="nothing at 3") as caught:
        run(source, 4, num_workers=num_workers, last_batch="keep")
    assert caught.value.__notes__ == ["Record 6 is record 3 of sources[1].source.sources[0]."]
    where = caught.value.__cause__
    assert isinstance(where, feeder.RecordError)
    assert (where.step, where.position, where.index) == (1, 6, 6)


def test_an_error_of_a_batch_names_the_source_and_its_records():
    source = feeder.zip({"a": feeder.concat([Counted(0, 2), Counted(2, 12, bad=4)])})
    with pytest.raises(OSError, match="bad block") as caught:
        run(source, 14)
    listed = "It was raised while records 0, 1, 2, 3, 4, 5, 6, 7, … "
    assert caught.value.__notes__ == [
        f"{listed}(12 in all) of sources[1] were read.",
        f"{listed}(14 in all) of sources['a'] were read.",
    ]
    left = run(source, 14, on_bad_record="skip")
    assert left[0]["a"]["n"].tolist() == [*range(6), *range(7, 14)]


def test_an_error_of_a_transform_names_the_record_below():
    def fail(record):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError) as caught:
        run(feeder.concat([numbers(0, 2)]), 2, transforms=[fail])
    assert caught.value.__notes__ == ["Record 0 is record 0 of sources[0]."]


def test_records_that_differ_between_sources_name_them():
    with pytest.raises(
        ValueError, match=r"same dtype at record\['n'\], got float32 in sources\[1\]"
    ):
        feeder.concat([numbers(0, 2), {"n": np.zeros(2, np.float32)}])
    with pytest.raises(
        ValueError, match=r"same shape at record\['n'\], got \(3,\) in sources\[1\]"
    ):
        feeder.mix([numbers(0, 2), {"n": np.zeros((2, 3), int)}])
    with pytest.raises(
        ValueError, match=r"same structure, got .*'m'.* in sources\[1\]\.sources\[0\]"
    ):
        feeder.concat([numbers(0, 2), feeder.concat([{"m": np.arange(3)}])])
    with pytest.raises(
        ValueError, match=r"same dtype at record\['n'\], got float64 in sources\[1\]"
    ):
        run(feeder.concat([numbers(0, 2), Counted(0, 2, np.float64)]), 4)
    with pytest.raises(feeder.RecordMismatchError) as caught:
        run(feeder.concat([[{"n": 1}], [{"n": 1.0}]]), 2)
    assert caught.value.__notes__ == [
        "Record 1 is record 0 of sources[1].",
        "Record 0 is record 0 of sources[0].",
    ]


def test_a_source_that_returns_other_rows_than_asked_for_is_named():
    class Wrong(Counted):
        def read(self, indices):
            return {"n": np.arange(7)}

    class Few(Failing):
        def __getitems__(self, indices):
            return []

    with pytest.raises(ValueError, match=r"of `sources\[1\]` must return 2 rows for 2 indices"):
        run(feeder.concat([Counted(0, 2), Wrong(0, 2)]), 4)
    with pytest.raises(ValueError, match=r"of `sources\[0\]` must return 5 records for 5 indices"):
        run(feeder.concat([Few(None)]), 5)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: feeder.concat([]),
            ValueError,
            "`sources` must name at least one source, got none",
        ),
        (
            lambda: feeder.concat(numbers(0, 3)),
            TypeError,
            "`sources` must be a list of sources, got dict",
        ),
        (
            lambda: feeder.concat([[1], 5]),
            TypeError,
            "`sources[1]` must be a source of records, got an error: `source` must have len() and "
            "[], or be a stream: an iterable, a function that returns an iterator, or an object "
            "with num_shards and open(), got int",
        ),
        (
            lambda: feeder.repeat(feeder.Stream(no_shard, 2), 2),
            TypeError,
            "`source` must have len() and [], to be composed with random access, got "
            "Stream(no_shard(shard, epoch, state), num_shards=2, length=None, cycle_length=2, "
            "block_length=None); compose what makes the stream, as the items of feeder.stream_of",
        ),
        (
            lambda: feeder.zip([[1], feeder.FromCallable(max)]),
            TypeError,
            "`sources[1]` must have len() and [], to be composed with random access, got "
            "FromCallable(max); compose the batches in the function",
        ),
        (
            lambda: feeder.zip({"a": [1, 2], "b": np.arange(3)}),
            ValueError,
            "`sources` must hold the same number of records, got len(sources['a']) = 2, "
            "len(sources['b']) = 3; cut the longer ones to feeder.subset(source, range(2))",
        ),
        (
            lambda: feeder.zip(np.arange(3)),
            TypeError,
            "`sources` must be a list or a pytree of sources, got ndarray",
        ),
        (lambda: feeder.zip({}), ValueError, "`sources` must name at least one source, got none"),
        (
            lambda: feeder.subset([1, 2], [0, -1]),
            ValueError,
            "`indices` must be from 0 to 1, the last record of `source`, got -1 at 1",
        ),
        (
            lambda: feeder.subset([1, 2], range(1, 4)),
            ValueError,
            "`indices` must be from 0 to 1, the last record of `source`, got 3 at 2",
        ),
        (
            lambda: feeder.subset([1, 2], [True]),
            ValueError,
            "`indices` must have 2 values, one for each record of `source`, where it is a boolean "
            "mask, got 1",
        ),
        (
            lambda: feeder.subset([1, 2], [0.0]),
            TypeError,
            "`indices` must be a range, a slice, a sequence of integers or a boolean mask of shape "
            "(records,), got one of shape (1,) and dtype float64",
        ),
        (lambda: feeder.repeat([1], 0), ValueError, "`n` must be an integer of at least 1, got 0"),
        (
            lambda: feeder.repeat([1], -2),
            ValueError,
            "`n` must be an integer of at least 1, got -2",
        ),
        (
            lambda: feeder.repeat([1, 2], 2**62),
            ValueError,
            f"`n` must be at most {2**61}, for 2**62 records in all, got {2**62}",
        ),
        (
            lambda: feeder.concat([feeder.repeat([1], 2**62), [1]]),
            ValueError,
            f"`sources` must hold 2**62 records at most, got {2**62 + 1} in all",
        ),
    ],
)
def test_bad_arguments_say_what_to_change(make, kind, message):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == message


def test_a_loader_refuses_a_composition_without_records():
    for empty in (feeder.concat([[], []]), feeder.subset([1], []), feeder.repeat([], 3)):
        with pytest.raises(ValueError, match="`source` must hold 1 to 2\\*\\*62 records, got 0"):
            feeder.DataLoader(empty, 1)


def test_the_state_of_a_source_composed_in_another_way_is_refused():
    a, b = numbers(0, 400), numbers(400, 400)
    one = feeder.mix([a, b], [3, 1], length=800)
    others = [
        feeder.concat([a, b]),
        feeder.concat([numbers(0, 399), numbers(399, 401)]),
        feeder.mix([a, b], [2, 1], length=800),
        feeder.mix([a, b], [3, 1], length=800, seed=1),
        feeder.repeat(a, 2),
        feeder.subset(feeder.concat([a, b]), range(799, -1, -1)),
        feeder.zip([feeder.subset(feeder.repeat(a, 2), range(800)), feeder.repeat(a, 2)]),
        feeder.zip([a, a]),
    ]
    with feeder.DataLoader(one, 4) as loader, iter(loader) as batches:
        next(batches)
        saved = batches.get_state()
        batches.set_state(saved)
    for other in others[:-1]:
        with feeder.DataLoader(other, 4) as loader, iter(loader) as batches:
            with pytest.raises(feeder.StateError, match=r"  source: saved 'mix \w{8}', present '"):
                batches.set_state(saved)
    prints = [one.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(prints)) == len(prints)
    assert prints[-1] is None  # arrays have none
    again = feeder.mix([numbers(0, 400), numbers(400, 400)], [0.75, 0.25], length=800)
    assert again.fingerprint == one.fingerprint
    assert feeder.concat([feeder.subset(a, [])]).fingerprint.startswith("concat ")
