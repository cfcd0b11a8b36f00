"""`feeder.pack`: every token of every document in one place, whatever is packed how."""

import itertools
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.plan.packing import BestFitPlan, SplitPlan, best_fit_decreasing
from tests.support import as_bytes, run

sizes_lists = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any)


def documents_of(sizes):
    """Each token says which document it is of, and its place in that."""
    return [np.arange(size, dtype=np.int32) + 1000 * number for number, size in enumerate(sizes, 1)]


def segments(batch):
    """The segments of packed records, record by record, checked as far as they stand alone."""
    for tokens, ids, positions in zip(
        batch["tokens"], batch["segment_ids"], batch["positions"], strict=True
    ):
        held = ids > 0
        count = int(ids.max())
        assert ids[held].tolist() == sorted(ids[held].tolist())
        assert not ids[int(held.sum()) :].any()  # padding is at the end
        assert not tokens[~held].any()
        assert not positions[~held].any()
        found = [tokens[ids == number].tolist() for number in range(1, count + 1)]
        assert all(found)
        for number, segment in enumerate(found, start=1):
            assert positions[ids == number].tolist() == list(range(len(segment)))
        yield found


def whole(packed):
    return packed.read(np.arange(len(packed)))


@settings(deadline=None)
@given(
    sizes_lists,
    st.integers(1, 24),
    st.sampled_from(["best_fit", "split"]),
    st.integers(1, 12),
    st.none() | st.integers(0, 3),
)
def test_every_token_is_in_one_record_once_and_in_order(sizes, length, strategy, window, seed):
    documents = documents_of(sizes)
    options = {"window": window} if strategy == "best_fit" else {}
    packed = feeder.pack(documents, length, strategy=strategy, seed=seed, **options)
    records = list(segments(whole(packed)))
    pieces = {}
    for segment in itertools.chain.from_iterable(records):
        assert segment == list(range(segment[0], segment[0] + len(segment)))
        pieces.setdefault(segment[0] // 1000, []).append(segment)
    for number, document in enumerate(documents, start=1):
        found = sorted(pieces.pop(number, []))
        assert list(itertools.chain.from_iterable(found)) == document.tolist()
        if strategy == "best_fit":
            assert [len(piece) for piece in found[:-1]] == [length] * (len(found) - 1)
    assert not pieces
    assert len(packed) == len(records)
    assert packed.num_tokens == sum(sizes)
    assert packed.fill_ratio == sum(sizes) / (len(records) * length)
    if strategy == "split":
        assert len(packed) == -(-sum(sizes) // length)
        if seed is None:
            assert sum(sum(records, []), []) == np.concatenate(documents).tolist()


@settings(max_examples=50, deadline=None)
@given(sizes_lists, st.integers(1, 24), st.sampled_from(["best_fit", "split"]), st.data())
def test_records_are_the_same_in_any_order_of_access(sizes, length, strategy, data):
    packed = feeder.pack(documents_of(sizes), length, strategy=strategy)
    everything = whole(packed)
    indices = data.draw(st.lists(st.integers(0, len(packed) - 1), max_size=8))
    some = packed.read(np.array(indices, np.int64))
    for row, index in enumerate(indices):
        one = packed[index - len(packed)]
        for name, leaf in everything.items():
            assert leaf[index].tolist() == some[name][row].tolist() == one[name].tolist()


def in_one_by_one(sizes, capacity):
    """Best-fit decreasing, as the textbook has it: what is left of each bin."""
    left = []
    for size in sorted(sizes, reverse=True):
        fitting = [number for number, room in enumerate(left) if room >= size]
        if fitting:
            left[min(fitting, key=lambda number: left[number])] -= size
        else:
            left.append(capacity - size)
    return sorted(left)


@settings(deadline=None)
@given(st.integers(1, 60).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c)))))
def test_bins_are_filled_as_by_best_fit_decreasing_item_by_item(case):
    capacity, sizes = case
    bins = best_fit_decreasing(np.array(sizes, np.int64), capacity)
    held = np.bincount(bins, sizes).astype(int) if sizes else np.array([], int)
    assert sorted((capacity - held).tolist()) == in_one_by_one(sizes, capacity)


@settings(max_examples=30, deadline=None)
@given(sizes_lists, st.integers(1, 24), st.integers(1, 50))
def test_a_window_packs_as_if_its_documents_were_all_there_are(sizes, length, window):
    plan = BestFitPlan(np.array(sizes), length, window)
    expected = []
    for first in range(0, len(sizes), window):
        alone = BestFitPlan(np.array(sizes[first : first + window]), length, window)
        pieces = alone.pieces(np.arange(alone.num_records))
        expected += np.stack([pieces.documents + first, *pieces[2:]], axis=1).tolist()
    pieces = plan.pieces(np.arange(plan.num_records))
    assert np.stack(pieces[1:], axis=1).tolist() == expected


def test_plans_of_many_documents_are_small():
    sizes = np.random.default_rng(0).integers(1, 3000, 100_000).astype(np.uint16)
    assert len(pickle.dumps(SplitPlan(sizes, 1024), 5)) < 8.1 * len(sizes)
    assert len(pickle.dumps(BestFitPlan(sizes, 1024, 65_536), 5)) < 20 * len(sizes)


def test_best_fit_fills_records_of_usual_documents():
    lengths = np.random.default_rng(0).lognormal(5.8, 1.1, 20_000).astype(int) + 1
    plan = BestFitPlan(lengths, 1024, 65_536)
    assert lengths.sum() / (plan.num_records * 1024) > 0.9995


def test_a_separator_ends_each_document_and_is_part_of_it():
    documents = [[1, 2], [], [3], [4, 5, 6]]
    packed = feeder.pack(documents, 4, separator=9, pad=7)
    assert packed.num_tokens == 9
    batch = whole(packed)
    assert batch["tokens"].tolist() == [[1, 2, 9, 7], [3, 9, 7, 7], [4, 5, 6, 9]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    split = feeder.pack(documents, 4, strategy="split", separator=9, pad=7)
    batch = whole(split)
    assert batch["tokens"].tolist() == [[1, 2, 9, 3], [9, 4, 5, 6], [9, 7, 7, 7]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2], [1, 2, 2, 2], [1, 0, 0, 0]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 0, 0, 0]]


def test_a_separator_fits_after_the_longest_document_of_a_small_dtype():
    packed = feeder.pack([[1] * 255, [2]], 256, separator=9)
    assert packed.num_tokens == 258
    assert packed[0]["tokens"].tolist() == [1] * 255 + [9]


def test_leaves_of_a_document_are_packed_side_by_side_in_their_own_dtypes():
    documents = [
        {"id": f"number {n}", "tokens": np.arange(n, dtype=np.uint16), "weight": np.ones(n, "f4")}
        for n in (3, 2, 4)
    ]
    packed = feeder.pack(documents, 5, keys=["tokens", "weight"])
    batch = whole(packed)
    assert batch["tokens"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert batch["weight"].tolist() == [[1] * 5, [1, 1, 1, 1, 0]]
    assert [leaf.dtype for leaf in batch.values()] == [np.uint16, np.float32, np.int32, np.int32]
    assert feeder.pack(documents, 5, keys="tokens")[0].keys() == {
        "tokens",
        "segment_ids",
        "positions",
    }


@pytest.mark.parametrize(
    ("too_long", "expected"),
    [
        ("split", [[1, 2, 3], [4, 0, 0], [7, 8, 0]]),
        ("truncate", [[1, 2, 3], [7, 8, 0]]),
        ("drop", [[7, 8, 0]]),
    ],
)
def test_a_document_longer_than_a_record_is_split_truncated_or_dropped(too_long, expected):
    documents = [[1, 2, 3, 4], [7, 8]]
    packed = feeder.pack(documents, 3, window=1, too_long=too_long)
    assert whole(packed)["tokens"].tolist() == expected


def test_a_document_longer_than_a_record_is_refused_if_asked():
    with pytest.raises(
        feeder.DocumentError,
        match=r"^document 1 must have at most `length` = 3 tokens, got 4; set `too_long` to "
        r'"split", "truncate" or "drop"$',
    ) as caught:
        feeder.pack([[1], [1, 2, 3, 4]], 3, too_long="raise")
    assert (caught.value.document, caught.value.shard) == (1, None)


class Counted:
    """Documents that count how often they are read; offers their lengths, where asked to."""

    def __init__(self, documents, lengths=None):
        self.documents = documents
        self.reads = 0
        if lengths is not None:
            self.lengths = lengths

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        self.reads += 1
        return self.documents[index]


def test_lengths_are_given_or_offered_or_measured_or_kept(tmp_path):
    documents = documents_of([3, 0, 5, 2])
    expected = as_bytes(whole(feeder.pack(documents, 6)))
    given_, offered = Counted(documents), Counted(documents, np.array([3, 0, 5, 2]))
    assert as_bytes(whole(feeder.pack(given_, 6, lengths=[3, 0, 5, 2]))) == expected
    assert as_bytes(whole(feeder.pack(offered, 6))) == expected
    assert given_.reads == offered.reads == 4  # the first for its dtype, and those with tokens
    measured, kept = Counted(documents), Counted(documents)
    cache = tmp_path / "lengths.npy"
    packed = feeder.pack(measured, 6, lengths=cache, num_workers=0)
    assert measured.reads > 4
    assert as_bytes(whole(packed)) == expected
    assert as_bytes(whole(feeder.pack(kept, 6, lengths=str(cache)))) == expected
    assert kept.reads == 4
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.npy"]
    with pytest.raises(
        ValueError,
        match=rf"^`lengths` must be one number for each of the 3 documents, got shape \(4,\); "
        rf"remove {cache}, or name another file$",
    ):
        feeder.pack(Counted(documents[1:]), 6, lengths=cache)
    cache.write_bytes(b"")
    with pytest.raises(
        ValueError, match=rf"^`lengths` must be the name of a .npy file, got {cache}: "
    ):
        feeder.pack(kept, 6, lengths=cache)
    away = tmp_path / "none" / "lengths.npy"
    with pytest.raises(
        ValueError, match=f"^`lengths` must be in a folder that exists, got {away}$"
    ):
        feeder.pack(kept, 6, lengths=away)


def test_workers_measure_documents_and_name_the_one_that_is_none():
    class Documents(Counted):
        def __getitem__(self, index):
            return np.arange(index, dtype=float if index == 300 else int)

    with pytest.raises(
        feeder.DocumentError, match=r"^'tokens' of .* must hold integers, got "
    ) as e:
        feeder.pack(Documents(range(400)), 64, num_workers=1)
    assert (e.value.document, e.value.__cause__.stage) == (300, "read")


def test_a_document_of_another_length_than_declared_is_named():
    packed = feeder.pack([[1, 2], [3, 4, 5]], 4, lengths=[2, 4])
    with feeder.DataLoader(packed, 2) as loader, pytest.raises(feeder.DocumentError) as caught:
        next(iter(loader))
    assert str(caught.value) == (
        "document 1 must have the 4 tokens that its length was said to be, got 3; are `lengths` "
        "of this source?"
    )
    assert caught.value.document == 1


def test_a_document_that_differs_from_the_first_is_named():
    def first_error(*documents, **options):
        lengths = [len(next(iter(d.values())) if isinstance(d, dict) else d) for d in documents]
        with pytest.raises(feeder.DocumentError) as caught:
            whole(feeder.pack(list(documents), 8, lengths=lengths, **options))
        return str(caught.value)

    ok = np.ones(3, np.int32)
    assert first_error(ok, np.ones(2, np.int64)) == (
        "'tokens' of document 1 must be of the dtype of document 0, int32, got int64"
    )
    assert first_error(ok, np.ones((2, 2), np.int32)) == (
        "'tokens' of document 1 must have one axis, got shape (2, 2)"
    )
    assert first_error({"a": ok, "b": ok}, {"a": ok}) == (
        "document 1 must have the leaves of document 0, ['a', 'b'], got ['a']"
    )
    assert first_error({"a": ok, "b": ok}, {"a": ok}, keys=["a", "b"]) == (
        "document 1 must have the leaves of `keys`, got ['a'] without 'b'"
    )
    assert first_error({"a": ok}, {"a": ok, "b": ok}) == (
        "document 1 must have the leaves of document 0, ['a'], got ['a', 'b']"
    )


def test_what_the_source_raises_arrives_with_the_document():
    class Broken(Counted):
        def __getitem__(self, index):
            if index == 2:
                raise OSError("no such tape")
            return [1, 2, 3]

    packed = feeder.pack(Broken(range(4)), 3, lengths=[3] * 4)
    with feeder.DataLoader(packed, 4) as loader, pytest.raises(OSError, match="tape") as caught:
        next(iter(loader))
    assert caught.value.__notes__ == ["This was document 2 of the source that is packed."]
    with feeder.DataLoader(packed, 4, last_batch="keep", on_bad_record="skip") as loader:
        (batch,) = loader
    assert len(batch["tokens"]) == 3


def test_documents_are_listed_where_the_source_can():
    class Listed(Counted):
        asked = ()

        def __getitems__(self, indices):
            self.asked += (indices,)
            return [self.documents[index] for index in indices]

    source = Listed(documents_of([4, 9, 5]), [4, 9, 5])
    packed = feeder.pack(source, 10, strategy="split")
    packed.read(np.array([1, 0]))
    assert source.asked == ([0, 1, 2],)


def refused(error, message, source, length=8, **options):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        feeder.pack(source, length, **options)


def test_arguments_that_cannot_work_are_refused():
    docs = [[1, 2], [3]]
    stream = feeder.Stream(lambda shard, epoch, state: iter(docs))
    refused(ValueError, "`length` must be an integer of at least 1, got 0", docs, 0)
    refused(
        ValueError, "`strategy` must be 'best_fit' or 'split', got 'first'", docs, strategy="first"
    )
    refused(ValueError, "`window` must be an integer of at least 1, got 0", docs, window=0)
    refused(
        ValueError,
        '`window` must be left out with `strategy="split"`, got 4',
        docs,
        strategy="split",
        window=4,
    )
    refused(
        ValueError,
        '`too_long` must be "split" with `strategy="split"`, got \'drop\'',
        docs,
        strategy="split",
        too_long="drop",
    )
    refused(TypeError, "`pad` must be an integer, got 0.5", docs, pad=0.5)
    refused(
        TypeError, "`keys` must be the name of a leaf, or a list of names, got []", docs, keys=[]
    )
    refused(TypeError, "`keys` must be the name of a leaf, or a list of names, got 5", docs, keys=5)
    refused(ValueError, "`lengths` must not be negative, got -1 at 1", docs, lengths=[2, -1])
    refused(TypeError, "`lengths` must be integers, got float64", docs, lengths=[2.0, 1.0])
    refused(
        ValueError,
        "`lengths` must be one number for each of the 2 documents, got shape (1,)",
        docs,
        lengths=[2],
    )
    refused(
        ValueError,
        "`lengths` must be left out with a stream, whose documents are packed as they come, got "
        "[2, 1]",
        stream,
        lengths=[2, 1],
    )
    refused(ValueError, "`source` must hold at least one document, got none", [])
    refused(ValueError, "`source` must hold a token to pack, got 2 documents of none", [[], []])
    refused(
        TypeError,
        "`source` must have len() and [], or be a stream, got a FromCallable, which gives batches "
        "of its own",
        feeder.FromCallable(lambda rows: None),
    )
    tokens = [np.ones(3, np.uint8)]
    refused(ValueError, "`pad` must fit the documents' dtype, uint8, got -1", tokens, pad=-1)
    refused(
        ValueError,
        "`separator` must fit the documents' dtype, uint8, got 256",
        tokens,
        separator=256,
    )
    refused(
        ValueError,
        "`separator` must be left out where documents have several leaves, got 1 for ['a', 'b']; "
        "choose one with `keys`",
        [{"a": [1], "b": [2]}],
        separator=1,
    )


def test_documents_that_are_none_are_refused():
    refused(
        feeder.DocumentError, "'tokens' of document 1 must hold integers, got float64", [[1], [0.5]]
    )
    refused(
        feeder.DocumentError,
        "'tokens' of document 0 must have one axis, got shape (1, 2)",
        [[[1, 2]]],
    )
    refused(
        feeder.DocumentError,
        "'tokens' of document 0 must be an array or a list of integers, got str; tokenize texts "
        "before, and choose leaves with `keys`",
        ["once upon a time"],
    )
    refused(
        feeder.DocumentError,
        "'tokens' of document 0 must be an array or a list of integers, got int64; "
        "feeder.TokenWindows cuts windows from one long array",
        np.arange(100),
    )
    refused(
        feeder.DocumentError,
        "'tokens' of document 0 must be an array or a list of integers, got a list of other than "
        "numbers",
        [[1, [2]]],
    )
    refused(
        feeder.DocumentError,
        "document 0 must have leaves of one length, at least one, got {'a': 1, 'b': 2}",
        [{"a": [1], "b": [1, 2]}],
    )
    refused(
        feeder.DocumentError,
        "document 0 must have no leaf 'positions', which packed records gain; leave it out with "
        "`keys`",
        [{"tokens": [1], "positions": [0]}],
    )
    refused(
        feeder.DocumentError,
        "document 0 must be a dict where `keys` are given, got list",
        [[1]],
        keys="tokens",
    )


class Shard:
    """The documents of one shard; its state says how many were read."""

    def __init__(self, documents, at):
        self.documents, self.at = documents, at

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.documents):
            raise StopIteration
        self.at += 1
        return self.documents[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def stateful(documents):
    return feeder.Stream(lambda shard, epoch, state: Shard(documents, 0))


def stateless(documents):
    return feeder.Stream(lambda shard, epoch, state: iter(documents))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.integers(1, 24),
    st.sampled_from(["best_fit", "split"]),
    st.integers(1, 12),
    st.sampled_from([None, 7]),
    st.sampled_from(["split", "truncate", "drop"]),
    st.randoms(use_true_random=False),
)
def test_a_shard_is_packed_as_a_source_and_goes_on_from_any_state(
    sizes, length, strategy, window, separator, too_long, random
):
    documents = documents_of(sizes)
    options = {"strategy": strategy, "separator": separator}
    if strategy == "best_fit":
        options |= {"window": window, "too_long": too_long}
    stream = feeder.pack(stateful(documents), length, **options)
    records, states = [], []
    shard = stream.open(0, 0, None)
    for record in shard:
        records.append(as_bytes(record))
        states.append(json.dumps(shard.state_dict()))
    try:
        packed = feeder.pack(documents, length, **options)
    except ValueError:  # there is nothing to pack
        assert not records
    else:
        assert records == [as_bytes(packed[index]) for index in range(len(packed))]
    for number in random.sample(range(len(states)), min(3, len(states))):
        opened = stream.open(0, 0, json.loads(states[number]))
        assert json.dumps(opened.state_dict()) == states[number]
        assert [as_bytes(record) for record in opened] == records[number + 1 :]


def test_a_shard_without_a_state_is_packed_and_read_again():
    documents = documents_of([5, 3, 0, 9, 2, 4] * 5)
    stream = feeder.pack(stateless(documents), 8, window=7)
    assert not hasattr(stream.open(0, 0, None), "state_dict")
    expected = [as_bytes(batch) for batch in run(stream, 2, last_batch="keep")]
    packed = feeder.pack(documents, 8, window=7)
    assert expected == [as_bytes(batch) for batch in run(packed, 2, last_batch="keep")]
    with feeder.DataLoader(stream, 2, last_batch="keep") as loader:
        with iter(loader) as batches:
            for _ in range(3):
                next(batches)
            saved = batches.get_state()
        with iter(loader) as batches:
            batches.set_state(saved)
            with pytest.warns(RuntimeWarning, match=r"^6 records of the stream were read again"):
                assert [as_bytes(batch) for batch in batches] == expected[3:]


def test_a_state_of_a_packed_shard_holds_no_tokens():
    documents = documents_of([700] * 50)
    for strategy in ("best_fit", "split"):
        shard = feeder.pack(stateful(documents), 1024, strategy=strategy).open(0, 0, None)
        for _ in range(5):
            next(shard)
        assert len(json.dumps(shard.state_dict())) < 150


def test_a_state_of_other_packing_is_refused():
    saved = feeder.pack(stateful([[1, 2]]), 4).open(0, 0, None).state_dict()
    with pytest.raises(feeder.StateError) as caught:
        feeder.pack(stateful([[1, 2]]), 4, window=5).open(0, 0, saved)
    assert str(caught.value) == (
        "`state` must be of a stream that was packed alike, got one with window=1024; pack it so, "
        "or start anew without the state"
    )
    assert caught.value.mismatches == {"window": (1024, 5)}


def test_a_bad_document_of_a_stream_is_named_with_its_shard():
    def error_of(documents, **options):
        stream = feeder.pack(stateless(documents), 8, **options)
        with feeder.DataLoader(stream, 1) as loader, pytest.raises(feeder.DocumentError) as caught:
            list(loader)
        assert caught.value.shard == 0
        return str(caught.value)

    assert error_of([[], [1, 2], [0.5]]) == (
        "'tokens' of document 2 of shard 0 must hold integers, got float64"
    )
    assert error_of([[1], [], list(range(9))], too_long="raise").startswith(
        "document 2 of shard 0 must have at most `length` = 8 tokens, got 9"
    )
    assert run(feeder.pack(stateless([[], []]), 8), 1) == []


def test_a_shard_whose_documents_changed_is_found_out():
    state = feeder.pack(stateful(documents_of([9, 9])), 4, strategy="split").open(0, 0, None)
    next(state), next(state)
    saved = state.state_dict()
    other = feeder.pack(stateful(documents_of([7, 9])), 4, strategy="split").open(0, 0, saved)
    with pytest.raises(feeder.DocumentError, match=r"^document 0 of shard 0 must be"):
        next(other)


def test_workers_import_no_loader_to_pack():
    def modules(_record):
        import sys

        return {"loader": "feeder.loader" in sys.modules, "jax": "jax" in sys.modules}

    packed = feeder.pack(documents_of([5, 6]), 8)
    (batch,) = run(packed, 2, num_workers=1, transforms=[modules])
    assert not batch["loader"].any()
    assert not batch["jax"].any()


def test_documents_packed_in_another_way_are_another_source():
    documents = [np.arange(1 + number % 37) for number in range(500)]
    made = [
        feeder.pack(documents, 64),
        feeder.pack(documents, 64, seed=1),
        feeder.pack(documents, 64, window=50),
        feeder.pack(documents, 64, strategy="split"),
        feeder.pack(documents[1:] + documents[:1], 64),
        feeder.pack(documents, 65),
    ]
    assert len({packed.fingerprint for packed in made}) == len(made)
    assert feeder.pack(documents, 64).fingerprint == made[0].fingerprint
