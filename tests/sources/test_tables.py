"""Parquet, Arrow, Hugging Face: what columns become; bad files and values."""

import datetime
import decimal
import io
import os
import re
import warnings

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import feeder
from feeder.produce import payload, unpacking
from feeder.sources import Arrow, HuggingFace, Parquet, as_source
from tests.support import run


def says(kind, message):
    return pytest.raises(kind, match=f"^{re.escape(message)}$")


def begins(kind, message):
    return pytest.raises(kind, match=f"^{re.escape(message)}")


def again(source):
    """The source as a worker gets it."""
    fd, _ = payload.pack(source)
    try:
        return unpacking.unpack(fd)
    finally:
        os.close(fd)


def write(path, table, rows=4):
    pyarrow.parquet.write_table(pa.table(table), path, row_group_size=rows)
    return path


# What columns become.

DAYS = [datetime.date(2020, 1, 1 + day) for day in range(10)]
FIXED = {  # a type, the values of ten rows, and the array that they become
    "int16": (pa.int16(), list(range(10)), np.arange(10, dtype=np.int16)),
    "float16": (pa.float16(), list(np.arange(10, dtype=np.float16)), np.arange(10, dtype="e")),
    "bool": (pa.bool_(), [True, False] * 5, np.array([True, False] * 5)),
    "date": (pa.date32(), DAYS, np.array(DAYS, "M8[D]")),
    "time stamp": (
        pa.timestamp("ms", "UTC"),
        [datetime.datetime(2020, 1, 1, hour) for hour in range(10)],
        np.array([f"2020-01-01T{hour:02}" for hour in range(10)], "M8[ms]"),
    ),
    "duration": (pa.duration("s"), list(range(10)), np.arange(10).astype("m8[s]")),
    "fixed list": (
        pa.list_(pa.float32(), 2),
        [[row, -row] for row in range(10)],
        np.array([[row, -row] for row in range(10)], np.float32),
    ),
    "fixed lists in lists": (
        pa.list_(pa.list_(pa.int8(), 3), 2),
        [[[row] * 3, [0] * 3] for row in range(10)],
        np.array([[[row] * 3, [0] * 3] for row in range(10)], np.int8),
    ),
    "text": (pa.string(), [f"é{row}" for row in range(10)], None),
    "large text": (pa.large_string(), [f"é{row}" for row in range(10)], None),
    "text view": (pa.string_view(), [f"é{row}" for row in range(10)], None),
    "category": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"] * 5, None),
    "bytes": (pa.binary(), [b"x" * row for row in range(10)], None),
    "fixed bytes": (pa.binary(2), [b"ab"] * 10, None),
    "decimal": (pa.decimal128(4, 2), [decimal.Decimal(f"{row}.25") for row in range(10)], None),
    "time": (pa.time32("s"), [datetime.time(hour) for hour in range(10)], None),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_column_becomes_what_its_type_says(name, tmp_path):
    kind, values, expected = FIXED[name]
    expected = np.array(values, object) if expected is None else expected
    table = pa.table({"x": pa.array(values, kind)})
    pyarrow.feather.write_feather(table, tmp_path / "x.arrow", "uncompressed", chunksize=4)
    pyarrow.feather.write_feather(table, tmp_path / "z.arrow", "zstd", chunksize=4)
    indices = np.array([9, 0, 5, 5, 2])
    for source in (
        Parquet(write(tmp_path / "x.parquet", table)),
        Arrow(tmp_path / "x.arrow"),
        Arrow(tmp_path / "z.arrow"),
    ):
        batch = again(source).read(indices)["x"]
        assert batch.dtype == expected.dtype
        assert np.array_equal(batch, expected[indices])
        assert np.array_equal(source[-1]["x"], expected[9])
        batch[:] = batch[0]  # it is the caller's own
        assert np.array_equal(source.read(indices)["x"], expected[indices])


def test_structs_are_dicts_and_tensors_have_their_shape(tmp_path):
    storage = pa.array([list(range(row, row + 6)) for row in range(5)], pa.list_(pa.int64(), 6))
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), (2, 3)), storage)
    struct = pa.array([{"a": row, "b": {"c": f"{row}"}} for row in range(5)])
    source = Parquet(write(tmp_path / "x.parquet", {"t": tensor, "s": struct}, 2))
    batch = source.read(np.array([4, 1]))
    assert batch["t"].tolist() == [[[4, 5, 6], [7, 8, 9]], [[1, 2, 3], [4, 5, 6]]]
    assert batch["s"]["a"].tolist() == [4, 1]
    assert batch["s"]["b"]["c"].tolist() == ["4", "1"]
    assert source[0]["s"]["b"] == {"c": "0"}


BOXES = pa.list_(pa.list_(pa.float64(), 2))


def test_lists_of_any_length_are_arrays_of_each_record(tmp_path):
    table = {
        "tokens": pa.array([[1, 2], [], [3], [4, 5, 6], [7]], pa.list_(pa.int32())),
        "boxes": pa.array([[[1.0, 2.0]], [], [], [[3.0, 4.0]] * 2, []], BOXES),
        "words": [["a"], ["b", "c"], [], [], []],
        "pairs": pa.array([[("k", 1)], [], [], [], []], pa.map_(pa.string(), pa.int8())),
        "deep": [[[1], [2, 3]], [], [], [], []],
    }
    source = again(Parquet(write(tmp_path / "x.parquet", table, 3)))
    assert not hasattr(source, "read")
    first, fourth = source.__getitems__([0, 3])
    assert fourth["tokens"].dtype == np.int32
    assert fourth["tokens"].tolist() == [4, 5, 6]
    assert fourth["boxes"].shape == (2, 2)
    assert first["words"].tolist() == ["a"]
    assert first["pairs"]["key"].tolist() == ["k"]
    assert first["pairs"]["value"].dtype == np.int8
    assert [part.tolist() for part in first["deep"]] == [[1], [2, 3]]
    tokens = Parquet(tmp_path / "x.parquet", columns=["tokens"])
    with pytest.raises(feeder.RecordMismatchError, match=r"record 1 and .* in record 0"):
        run(tokens, 5)

    def padded(record):
        return {"tokens": np.resize(record["tokens"], 3) if len(record["tokens"]) else np.zeros(3)}

    def as_int(record):
        return {"tokens": padded(record)["tokens"].astype(np.int32)}

    (batch,) = run(tokens, 5, transforms=[as_int])
    assert batch["tokens"].shape == (5, 3)


def test_types_that_numpy_has_not_are_refused(tmp_path):
    table = pa.table({"x": [1], "d": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    pyarrow.feather.write_feather(table, tmp_path / "x.arrow")
    message = (
        "`columns` must be of types that NumPy has, got month_day_nano_interval of 'd'; name the "
        "others by `columns`"
    )
    with says(TypeError, message):
        Arrow(tmp_path / "x.arrow")
    assert Arrow(tmp_path / "x.arrow", columns=["x"])[0] == {"x": 1}


# Nulls.

NULLS = {
    "i": pa.array([1, None, 3], pa.int16()),
    "t": pa.array(["a", None, "c"]),
    "b": pa.array([True, None, False]),
    "f": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
    "l": pa.array([[1], None, [2, None]], pa.list_(pa.int64())),
    "s": pa.array([{"p": 1}, None, {"p": None}]),
    "d": pa.array([datetime.date(2020, 1, 1), None, None]),
    "n": pa.nulls(3, pa.int8()),
}


def leaf(record, name):
    for part in name.split("."):
        record = record[part]
    return record


@pytest.mark.parametrize(
    ("name", "bad"), [*((name, [1, 2]) for name in "flsd"), *((name, [1]) for name in "itb")]
)
def test_a_null_is_an_error_that_names_column_and_record(name, bad, tmp_path):
    path = write(tmp_path / "x.parquet", {name: NULLS[name]})
    column = "s.p" if name == "s" else name
    source = Parquet(path)
    for index in range(3):
        if index not in bad:
            leaf(source[index], column)
            continue
        message = (
            f"record {index} must have a value in column {column!r}, got a null in {path}; give "
            f"`fill_nulls={{{column!r}: value}}`, leave the column out by `columns`, or set "
            "`on_bad_record`"
        )
        with says(feeder.SourceError, message):
            source[index]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("i", 7, [1, 7, 3]),
        ("t", "z", ["a", "z", "c"]),
        ("b", True, [True, True, False]),
        ("f", 9, [[1, 2], [9, 9], [3, 9]]),
        ("l", 8, [[1], [], [2, 8]]),
        ("s.p", 5, [1, 5, 5]),
        ("n", 4, [4, 4, 4]),
    ],
)
def test_nulls_are_filled_where_a_value_is_given(name, value, expected, tmp_path):
    column = name.split(".")[0]
    path = write(tmp_path / "x.parquet", {column: NULLS[column]})
    source = again(Parquet(path, fill_nulls={name: value}))
    found = [leaf(source[index], name) for index in range(3)]
    assert [value.tolist() if hasattr(value, "tolist") else value for value in found] == expected
    assert getattr(found[0], "dtype", None) == getattr(found[1], "dtype", None)


def test_values_for_nulls_are_checked(tmp_path):
    path = write(tmp_path / "x.parquet", {"i": NULLS["i"]})
    with says(ValueError, "`fill_nulls` must name columns that are read, got 'j'"):
        Parquet(path, fill_nulls={"j": 1})
    with says(TypeError, "`fill_nulls['i']` must be a value of the type int16, got 'x'"):
        Parquet(path, fill_nulls={"i": "x"})


# Files and row groups.


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    rows=st.integers(1, 5),
    cache_bytes=st.sampled_from([0, 100, 10_000]),
    columns=st.sampled_from([["x"], ["x", "t"]]),
    data=st.data(),
)
def test_rows_come_as_asked_whatever_the_files_and_row_groups(
    tmp_path_factory, lengths, rows, cache_bytes, columns, data
):
    folder, first = tmp_path_factory.mktemp("files"), 0
    for number, length in enumerate(lengths):
        x = np.arange(first, first + length)
        texts = pa.array([f"{value}" for value in x], pa.string())
        write(folder / f"{number}.parquet", {"x": x, "t": texts}, rows)
        first += length
    source = Parquet(folder, cache_bytes=cache_bytes, columns=columns)
    assert len(source) == first
    if first:
        indices = data.draw(st.lists(st.integers(-first, first - 1), min_size=1, max_size=20))
        expected = np.arange(first)[indices]
        batch = source.read(np.array(indices))
        assert np.array_equal(batch["x"], expected)
        if "t" in columns:
            assert batch["t"].tolist() == [f"{value}" for value in expected]


def test_a_row_group_is_decoded_once_for_a_chunk_and_while_it_is_kept(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", {"x": np.arange(40), "y": np.arange(40)}, 10)
    decoded = []
    read = pyarrow.parquet.ParquetFile.read_row_group

    def spy(self, group, columns):
        decoded.append((group, columns))
        return read(self, group, columns=columns)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", spy)
    source = Parquet(path, columns=["x"])
    source.read(np.array([35, 1, 33, 2, 31]))
    source.read(np.array([30, 0]))
    assert decoded == [(0, ["x"]), (3, ["x"])]
    one_by_one = Parquet(path, columns=["x"], cache_bytes=0)
    one_by_one.read(np.array([35, 1, 33, 2, 31]))
    assert decoded[2:] == [(0, ["x"]), (3, ["x"])]
    one_by_one.read(np.array([30]))  # the last one is kept, however large
    one_by_one.read(np.array([0]))
    assert decoded[4:] == [(0, ["x"])]


def test_arrow_files_are_read_where_they_are_mapped(tmp_path):
    table = pa.table({"x": np.arange(100_000), "y": np.zeros(100_000)})
    pyarrow.feather.write_feather(table, tmp_path / "x.arrow", "uncompressed", chunksize=1000)
    source = Arrow(tmp_path / "x.arrow", columns=["x"])
    before = pa.total_allocated_bytes()
    assert source.read(np.arange(0, 100_000, 500))["x"].tolist() == list(range(0, 100_000, 500))
    assert pa.total_allocated_bytes() - before < 1000


def test_table_files_that_are_no_good_are_named(tmp_path):
    table = pa.table({"x": np.arange(1000)})
    good = write(tmp_path / "good.parquet", table, 100)
    pyarrow.feather.write_feather(table, tmp_path / "good.arrow")
    for kind, name in ((Parquet, "good.parquet"), (Arrow, "good.arrow")):
        data = (tmp_path / name).read_bytes()
        for content in (data[: len(data) // 2], b"", b"x" * 9999):
            path = tmp_path / "bad"
            path.write_bytes(content)
            with begins(ValueError, f"{path} cannot be read, got ArrowInvalid: "):
                kind([tmp_path / name, path])
    other = write(tmp_path / "other.parquet", {"x": [0.5]})
    message = (
        f"column 'x' must have the same type in every file, got double in {other} and int64 in "
        f"{good}"
    )
    with says(ValueError, message):
        Parquet([good, other])
    message = f"`columns` must name columns of every file, got 'y'; there are 'x' in {good}"
    with says(ValueError, message):
        Parquet(good, columns=["y"])
    with says(ValueError, "`columns` must name at least one column, got none"):
        Parquet(good, columns=[])
    with says(TypeError, "`columns` must be a list of names, got 'x'"):
        Parquet(good, columns="x")
    with says(ValueError, "`cache_bytes` must be an integer of at least 0, got -1"):
        Parquet(good, cache_bytes=-1)


def test_a_damaged_row_group_is_named_and_its_records_are_left_out(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"x": np.random.default_rng(0).random(400)})
    pyarrow.parquet.write_table(
        table, path, row_group_size=100, compression="gzip", use_dictionary=False
    )
    chunk = pyarrow.parquet.read_metadata(path).row_group(2).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 300] = b"\xa5" * 300
    path.write_bytes(data)
    source = Parquet(path)
    message = f"record 230 cannot be read from row group 2 of {path}, got OSError: "
    with begins(feeder.SourceError, message):
        source.read(np.array([5, 230, 210]))
    with feeder.DataLoader(source, 8, shuffle=True, on_bad_record="skip") as loader:
        kept = np.concatenate([batch["x"] for batch in loader])
    expected = np.delete(table["x"].to_numpy(), np.s_[200:300])
    assert np.array_equal(np.sort(kept), np.sort(expected))


def test_a_table_that_was_written_anew_is_refused(tmp_path):
    path = write(tmp_path / "x.parquet", {"x": np.arange(10)}, 5)
    source = Parquet(path)
    write(path, {"x": np.arange(8)}, 4)
    message = (
        f"record 7 cannot be read from row group 1 of {path}, got ValueError: {path} must stay as "
        "it is while it is read, got 4 records where there were 5; "
    )
    with begins(feeder.SourceError, message):
        source[7]


# Hugging Face.


def examples(count=20):
    features = datasets.Features(
        {
            "id": datasets.Value("int32"),
            "x": datasets.Array2D((2, 3), "float32"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "text": datasets.Value("string"),
        }
    )
    return datasets.Dataset.from_dict(
        {
            "id": range(count),
            "x": [np.full((2, 3), row) for row in range(count)],
            "label": [row % 2 for row in range(count)],
            "text": [f"é{row}" for row in range(count)],
        },
        features=features,
    )


def test_examples_keep_their_types(tmp_path):
    dataset = examples()
    dataset.save_to_disk(tmp_path / "saved")
    for source in (dataset, datasets.load_from_disk(tmp_path / "saved")):
        (batch,) = run(source, 20)
        assert {name: (leaf.dtype, leaf.shape) for name, leaf in batch.items()} == {
            "id": (np.int32, (20,)),
            "x": (np.float32, (20, 2, 3)),
            "label": (np.int64, (20,)),
            "text": (object, (20,)),
        }
        assert batch["x"][:, 1, 2].tolist() == batch["id"].tolist() == list(range(20))
        assert batch["text"][-1] == "é19"


def test_a_data_set_is_read_as_it_was_arranged():
    dataset = examples().shuffle(seed=1).select(range(3, 10)).with_format("numpy", columns=["id"])
    assert again(as_source(dataset)).read(np.arange(7)) == {
        "id": pytest.approx(dataset.with_format(None)["id"][:])
    }
    some = HuggingFace(dataset.with_format(None), columns=["text", "id"])
    assert sorted(some[0]) == ["id", "text"]
    doubled = dataset.with_transform(lambda batch: {"twice": [2 * i for i in batch["id"]]})
    (batch,) = run(doubled, 7)
    assert batch["twice"].tolist() == [2 * i for i in dataset.with_format(None)["id"]]


def test_images_are_decoded_one_by_one():
    images = [Image.fromarray(np.full((2, 3 + row % 2, 3), row, np.uint8)) for row in range(6)]
    features = datasets.Features({"image": datasets.Image(), "id": datasets.Value("int8")})
    dataset = datasets.Dataset.from_dict({"image": images, "id": range(6)}, features=features)
    source = as_source(dataset)
    assert [record["image"].shape for record in source.__getitems__([0, 1])] == [
        (2, 3, 3),
        (2, 4, 3),
    ]

    def cropped(record):
        return {**record, "image": record["image"][:, :3]}

    (batch,) = run(dataset, 6, transforms=[cropped])
    assert batch["image"].shape == (6, 2, 3, 3)
    assert batch["image"][:, 0, 0, 0].tolist() == batch["id"].tolist() == list(range(6))
    (batch,) = run(HuggingFace(dataset, columns=["image"]), 6, transforms=[cropped])
    assert batch["image"].dtype == np.uint8


def test_an_image_that_cannot_be_decoded_is_named():
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG")
    files = [{"bytes": file.getvalue() if row != 3 else b"no image"} for row in range(5)]
    features = datasets.Features({"image": datasets.Image()})
    source = as_source(datasets.Dataset.from_dict({"image": files}, features=features))
    with begins(
        feeder.SourceError, "record 3 cannot be read from the data set, got UnidentifiedImageError"
    ):
        source.__getitems__([1, 4, 3])
    assert source[4]["image"].shape == (2, 2, 3)


def test_data_sets_that_cannot_be_read_are_refused():
    dataset = datasets.Dataset.from_dict({"x": [1, None, 3]})
    message = (
        "record 1 must have a value in column 'x', got a null in the data set; give "
        "`fill_nulls={'x': value}`, leave the column out by `columns`, or set `on_bad_record`"
    )
    with says(feeder.SourceError, message):
        HuggingFace(dataset).read(np.arange(3))
    assert HuggingFace(dataset, fill_nulls={"x": 2})[1] == {"x": 2}
    message = (
        "`dataset` must be a datasets.Dataset or a datasets.IterableDataset, one of ['train'], got "
        "a DatasetDict"
    )
    with says(TypeError, message):
        HuggingFace(datasets.DatasetDict(train=dataset))
    with says(ValueError, "`columns` must name columns of the data set, got 'y'; it has ['x']"):
        HuggingFace(dataset, columns=["y"])
    with begins(ValueError, "`columns` and `fill_nulls` must be None for a data set with a "):
        HuggingFace(dataset.with_transform(dict), columns=["x"])


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_of_examples_has_its_shards_and_resumes(shuffled):
    dataset = examples(40).select_columns(["id"]).to_iterable_dataset(num_shards=4)
    if shuffled:
        dataset = dataset.shuffle(seed=0, buffer_size=5)
    assert HuggingFace(dataset).num_shards == 4
    with feeder.DataLoader(dataset, 6, num_epochs=2, last_batch="keep") as loader:
        expected = [batch["id"].tolist() for batch in loader]
        assert [sorted(sum(half, [])) for half in (expected[:7], expected[7:])] == [
            list(range(40))
        ] * 2
        with iter(loader) as batches:
            for _ in range(9):
                next(batches)
            saved = batches.get_state()
        with warnings.catch_warnings(record=True) as caught, iter(loader) as batches:
            warnings.simplefilter("always")
            batches.set_state(saved)
            assert [batch["id"].tolist() for batch in batches] == expected[9:]
    # A buffer that examples are shuffled in is in no state: they are read again.
    assert ["read again" in str(warning.message) for warning in caught] == [True] * shuffled
