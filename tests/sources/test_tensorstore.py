"""TensorStore as a source: every format and axis, the right rows, and errors that name them."""

import functools
import http.server
import os
import pickle
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.errors import SourceError
from feeder.sources import TensorStore, write_tensorstore
from feeder.sources.tensorstore.slabs import Slabs
from feeder.testing import assert_same_batches
from tests.sources.makers.tensorstore import rows, written
from tests.support import run


def stored(folder, array, name="x", chunk=None, **spec):
    """The spec of a zarr3 array in files."""
    layout = ts.ChunkLayout(chunk_shape=[chunk or 4, *array.shape[1:]])
    place = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/{name}/"}, **spec}
    return written(place, array, chunk_layout=layout)


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5", "neuroglancer_precomputed"])
@pytest.mark.parametrize("axis", [0, -2])
def test_each_format_gives_slices_along_any_axis(driver, axis, tmp_path):
    array = np.arange(7 * 5 * 6 * 2, dtype=np.uint16).reshape(7, 5, 6, 2)
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/"}
    written(spec, array, chunk_layout=ts.ChunkLayout(chunk_shape=[3, 5, 4, 2]))
    source = TensorStore(spec, axis=axis)
    expected = np.moveaxis(array, axis, 0)
    assert len(source) == len(expected)
    assert source.record_spec == feeder.ArraySpec(expected.shape[1:], np.dtype(np.uint16))
    np.testing.assert_array_equal(source.read([3, 0, 4, 4]), expected[[3, 0, 4, 4]])
    np.testing.assert_array_equal(source[-1], expected[-1])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_indices_of_any_chunks_give_their_rows(data):
    length = data.draw(st.integers(1, 40), "length")
    array = rows(length, 3, dtype=np.int32)
    chunk = data.draw(st.integers(1, 12), "chunk")
    store = ts.open(
        {"driver": "zarr3", "kvstore": "memory://x/"},
        create=True,
        dtype=ts.int32,
        shape=array.shape,
        chunk_layout=ts.ChunkLayout(chunk_shape=[chunk, 3]),
    ).result()
    store.write(array).result()
    first = data.draw(st.integers(0, length - 1), "first")
    part = store[first:]
    cache_bytes = data.draw(st.sampled_from([None, 0, 12 * chunk, 40 * chunk]), "cache_bytes")
    source = TensorStore({"x": part, "y": store}, cache_bytes=cache_bytes) if first == 0 else None
    source = source or TensorStore({"x": part, "y": part[ts.d[0].translate_by[5]]})
    for _ in range(3):
        indices = data.draw(st.lists(st.integers(0, length - first - 1), max_size=20), "indices")
        batch = source.read(indices)
        np.testing.assert_array_equal(batch["x"], array[first:][indices])
        np.testing.assert_array_equal(batch["y"], array[first:][indices])


def test_shards_views_labels_and_an_axis_for_each_leaf(tmp_path):
    array = rows(40, 6, dtype=np.int16)
    layout = ts.ChunkLayout(read_chunk_shape=[1, 6], write_chunk_shape=[16, 6])
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/x/"}
    written(spec, array, chunk_layout=layout)
    spec["schema"] = {"domain": {"labels": ["time", "sensor"]}}
    source = TensorStore({"rows": spec, "columns": spec}, axis={"rows": 0, "columns": 0})
    assert source.chunk_records == 1
    part = {"input_inclusive_min": [10, 0], "input_exclusive_max": [16, 6]}
    view = {**spec, "transform": {**part, "input_labels": ["time", "sensor"]}}
    source = TensorStore((view, view), axis=("time", "sensor"))
    assert len(source) == 6
    np.testing.assert_array_equal(source[2][0], array[12])
    np.testing.assert_array_equal(source[2][1], array[10:16, 2])


def test_paths_urls_specs_and_open_arrays_are_the_same_data(tmp_path):
    array = rows(9, 2)
    spec = stored(tmp_path / "with a space, ü and %20", array)
    path = tmp_path / "with a space, ü and %20" / "x"
    store = ts.open(spec).result()
    for given_as in [path, str(path), spec, ts.Spec(spec), store, store.url, f"{path}/"]:
        source = TensorStore({"x": given_as})
        np.testing.assert_array_equal(source.read(range(9))["x"], array)
        assert str(path) in repr(source) or given_as in (store, store.url)
        again = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(again[3]["x"], array[3])
    np.testing.assert_array_equal(TensorStore(path)[3], array[3])


def test_a_data_set_is_read_over_http(tmp_path):
    write_tensorstore({"x": rows(20, 2)}, tmp_path / "data", chunk_records=4)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = TensorStore(f"http://127.0.0.1:{server.server_port}/data/", concurrency=2)
        np.testing.assert_array_equal(source.read([19, 3])["x"], rows(20, 2)[[19, 3]])
        server.shutdown()


def test_narrow_floats_and_booleans_keep_their_dtype(tmp_path):
    records = {
        "b": rows(8, 3).astype(ml_dtypes.bfloat16),
        "t": np.arange(8) % 3 == 0,
        "c": rows(8).astype(np.complex64),
    }
    source = write_tensorstore(records, tmp_path / "data")
    for num_workers in (0, 1):
        (batch,) = run(source, 8, num_workers=num_workers)
        for name, leaf in records.items():
            assert batch[name].dtype == leaf.dtype
            np.testing.assert_array_equal(batch[name], leaf)


def test_leaves_that_are_objects_travel_as_objects():
    store = ts.open(
        {"driver": "array", "dtype": "ustring", "array": ["zero", "one", "two"], "rank": 1}
    ).result()
    (batch,) = run(TensorStore({"name": store}), 3)
    assert batch["name"].tolist() == ["zero", "one", "two"]


def test_transforms_and_collate_get_records_of_their_own(tmp_path):
    source = write_tensorstore(rows(12, 2), tmp_path / "data", chunk_records=4)

    def doubled(record):
        record *= 2  # in place: what is cached must not change
        return record

    for _ in range(2):
        batches = run(source, 6, transforms=[doubled])
        np.testing.assert_array_equal(np.concatenate(batches), rows(12, 2) * 2)
    (batch, _) = run(source, 6, collate=np.stack)
    np.testing.assert_array_equal(batch, rows(12, 2)[:6])


def test_only_names_reach_the_workers_and_only_metadata_is_read_here(tmp_path):
    code = """
import sys
import feeder
import numpy as np
assert "tensorstore" not in sys.modules
source = feeder.sources.TensorStore(sys.argv[1])
with feeder.DataLoader(source, 8, shuffle=feeder.BlockShuffle(4), num_workers=2) as loader:
    batches = list(loader)
assert source._reader is None
assert sorted(np.concatenate([batch["x"][:, 0] for batch in batches]).tolist()) == list(range(16))
"""
    write_tensorstore(
        {"x": np.arange(16)[:, None] * np.ones(2, int)}, tmp_path / "data", chunk_records=4
    )
    assert len(pickle.dumps(TensorStore(tmp_path / "data"))) < 2000
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_forked_process_gets_an_error_and_no_abort(tmp_path):
    code = """
import os, sys
from feeder.sources import TensorStore
source = TensorStore(sys.argv[1])
source[0]
if (pid := os.fork()) == 0:
    try:
        source[1]
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
"""
    stored(tmp_path, rows(8, 2))
    command = [sys.executable, "-W", "ignore", "-c", code, f"{tmp_path}/x"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        f"TensorStore({tmp_path}/x/; 8 records) cannot be read in a process that was forked after "
        "it was made: TensorStore has threads; start processes by spawn or forkserver\n"
    )


def test_what_is_in_memory_is_for_this_process_and_its_threads(tmp_path):
    source = write_tensorstore({"x": rows(16, 2)}, "memory://here/")
    expected = run({"x": rows(16, 2)}, 4, shuffle=True)
    assert_same_batches(run(source, 4, shuffle=True), expected)
    threads = run(source, 4, shuffle=True, num_workers=2, worker_type="thread")
    assert_same_batches(threads, expected)
    remedy = (
        "what is in memory:// lives in the process and the Context that made it: pass the open "
        'tensorstore.TensorStore, and use num_workers=0 or worker_type="thread"'
    )
    with pytest.raises(SourceError, match=re.escape(remedy)):
        run(source, 4, num_workers=1)
    with pytest.raises(FileNotFoundError, match=re.escape(remedy)):
        TensorStore({"driver": "zarr3", "kvstore": "memory://here/x/"})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ([{}], ValueError, "`spec` must name at least one array, got {}"),
        (
            [{"x": 5}],
            TypeError,
            "`spec` must be a TensorStore spec (a dict with a 'driver', a URL, a path), or a "
            "pytree of them, got 5",
        ),
        (
            [{"driver": "zarr9"}],
            ValueError,
            "`spec` must be a TensorStore spec, got {'driver': 'zarr9'}: Error parsing object "
            'member "driver": "zarr9" is not a registered TensorStore driver',
        ),
        (
            [{"kvstore": "file:///x"}],
            ValueError,
            "`spec` must be a TensorStore spec, got {'kvstore': 'file:///x'}: Error parsing object "
            'member "driver": Expected string, but member is missing',
        ),
        (["X", 3], ValueError, "`axis` must be a dimension of X/, of rank 2, got 3"),
        (
            ["X", "z"],
            ValueError,
            "`axis` must be a label of X/ (none: it has no labels), got 'z'",
        ),
        *(
            (
                ["X", axis],
                TypeError,
                "`axis` must be a number, a dimension's label, or one of them for each spec, got "
                f"{axis!r}",
            )
            for axis in (0.5, True, {"x": 0})
        ),
        (
            ["X", 0, -1],
            ValueError,
            "`cache_bytes` must be an integer of at least 0, got -1",
        ),
        (
            ["X", 0, None, 0],
            ValueError,
            "`concurrency` must be an integer of at least 1, got 0",
        ),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, kind, message, tmp_path):
    stored(tmp_path, rows(8, 2))
    spec, *rest = [f"{tmp_path}/x" if argument == "X" else argument for argument in arguments]
    options = dict(zip(["axis", "cache_bytes", "concurrency"], rest, strict=False))
    with pytest.raises(kind, match=f"^{re.escape(message.replace('X/', f'{tmp_path}/x/'))}$"):
        TensorStore(spec, **options)


def test_arrays_that_do_not_fit_are_named(tmp_path):
    x, y = stored(tmp_path, rows(8, 2)), stored(tmp_path, rows(9), "y")
    with pytest.raises(FileNotFoundError) as missing:
        TensorStore({"x": x, "label": tmp_path / "label"})
    assert f"got {tmp_path}/label/ (record['label']): " in str(missing.value)
    assert "is the path right, and was it written to its end?" in str(missing.value)
    with pytest.raises(FileNotFoundError, match=f"got {tmp_path}/x/: NOT_FOUND: .*zarray"):
        TensorStore({**x, "driver": "zarr"})
    with pytest.raises(
        ValueError,
        match=r"`spec` must name arrays of one length, got 8 in .*/x/ \("
        r"record\['x'\]\), 9 in .*/y/ \(record\['y'\]\)$",
    ):
        TensorStore({"x": x, "y": y})
    (tmp_path / "x" / "zarr.json").write_text("{}")
    with pytest.raises(
        ValueError, match=rf"^`spec` must name an array .*{tmp_path}/x/: FAILED_PREC"
    ):
        TensorStore(x)
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(
        ValueError, match=f"^`spec` must name arrays, got the zarr group {tmp_path};"
    ):
        TensorStore(tmp_path)
    with pytest.raises(IndexError, match=r"^index 9 is out of range for 9 records$"):
        TensorStore(y)[9]
    with pytest.raises(IndexError, match=r"^`indices` must be from 0 to 8, got -1 to 3$"):
        TensorStore(y).read([3, -1])


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_truncated_chunk_is_an_error_that_names_its_records(chunk, tmp_path):
    spec = stored(tmp_path, rows(16, 2), chunk=chunk)
    damaged = tmp_path / "x" / "c" / str(4 // chunk) / "0"
    damaged.write_bytes(damaged.read_bytes()[:5])
    bad = {1: [4], 4: [4, 5, 6, 7]}[chunk]
    for num_workers in (0, 1):
        with pytest.raises(
            SourceError,
            match=rf"^records? {', '.join(map(str, bad))} of {tmp_path}/x/ "
            f"cannot be read: .*{damaged}",
        ) as raised:
            run(TensorStore(spec), 8, num_workers=num_workers)
        assert isinstance(raised.value.__cause__, feeder.RecordError)
        assert (raised.value.__cause__.step, raised.value.__cause__.stage) == (0, "read")
        assert (raised.value.path, raised.value.index) == (f"{tmp_path}/x/", 4)
    skipped = run(TensorStore({"x": spec}), 8, on_bad_record="skip")
    left = [row for row in range(16) if row not in bad]
    got = np.concatenate([batch["x"] for batch in skipped])
    np.testing.assert_array_equal(got, rows(16, 2)[left])
    source = TensorStore(spec)
    with pytest.raises(SourceError, match=f"^records? {bad[0]}"):
        source[bad[0]]
    damaged.write_bytes(rows(16, 2)[4 : 4 + chunk].tobytes())
    np.testing.assert_array_equal(source[4], rows(16, 2)[4])  # what failed is not remembered


def test_a_lost_chunk_of_a_data_set_is_an_error_and_no_zeros(tmp_path):
    write_tensorstore({"x": np.zeros((16, 2), np.float32)}, tmp_path / "data", chunk_records=4)
    (tmp_path / "data" / "x" / "c" / "0" / "0").unlink()
    with pytest.raises(
        SourceError,
        match=r"^records 0, 1, 2, 3 of .*/data/x/ "
        r"\(record\['x'\]\) cannot be read: .* is missing",
    ):
        run(TensorStore(tmp_path / "data"), 16)


def test_an_array_that_changes_before_it_is_read_is_an_error(tmp_path):
    array = rows(16, 2)
    spec = stored(tmp_path, array)
    source = TensorStore(spec)
    ts.open(spec).result().resize(exclusive_max=[12, 2]).result()
    with pytest.raises(
        SourceError,
        match=re.escape(
            f"{tmp_path}/x/ must stay as it is while it is read: it had 16 records of float32[2], "
            "and now has 12 of float32[2]; make the source anew"
        ),
    ):
        run(source, 4, num_workers=1)
    ts.open(spec).result().resize(exclusive_max=[20, 2]).result()  # more rows do no harm
    assert len(run(source, 4)) == 4
    os.rename(tmp_path / "x", tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=f"^{tmp_path}/x/ cannot be opened: NOT_FOUND"):
        pickle.loads(pickle.dumps(source))[0]


def reads_of(batches, room):
    """How many slabs are read whole, and how often rows are read past them."""
    slabs, begun, past = Slabs(room), [], 0
    for batch in batches:
        slabs.tick()
        for slab in np.unique(batch).tolist():
            past += slabs.get((0, slab), 1, lambda slab=slab: begun.append(slab) or slab) is None
    return begun, past


def slabs_of(shuffle, num_slabs=128, rows=128, epochs=2):
    """The slabs of each batch of 128 records."""
    batches = run(np.arange(num_slabs * rows), 128, shuffle=shuffle, num_epochs=epochs)
    return [batch // rows for batch in batches]


@pytest.mark.parametrize("workers", [1, 3])  # each sees every so-many-th batch
@pytest.mark.parametrize("window", [1, 8, 16])
def test_blocks_that_are_shuffled_in_windows_are_each_read_once(window, workers):
    shuffle = feeder.BlockShuffle(128, window_blocks=window)
    begun, past = reads_of(slabs_of(shuffle)[::workers], 32)
    assert len(begun) + past <= 2 * 128


def test_a_shuffle_of_all_records_reads_past_the_slabs_it_has():
    begun, past = reads_of(slabs_of(True, num_slabs=1024, rows=16), 32)
    assert len(begun) < 0.02 * past  # each would be a copy of a whole chunk for one record
    begun, past = reads_of(slabs_of(True, num_slabs=64), 32)
    assert len(begun) < 0.1 * past
    assert len(reads_of(slabs_of(True, num_slabs=32), 32)[0]) == 32


def test_an_open_array_is_a_source_and_a_spec_may_hold_paths(tmp_path):
    store = feeder.sources.write_tensorstore(np.arange(12), tmp_path / "x")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": tmp_path / "x"}}
    opened = ts.open({**spec, "kvstore": f"file://{tmp_path}/x/"}, open=True).result()
    for source in (store, opened, feeder.sources.TensorStore(spec)):
        with feeder.DataLoader(source, 4, num_workers=1) as loader:
            assert np.concatenate(list(loader)).tolist() == list(range(12))
