"""`feeder.TokenWindows`: windows over tokens wherever they lie, each with its bytes, in order."""

import itertools
import os
import pickle
import re
import signal

import cloudpickle
import numpy as np
import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from tests.support import kill_one

TOKENS = np.arange(500, dtype=np.uint16)


def expected(parts, length, stride):
    return [
        part[first : first + length].tolist()
        for part in parts
        for first in range(0, len(part) - length + 1, stride)
    ]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
    st.integers(1, 25),
    st.integers(1, 30),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_window_holds_its_tokens_in_any_order_of_access(
    sizes, length, stride, across, random
):
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(ends)]
    wanted = expected([np.arange(ends[-1])] if across else parts, length, stride)
    if not wanted:
        with pytest.raises(ValueError, match=r"^`length` must be at most the number of tokens, "):
            feeder.TokenWindows(parts, length, stride=stride, across_files=across)
        return
    windows = feeder.TokenWindows(parts, length, stride=stride, across_files=across)
    indices = random.choices(range(len(wanted)), k=12)
    assert len(windows) == len(wanted)
    assert windows.read(np.array(indices)).tolist() == [wanted[index] for index in indices]
    assert [windows[index].tolist() for index in indices] == [wanted[index] for index in indices]
    out = np.empty((12, length), np.int32)
    windows.read_into(np.array(indices), [out])
    assert out.tolist() == [wanted[index] for index in indices]
    assert windows.read(np.array([], np.int64)).shape == (0, length)


class Listed:
    """Tokens of an object that reads the ones at some indices."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]

    def read(self, indices):
        return self.tokens[indices]


def in_memory(folder):
    return TOKENS, {}


def every_other(folder):
    return np.repeat(TOKENS, 2)[::2], {}


def raw_file(folder):
    TOKENS.tofile(folder / "tokens.bin")
    return str(folder / "tokens.bin"), {"dtype": "uint16"}


def npy_file(folder):
    np.save(folder / "tokens.npy", TOKENS)
    return folder / "tokens.npy", {}


def memmap(folder):
    """A slice, whose `offset` says nothing of where it begins."""
    np.concatenate([np.zeros(3000, np.uint16), TOKENS]).tofile(folder / "tokens.bin")
    return np.memmap(folder / "tokens.bin", np.uint16, "r", offset=2)[2999:], {}


def memmap_as_array(folder):
    return np.asarray(memmap(folder)[0]), {}


def read_object(folder):
    return Listed(TOKENS), {}


def sliced_object(folder):
    return memoryview(TOKENS), {}


def zarr(folder):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "tokens")}}
    store = tensorstore.open(spec, create=True, dtype=np.uint16, shape=[500]).result()
    store[...] = TOKENS
    return store, {}


@pytest.mark.parametrize(
    "make",
    [
        in_memory,
        every_other,
        raw_file,
        npy_file,
        memmap,
        memmap_as_array,
        read_object,
        sliced_object,
        zarr,
    ],
)
def test_tokens_are_the_same_wherever_they_lie(make, tmp_path):
    tokens, options = make(tmp_path)
    windows = feeder.TokenWindows(tokens, 16, **options)
    indices = np.array([30, 0, 7, 7])
    got = windows.read(indices)
    assert got.dtype == np.uint16
    assert got.tolist() == TOKENS[: 31 * 16].reshape(31, 16)[indices].tolist()
    if make in (memmap, memmap_as_array, raw_file, npy_file, in_memory):
        again = pickle.loads(cloudpickle.dumps(windows))
        assert again.read(indices).tolist() == got.tolist()


@pytest.mark.parametrize("make", [raw_file, npy_file, memmap, memmap_as_array])
def test_a_file_reaches_workers_by_its_name_from_any_folder(make, tmp_path, monkeypatch):
    tokens, options = make(tmp_path)
    if isinstance(tokens, str):
        monkeypatch.chdir(tmp_path)
        tokens = os.path.basename(tokens)
    windows = feeder.TokenWindows(tokens, 100, **options)
    monkeypatch.chdir("/")
    pickled = pickle.dumps(windows)
    assert len(pickled) < TOKENS.nbytes
    assert pickle.loads(pickled)[4].tolist() == TOKENS[400:].tolist()


def test_what_a_private_memmap_holds_in_memory_alone_is_copied(tmp_path):
    TOKENS.tofile(tmp_path / "tokens.bin")
    private = np.memmap(tmp_path / "tokens.bin", np.uint16, "c")
    private[0] = 77
    windows = pickle.loads(pickle.dumps(feeder.TokenWindows(private, 10)))
    assert windows[0].tolist() == [77, *range(1, 10)]


def test_a_record_may_be_changed_and_the_tokens_stay_as_they_are():
    tokens = TOKENS.copy()
    windows = feeder.TokenWindows(tokens, 10)
    windows[0][:] = 0
    windows.read(np.array([1]))[:] = 0
    assert (tokens == TOKENS).all()


def test_windows_are_counted_from_the_end_and_iterated_as_in_a_list():
    windows = feeder.TokenWindows(TOKENS, 100)
    assert windows[-1].tolist() == windows[4].tolist()
    assert len(list(windows)) == 5
    with pytest.raises(IndexError, match=r"^window 5 is out of range: there are 5$"):
        windows[5]
    with pytest.raises(IndexError, match=r"^windows must be in range\(5\), got \[ 0 -1\]$"):
        windows.read(np.array([0, -1]))
    assert repr(windows) == "TokenWindows(5 windows of 100 tokens, stride=100, 1 arrays)"


def test_a_separator_makes_segments_and_positions():
    tokens = np.array([5, 6, 0, 7, 0, 0, 8, 9, 1, 2, 3, 0, 4, 4, 4, 0], np.uint16)
    windows = feeder.TokenWindows(tokens, 8, separator=0)
    batch = windows.read(np.array([0, 1]))
    assert batch["tokens"].tolist() == tokens.reshape(2, 8).tolist()
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 3, 4, 4], [1, 1, 1, 1, 2, 2, 2, 2]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch["segment_ids"].dtype == batch["positions"].dtype == np.int32
    with feeder.DataLoader(windows, 2) as loader:
        (loaded,) = loader
    assert {name: leaf.tolist() for name, leaf in loaded.items()} == {
        name: leaf.tolist() for name, leaf in batch.items()
    }
    assert windows[1]["positions"].tolist() == batch["positions"][1].tolist()


def test_a_file_that_was_cut_is_named_and_its_window_raises(tmp_path):
    TOKENS.tofile(tmp_path / "tokens.bin")
    windows = feeder.TokenWindows(tmp_path / "tokens.bin", 10, dtype=np.uint16)
    TOKENS[:20].tofile(tmp_path / "tokens.bin")
    with (
        feeder.DataLoader(windows, 5) as loader,
        pytest.raises(feeder.SourceError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value) == (
        f"{tmp_path}/tokens.bin must have the 1,000 bytes that it had when `tokens` was opened, "
        "got 40; was it cut, or written again? Make the source anew"
    )
    assert isinstance(caught.value.__cause__, feeder.RecordError)
    assert (caught.value.path, caught.value.index) == (f"{tmp_path}/tokens.bin", 0)


def test_killed_workers_change_no_window_of_a_memmap(tmp_path):
    tokens, _ = memmap(tmp_path)
    windows = feeder.TokenWindows(tokens, 10)
    with feeder.DataLoader(windows, 5, shuffle=True) as loader:
        wanted = [batch.tolist() for batch in loader]
    got = []
    with feeder.DataLoader(windows, 5, shuffle=True, num_workers=1) as loader:
        with iter(loader) as batches:
            for batch in batches:
                got.append(batch.tolist())
                if len(got) == 2:
                    kill_one(batches, signal.SIGKILL)
    assert got == wanted


def refused(error, message, tokens, length=10, **options):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        feeder.TokenWindows(tokens, length, **options)


def test_arguments_that_cannot_work_are_refused(tmp_path):
    refused(ValueError, "`length` must be an integer of at least 1, got 0", TOKENS, 0)
    refused(TypeError, "`length` must be an integer of at least 1, got 2.0", TOKENS, 2.0)
    refused(ValueError, "`stride` must be an integer of at least 1, got 0", TOKENS, stride=0)
    refused(ValueError, "`length` must be at most the number of tokens, 500, got 501", TOKENS, 501)
    refused(TypeError, "`tokens` must hold integers, got float64", np.zeros(100))
    refused(TypeError, "`tokens[1]` must hold integers, got bool", [TOKENS, TOKENS > 5])
    refused(
        ValueError,
        "`tokens` must have one axis, got 2; the rows of an array of two are records already: give "
        "it to the loader as it is",
        np.zeros((5, 5), int),
    )
    refused(ValueError, "`tokens` must name at least one array or file, got none", [])
    refused(
        TypeError,
        "`tokens` must be an array, the name of a file, or a list of those, got a list of numbers; "
        "use numpy.asarray",
        [1, 2, 3],
    )
    refused(
        TypeError,
        "`tokens` must be an array, the name of a file, or an object with len() and slices, got "
        "generator",
        (token for token in range(5)),
    )
    refused(
        TypeError,
        "`tokens` must be an array, the name of a file, or an object with len() and slices, got "
        "dict",
        {"tokens": TOKENS},
    )
    refused(
        TypeError,
        "`tokens` must be of one dtype, got uint16 and int64, of `tokens[1]`",
        [TOKENS, np.arange(50)],
    )
    refused(
        TypeError,
        "`dtype` must be that of `tokens`, uint16, got int32; leave it out",
        TOKENS,
        dtype=np.int32,
    )


def test_files_that_hold_no_tokens_are_refused(tmp_path):
    raw, npy = tmp_path / "tokens.bin", tmp_path / "tokens.npy"
    raw.write_bytes(b"123")
    refused(
        TypeError,
        f"`dtype` must be given for a file without a header, such as {raw}: "
        'dtype="uint16", perhaps',
        raw,
    )
    refused(
        ValueError,
        f"`tokens` must be a file of whole tokens of 2 bytes, got {raw}, whose size leaves 1; is "
        "`dtype` right, and the file complete?",
        raw,
        dtype=np.uint16,
    )
    np.save(npy, np.zeros((3, 3), np.int32))
    refused(
        ValueError,
        f"`tokens`, {npy}, must have one axis, got 2; the rows of an array of two are records "
        "already: give it to the loader as it is",
        npy,
    )
    np.save(npy, np.zeros(30, np.float32))
    refused(TypeError, f"`tokens`, {npy}, must hold integers, got float32", npy)
    np.save(npy, TOKENS)
    refused(
        TypeError,
        f"`dtype` must be that of {npy}, uint16, got int64; leave it out",
        npy,
        dtype=np.int64,
    )
    npy.write_bytes(npy.read_bytes()[:-5])
    with pytest.raises(ValueError, match=rf"^`tokens` must be a .npy file of tokens, got {npy}: "):
        feeder.TokenWindows(npy, 10)
    none = tmp_path / "none.npy"
    refused(ValueError, f"`tokens` must name a file that is there, got {str(none)!r}", none)
    (tmp_path / "empty").mkdir()
    empty = str(tmp_path / "empty")
    refused(ValueError, f"`tokens` must name files, got {empty!r}, without any *", empty)


def test_an_empty_file_among_others_holds_no_window(tmp_path):
    np.save(tmp_path / "none.npy", TOKENS[:0])
    (tmp_path / "none.bin").touch()
    parts = [tmp_path / "none.npy", TOKENS, tmp_path / "none.bin"]
    windows = feeder.TokenWindows(parts, 100, dtype=np.uint16)
    assert [window[0] for window in windows] == [0, 100, 200, 300, 400]


def test_an_object_that_gives_other_than_its_tokens_is_refused():
    wide = feeder.TokenWindows(Listed(np.zeros((50, 2), int)), 10)
    with pytest.raises(
        ValueError, match=r"^`tokens` must give one token for each index, got shape \(10, 2\) for "
    ):
        wide[0]
    floats = feeder.TokenWindows(Listed(np.zeros(50)), 10)
    with pytest.raises(TypeError, match=r"^`tokens` must hold integers, got float64$"):
        floats[0]
    mixed = feeder.TokenWindows([Listed(TOKENS), Listed(np.arange(50))], 10)
    with pytest.raises(TypeError, match=r"^`tokens` must be of one dtype, got uint16 and int64$"):
        mixed.read(np.array([0, 51]))


def test_a_separator_that_no_token_can_be_is_refused_and_a_pattern_names_files(tmp_path):
    message = "`separator` must fit the tokens' dtype, uint16, got 70000"
    with pytest.raises(ValueError, match=f"^{message}$"):
        feeder.TokenWindows(np.zeros(20, np.uint16), 4, separator=70_000)
    for part in range(3):
        np.save(tmp_path / f"p{part}.npy", np.arange(part * 10, part * 10 + 10, dtype=np.uint16))
    for place in (tmp_path / "p*.npy", tmp_path):
        assert len(feeder.TokenWindows(place, 5)) == 6
    with pytest.raises(ValueError, match=r"^`tokens` must match at least one file, got '.*q\*'$"):
        feeder.TokenWindows(tmp_path / "q*", 5)
