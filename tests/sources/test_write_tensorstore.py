"""Converting a source: what was written is what was read, or there is nothing at all."""

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorstore as ts
import tqdm.auto

import feeder
from feeder.sources import TensorStore, write_tensorstore
from feeder.testing import assert_same_batches
from tests.support import noisy, rows, run


class Broken:
    """Records of a source that ends early, or changes, and tells what it sees on its way."""

    def __init__(self, change=None, look=lambda: None):
        self.change, self.look = change, look

    def __len__(self):
        return 40

    def __getitem__(self, index):
        record = {"x": np.full(2, index, np.int32)}
        if index == 30:
            self.look()
            return self.change(record)
        return record


def boom(_record):
    raise RuntimeError("the disk is on fire")


class Record(NamedTuple):
    image: Any
    label: Any


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_record_comes_back_as_it_was(num_workers, tmp_path):
    source = {"more": (rows(50)["image"], {"id": np.arange(50)}), "flag": np.arange(50) % 2 == 0}
    returned = write_tensorstore(
        source, tmp_path / "data", num_workers=num_workers, chunk_records=8
    )
    expected = run(source, 10, shuffle=True)
    for data in (returned, TensorStore(tmp_path / "data"), TensorStore(f"file://{tmp_path}/data")):
        assert_same_batches(run(data, 10, shuffle=True), expected)
    assert sorted(os.listdir(tmp_path)) == ["data"]
    assert returned.chunk_records == 8
    ids = TensorStore(tmp_path / "data" / "more.1.id")
    assert ids.chunk_records == 50  # smaller leaves have larger chunks
    assert ids[7] == 7


def test_transforms_are_applied_as_a_loader_does(tmp_path):
    transforms = [feeder.RandomMap(noisy)]
    with feeder.DataLoader(rows(20), 20, transforms=transforms) as loader:
        (expected,) = loader
    source = write_tensorstore(rows(20), tmp_path / "data", transforms=transforms)
    np.testing.assert_array_equal(source.read(range(20))["image"], expected["image"])


def test_each_leaf_may_have_a_spec_of_its_own(tmp_path):
    source = Record(np.arange(40 * 12, dtype=np.uint8).reshape(40, 4, 3), np.arange(40))
    sharded = {
        "driver": "zarr3",
        "kvstore": f"file://{tmp_path}/image/",
        "metadata": {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 16, 3]}},
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [4, 2, 3],
                        "codecs": [{"name": "bytes"}, {"name": "zstd"}, {"name": "crc32c"}],
                    },
                }
            ],
        },
    }
    specs = Record(sharded, f"file://{tmp_path}/label|n5:")
    data = write_tensorstore(source, specs, axis=Record(1, 0))
    assert data.chunk_records == 2
    assert_same_batches(run(data, 8), run(source, 8))
    assert_same_batches(run(TensorStore(specs, axis=Record(1, 0)), 8), run(source, 8))
    layout = ts.open(sharded).result().chunk_layout
    assert layout.write_chunk.shape == (4, 16, 3)
    assert layout.read_chunk.shape == (4, 2, 3)


def test_one_array_is_written_as_one_array(tmp_path):
    array = np.arange(30, dtype=np.float32).reshape(10, 3)
    for spec in (tmp_path / "a", {"driver": "zarr", "kvstore": f"file://{tmp_path}/b"}):
        write_tensorstore(array, spec, chunk_records=4)
        np.testing.assert_array_equal(TensorStore(spec).read(range(10)), array)
    assert ts.open(f"file://{tmp_path}/a/").result().chunk_layout.read_chunk.shape == (4, 3)


def test_volumes_have_labels_to_write_along(tmp_path):
    array = np.arange(8 * 24, dtype=np.uint16).reshape(8, 4, 3, 2)
    spec = {"driver": "neuroglancer_precomputed", "kvstore": f"file://{tmp_path}/volume"}
    source = write_tensorstore(array, spec, axis="z", chunk_records=2)
    np.testing.assert_array_equal(source.read(range(8)), array)
    assert ts.open(spec).result().domain.labels == ("x", "y", "z", "channel")


def test_other_storage_has_its_metadata_last(tmp_path):
    place = {"driver": "ocdbt", "base": f"file://{tmp_path}/database/"}
    spec = {"x": {"driver": "zarr3", "kvstore": {**place, "path": "x/"}}}
    seen = []

    def look():
        with pytest.raises(FileNotFoundError, match=r"was it written to its end\?"):
            TensorStore(spec)
        seen.append(True)

    with pytest.raises(RuntimeError, match="on fire"):
        write_tensorstore(Broken(boom, look), spec, chunk_records=4)
    look()
    assert ts.KvStore.open(place).result().list().result() == []
    write_tensorstore(Broken(lambda record: record, look), spec, chunk_records=4)
    np.testing.assert_array_equal(TensorStore(spec)[35]["x"], [35, 35])
    assert len(seen) == 3
    with pytest.raises(FileExistsError, match=r"^`spec` must name a place where nothing is, got "):
        write_tensorstore(Broken(lambda record: record), spec)
    write_tensorstore({"x": np.ones(3)}, spec, overwrite=True)
    assert len(TensorStore(spec)) == 3


def test_what_is_there_stays_until_another_one_is_whole(tmp_path):
    old = rows(20)
    write_tensorstore(old, tmp_path / "data")
    message = (
        f"`spec` must name a place where nothing is, got {tmp_path}/data/; give another one, or "
        "`overwrite=True`"
    )
    with pytest.raises(FileExistsError, match=f"^{re.escape(message)}$"):
        write_tensorstore(rows(30), tmp_path / "data")
    with pytest.raises(RuntimeError, match="on fire"):
        write_tensorstore(Broken(boom), tmp_path / "data", overwrite=True)
    assert_same_batches(run(TensorStore(tmp_path / "data"), 5), run(old, 5))
    assert os.listdir(tmp_path) == ["data"]
    write_tensorstore(rows(30), tmp_path / "data", overwrite=True)
    assert_same_batches(run(TensorStore(tmp_path / "data"), 5), run(rows(30), 5))
    assert os.listdir(tmp_path) == ["data"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"holds something else; delete it yourself$"):
        write_tensorstore(rows(30), tmp_path / "home", overwrite=True)
    assert os.listdir(tmp_path / "home") == ["thesis.txt"]


def test_a_killed_conversion_leaves_nothing_that_could_be_opened(tmp_path):
    code = """
import os, signal, sys
import numpy as np
from feeder.sources import write_tensorstore

class Source:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index == 900:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": np.full(1000, index)}

write_tensorstore(Source(), sys.argv[1], chunk_records=10)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.data\.partial-[0-9a-f]{8}", left.name)
    assert any(left.rglob("c/0/0"))  # chunks were written
    for place in (tmp_path / "data", left, {"x": left / "x"}):
        with pytest.raises(FileNotFoundError, match=r"was it written to its end\?"):
            TensorStore(place)
    write_tensorstore(rows(20), tmp_path / "data")
    assert len(TensorStore(tmp_path / "data")) == 20


@pytest.mark.parametrize("chunk_records", [10, 16])
def test_a_record_unlike_the_first_is_an_error_that_names_it(chunk_records, tmp_path):
    for change, what in [
        (lambda record: {"x": record["x"].astype(np.int64)}, "dtype"),
        (lambda record: {"x": record["x"][:1]}, "shape"),
        (lambda record: {**record, "y": 0}, "structure"),
        (lambda record: {"x": "thirty"}, "dtype"),
    ]:
        with pytest.raises(feeder.RecordMismatchError, match=f"^record.* the same {what} ") as bad:
            write_tensorstore(Broken(change), {"x": tmp_path / "x"}, chunk_records=chunk_records)
        assert "record 30" in str(bad.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "options", "kind", "message"),
    [
        (
            [{"name": "a"}],
            {},
            TypeError,
            "`source` must have records of numbers, got an object at record['name']; turn it into "
            "an array of numbers in a transform, or leave it out",
        ),
        (
            {"when": np.zeros(3, "datetime64[s]")},
            {},
            TypeError,
            "`source` must have records of numbers, got datetime64[s] at record['when']; turn it "
            "into an array of numbers in a transform, or leave it out",
        ),
        (
            {"a/b": np.zeros(3)},
            {},
            ValueError,
            "`source` must have records with names for keys, got record['a/b']; rename it in a "
            "transform, or give a spec for each leaf",
        ),
        (
            [[1, 2]],
            {},
            TypeError,
            "`source` must have records of dicts and tuples to be written below one place, got "
            "PyTreeSpec([*, *]); change them in a transform, or give a spec for each leaf",
        ),
        (
            [{0: 1.0}],
            {},
            TypeError,
            "`source` must have records of dicts and tuples to be written below one place, got "
            "PyTreeSpec({0: *}); change them in a transform, or give a spec for each leaf",
        ),
        (
            {"x": np.zeros(3)},
            {"spec": {"y": "/nowhere/y"}},
            ValueError,
            "`spec` must be a path or URL, or have a spec for each leaf of a record, got "
            "{'y': '/nowhere/y'} for records of PyTreeSpec({'x': *})",
        ),
        (
            {"x": np.zeros(3), "y": np.zeros(3)},
            {"spec": {"x": "/nowhere/a", "y": "/nowhere/a/b"}},
            ValueError,
            "`spec` must name a place of its own for each leaf, got /nowhere/a/ and /nowhere/a/b/",
        ),
        (
            {"x": np.zeros(3)},
            {"spec": {"x": {"driver": "array", "array": [1], "dtype": "int8"}}},
            ValueError,
            "`spec` must name a whole array in a key-value store, got {'driver': 'array', 'array': "
            "[1], 'dtype': 'int8'}; leave out transforms and views",
        ),
        (
            {"x": np.zeros(3)},
            {"axis": 1},
            ValueError,
            "`axis` must be a dimension of FOLDER/x/, of rank 1, got 1",
        ),
        ([], {}, ValueError, "`source` must hold 1 to 2**62 records, got 0"),
        (
            feeder.stream_of([1], iter),
            {},
            TypeError,
            "`source` must have len() and [], got Stream(partial, num_shards=1, length=None, "
            "cycle_length=1, block_length=None); make a list of it",
        ),
        (
            {"x": np.zeros(3)},
            {"chunk_records": 0},
            ValueError,
            "`chunk_records` must be an integer of at least 1, got 0",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    source, options, kind, message, tmp_path
):
    options = {"spec": tmp_path / "data", **options}
    if "axis" in options:
        options["spec"] = {"x": tmp_path / "x"}
    message = message.replace("FOLDER", str(tmp_path))
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        write_tensorstore(source, **options)
    assert os.listdir(tmp_path) == []


def test_a_spec_that_says_something_else_is_refused(tmp_path):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/x", "dtype": "uint8"}
    with pytest.raises(ValueError, match=r"can hold int64\[3, 2\] of record, got .*/x/: .*uint8"):
        write_tensorstore(np.zeros((3, 2), int), spec)
    assert os.listdir(tmp_path) == []


def test_a_write_that_fails_is_an_error_that_names_the_records(tmp_path):
    def destroy():
        (stage,) = tmp_path.glob(".x.partial-*")
        stage.rename(tmp_path / "gone")
        stage.write_text("no folder")

    broken = Broken(lambda record: record, destroy)
    with pytest.raises(OSError, match=r"^records \d+ to \d+ of record\['x'\] to .*/x/ cannot be"):
        write_tensorstore(broken, {"x": tmp_path / "x"}, chunk_records=10)
    assert not (tmp_path / "x").exists()


def test_a_progress_bar_counts_the_records(tmp_path, monkeypatch):
    counted = []

    class Bar(tqdm.auto.tqdm):
        def update(self, n=1):
            counted.append((n, self.total))

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    write_tensorstore(rows(50), tmp_path / "data", chunk_records=20)
    assert sum(n for n, _ in counted) == 50
    assert counted[0][1] == 50
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    write_tensorstore(rows(50), tmp_path / "other")
    assert json.loads((tmp_path / "data" / "zarr.json").read_text())["node_type"] == "group"


@pytest.mark.parametrize("keys", [("kvstore",), (0, 1)])
def test_names_that_would_not_come_back_are_refused_before_anything_is_written(tmp_path, keys):
    source = {key: np.arange(4) for key in keys}
    with pytest.raises((ValueError, TypeError), match=r"^`source` must have records "):
        write_tensorstore(source, tmp_path / "x")
    assert not any(tmp_path.iterdir())
