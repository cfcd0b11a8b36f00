"""Sources of files: .npy, ArrayRecord, HDF5; what they share; and what is said of bad files."""

import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.produce import payload, unpacking
from feeder.sources import HDF5, ArrayRecord, Npy, files
from feeder.sources.kept import Kept
from feeder.sources.parts import Parts, checked


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


def write_records(path, count, size=40):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in range(count):
        writer.write(number.to_bytes(2, "little") * (size // 2))
    writer.close()


def write_noise(path, count):
    rng, writer = np.random.default_rng(0), ArrayRecordWriter(str(path), "group_size:1")
    for _ in range(count):
        writer.write(rng.bytes(5000))
    writer.close()


def damage(path, begin, length):
    data = bytearray(path.read_bytes())
    data[begin : begin + length] = b"\xa5" * length
    path.write_bytes(data)


# What all share.


@given(st.lists(st.integers(0, 5)), st.data())
def test_every_record_is_found_in_its_part(lengths, data):
    parts = Parts(lengths)
    owners = [(part, row) for part, length in enumerate(lengths) for row in range(length)]
    assert len(parts) == len(owners)
    indices = np.array(
        data.draw(st.lists(st.integers(0, len(owners) - 1))) if owners else [], np.int64
    )
    found = {}
    for part, places, rows in parts.of(indices):
        assert part not in {part for part, _ in found.values()}
        found.update({place: (part, row) for place, row in zip(places, rows, strict=True)})
    assert [found[place] for place in range(len(indices))] == [owners[i] for i in indices]


@given(st.integers(0, 5), st.lists(st.integers(-8, 8)))
def test_indices_are_those_of_a_list(length, indices):
    records = list(range(length))
    try:
        expected = [records[index] for index in indices]
    except IndexError:
        with pytest.raises(IndexError):
            checked(indices, length)
    else:
        assert checked(indices, length).tolist() == expected


def test_an_index_out_of_range_says_how_many_there_are():
    message = "a record's index must be below the number of records, 3, got 3"
    with says(IndexError, message):
        checked([1, 3], 3)
    with says(TypeError, "a record's index must be an integer, got [1.5]"):
        checked([1.5], 3)


@given(st.lists(st.integers(0, 9)), st.integers(0, 12))
def test_what_is_kept_stays_below_the_limit_and_is_right(keys, limit):
    made = []
    kept = Kept(lambda key: (made.append(key) or [key], key), limit)
    for key in keys:
        assert kept(key) == [key]
        (held,) = kept._of_process.values()
        sizes = sum(held.futures)
        assert sizes <= limit or list(held.futures) == [key]
    assert pickle.loads(pickle.dumps(Kept(len, 3)))._of_process == {}


def test_threads_that_want_the_same_wait_for_one_of_them_and_a_failure_is_tried_again():
    begun, may_end, calls = threading.Event(), threading.Event(), []

    def make(key):
        calls.append(key)
        if len(calls) == 1:
            begun.set()
            may_end.wait(10)
            raise OSError("not yet")
        return f"made {key}", 1

    kept, outcomes = Kept(make, 1), []

    def ask():
        try:
            outcomes.append(kept("a"))
        except OSError as error:
            outcomes.append(str(error))

    first = threading.Thread(target=ask)
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=ask)
    second.start()
    may_end.set()
    first.join()
    second.join()
    assert outcomes[0] == "not yet" or outcomes[1] == "not yet"
    assert kept("a") == "made a"
    assert len(calls) == 2


def test_a_forked_process_makes_its_own(monkeypatch):
    kept = Kept(lambda _: ([], 1), 1)
    before = kept(0)
    assert kept(0) is before
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert kept(0) is not before


def test_files_come_in_the_order_of_the_list_and_of_their_names(tmp_path, monkeypatch):
    for name in ("b.x", "a.x", "c.y", "sub/d.x"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)

    def found(given):
        return [str(Path(path).relative_to(tmp_path)) for path in files.all_of("p", given, "*.x")]

    assert found("*.x") == ["a.x", "b.x"]
    assert found("**/*.x") == ["a.x", "b.x", "sub/d.x"]
    assert found(tmp_path) == ["a.x", "b.x", "sub/d.x"]
    assert found(["c.y", "b.x", tmp_path / "sub"]) == ["c.y", "b.x", "sub/d.x"]
    with says(ValueError, "`p` must match at least one file, got 'z*'"):
        found("z*")
    with says(ValueError, "`p` must name at least one file, got none"):
        found([])
    with says(ValueError, f"`p` must name a file that is there, got '{tmp_path}/z'"):
        found(["a.x", "z"])
    with says(ValueError, "`p` must name files, got 'sub', without any *.q"):
        files.all_of("p", "sub", "*.q")
    with begins(ValueError, "`p` must name a file that is mounted here, got 's3://bucket/*.x'"):
        found("s3://bucket/*.x")
    with begins(TypeError, "`p` must be a path, a pattern, a folder or a list of them, got 3"):
        found(3)


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (lambda path: ArrayRecord(path), "array_record", "arrayrecord"),
        (lambda path: HDF5(path), "h5py", "hdf5"),
        (lambda path: feeder.sources.Parquet(path), "pyarrow", "parquet"),
        (lambda path: feeder.sources.Arrow(path), "pyarrow", "parquet"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    make, package, extra, tmp_path, monkeypatch
):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(files.importlib, "import_module", refuse)
    (tmp_path / "file").touch()
    with pytest.raises(ImportError) as raised:
        make(tmp_path / "file")
    assert str(raised.value).endswith(
        f" needs the package {package}: pip install 'jax-feeder[{extra}]'"
    )


def test_sources_import_nothing_until_they_are_used():
    code = (
        "import sys, feeder.sources; "
        "sys.exit(any(name in sys.modules for name in "
        "('pyarrow', 'h5py', 'datasets', 'array_record', 'jax', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Maps.


@given(st.integers(0, 3), st.sampled_from([1, -1, 2, -3]), st.booleans(), st.sampled_from("rw"))
def test_a_view_of_a_map_is_mapped_again(tmp_path_factory, first, step, turned, mode):
    path = tmp_path_factory.mktemp("maps") / "rows"
    np.arange(12_000, dtype=np.int16).tofile(path)
    rows = np.memmap(path, np.int16, "r" if mode == "r" else "r+", 8, (1000, 4))
    view = rows[first::step]
    view = view.T if turned else view
    fd, copied = payload.pack({"rows": view, "plain": np.asarray(view)})
    size = os.fstat(fd).st_size
    result = unpacking.unpack(fd)
    os.close(fd)
    assert max(copied, size) < 1000
    for array in result.values():
        assert np.array_equal(array, view)
        assert not array.flags.writeable
    if mode == "w":
        rows[...] = 7
        assert np.all(result["rows"] == 7)


def test_what_only_this_process_sees_of_a_map_is_copied(tmp_path):
    path = tmp_path / "rows"
    np.arange(10, dtype=np.int16).tofile(path)
    changed = np.memmap(path, np.int16, "c")
    changed[0] = 99
    assert again(changed)[0] == 99
    gone = np.memmap(path, np.int16, "r")
    path.unlink()
    assert again(gone).tolist() == list(range(10))
    assert len(again(gone[:0])) == 0


# Npy.


def test_npy_rows_are_those_of_the_arrays(tmp_path):
    image, label = np.arange(24).reshape(6, 2, 2), np.arange(6) / 2
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "label.npy", label)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(image))
    source = Npy(
        {
            "image": tmp_path / "image.npy",
            "more": (str(tmp_path / "label.npy"), tmp_path / "fortran.npy"),
        }
    )
    batch = again(source).read(np.array([5, 0, 5]))
    assert np.array_equal(batch["image"], image[[5, 0, 5]])
    assert np.array_equal(batch["more"][0], label[[5, 0, 5]])
    assert np.array_equal(batch["more"][1], image[[5, 0, 5]])
    record = source[-1]
    record["image"][...] = 0
    assert np.array_equal(source[5]["image"], image[5])
    assert len(payload.pack(source)) == 2


def test_npy_files_that_are_no_good_are_named(tmp_path):
    good = tmp_path / "good.npy"
    np.save(good, np.arange(100))
    data = good.read_bytes()
    for name, content, error in (
        ("cut", data[:300], "ValueError: mmap length is greater than file size"),
        ("header", data[:30], "ValueError: EOF: reading array header, expected 118 bytes got 20"),
        ("text", b"1, 2, 3" * 9, "ValueError: the magic string is not correct; expected "),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with begins(ValueError, f"{path} cannot be read, got {error}"):
            Npy(path)
    np.save(tmp_path / "objects.npy", np.array([None, "x"], object))
    with begins(ValueError, f"{tmp_path}/objects.npy cannot be read, got ValueError: Array can't"):
        Npy(tmp_path / "objects.npy")
    np.savez(tmp_path / "all.npz", a=np.arange(3))
    with begins(ValueError, f"`paths` must name .npy files, got the archive {tmp_path}/all.npz"):
        Npy(tmp_path / "all.npz")
    np.save(tmp_path / "one.npy", 3)
    message = f"`paths` must name arrays of rows, got a single value in {tmp_path}/one.npy"
    with says(ValueError, message):
        Npy(tmp_path / "one.npy")
    np.save(tmp_path / "short.npy", np.arange(3))
    with says(
        ValueError,
        f"`paths` must hold arrays of one length, got 100 in {good}, 3 in {tmp_path}/short.npy",
    ):
        Npy((good, tmp_path / "short.npy"))
    with begins(TypeError, "`paths` must be a path, got a list; join files of one sequence by"):
        Npy([good])
    with says(TypeError, "`paths`['x'] must be a path, got 3"):
        Npy({"x": 3})
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    assert len(Npy(tmp_path / "none.npy")) == 0


def test_an_npy_file_that_was_written_anew_is_refused_by_workers(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(100))
    source = Npy(path)
    np.save(tmp_path / "new.npy", np.arange(50))
    (tmp_path / "new.npy").rename(path)
    with begins(ValueError, f"{path} must stay as it is while it is read, got shape and dtype "):
        again(source)


# ArrayRecord.


def test_several_files_of_records_are_one_sequence(tmp_path):
    for name, count in (("a", 3), ("b", 0), ("c", 4)):
        write_records(tmp_path / f"{name}.array_record-0", count)
    source = ArrayRecord(tmp_path, decode=lambda data: int.from_bytes(data[:2], "little"))
    assert len(source) == 7
    assert [source[index] for index in range(7)] == [0, 1, 2, 0, 1, 2, 3]
    assert again(source).__getitems__([6, 3, 2, 6, -7]) == [3, 0, 2, 3, 0]
    assert ArrayRecord([tmp_path / "a.array_record-0"])[1] == b"\x01\x00" * 20
    with begins(IndexError, "a record's index must be below the number of records, 7, got 7"):
        source[7]


def test_record_files_that_are_no_good_are_named(tmp_path):
    good = tmp_path / "good.array_record"
    write_records(good, 100, 4000)
    data = good.read_bytes()
    for name, content in (("cut", data[: len(data) // 2]), ("empty", b""), ("text", b"x" * 99_999)):
        path = tmp_path / name
        path.write_bytes(content)
        with begins(ValueError, f"{path} cannot be read, got RuntimeError: "):
            ArrayRecord([good, path])


def test_a_damaged_record_is_named_and_its_neighbours_are_read(tmp_path):
    first, second = tmp_path / "0", tmp_path / "1"
    write_records(first, 10)
    write_noise(second, 100)
    damage(second, 250_000, 100)
    source = ArrayRecord([first, second])
    bad = []
    for index in range(110):
        try:
            source[index]
        except feeder.SourceError as error:
            bad.append((index, error.index, error.path))
    assert bad == [(bad[0][0], bad[0][0], str(second))]
    index = bad[0][0]
    with begins(
        feeder.SourceError, f"record {index} cannot be read from {second}, got RuntimeError: "
    ):
        source.__getitems__([3, index + 1, index, index - 1])
    with feeder.DataLoader(source, 10, on_bad_record="skip") as loader:
        assert [len(batch) for batch in loader] == [
            9 if index in range(start, start + 10) else 10 for start in range(0, 110, 10)
        ]


def test_a_read_that_fails_arrives_with_its_step(tmp_path):
    path = tmp_path / "records"
    write_noise(path, 50)
    source = ArrayRecord(path)
    source[0]
    os.truncate(path, 150_000)  # cut short while it is open: an empty record, says the library
    with feeder.DataLoader(source, 10) as loader, pytest.raises(feeder.SourceError) as raised:
        list(loader)
    assert raised.value.path == str(path)
    assert isinstance(raised.value.__cause__, feeder.RecordError)
    assert raised.value.__cause__.step == raised.value.index // 10


def test_what_decode_raises_names_the_record(tmp_path):
    write_records(tmp_path / "a", 3)
    write_records(tmp_path / "b", 3)

    def decode(data):
        if data[0] == 2:
            raise KeyError("two")

    source = ArrayRecord([tmp_path / "a", tmp_path / "b"], decode=decode)
    with pytest.raises(KeyError) as raised:
        source.__getitems__([0, 5])
    assert raised.value.__notes__ == [f"`decode` raised this for record 5, of {tmp_path}/b"]
    with begins(TypeError, "`decode` must be callable as decode(data), got 3"):
        ArrayRecord(tmp_path / "a", decode=3)


# HDF5.


@pytest.fixture
def rows_h5(tmp_path):
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(400).reshape(200, 2), chunks=(16, 2))
        file["group/flag"] = np.arange(200) % 3 == 0
        file["group/text"] = [f"é{row}" for row in range(200)]
        ragged = file.create_dataset("lists/ragged", (200,), h5py.vlen_dtype(np.int32))
        for row in range(200):
            ragged[row] = np.arange(row % 3)
    return path


@given(st.lists(st.integers(-200, 199), min_size=1, max_size=60), st.integers(0, 60))
def test_hdf5_rows_are_those_of_the_arrays_in_any_order(tmp_path_factory, indices, run):
    folder = tmp_path_factory.getbasetemp()
    path = folder / "any_order.h5"
    data = np.arange(400).reshape(200, 2)
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=data, chunks=(16, 2))
    indices = np.array([*indices, *range(run)])
    assert np.array_equal(HDF5(path, "x").read(indices), data[indices])


def test_datasets_are_named_in_any_structure(rows_h5):
    one = HDF5(rows_h5, "group/text")
    assert one[-1] == "é199"
    assert one.read(np.array([3, 1, 3])).tolist() == ["é3", "é1", "é3"]
    some = again(HDF5(rows_h5, ["x", "group/flag"])).read(np.array([3, 4]))
    assert some["x"].tolist() == [[6, 7], [8, 9]]
    assert some["group/flag"].tolist() == [True, False]
    assert HDF5(rows_h5, {"a": ("x",)})[2]["a"][0].tolist() == [4, 5]
    everything = HDF5(rows_h5)
    assert not hasattr(everything, "read")  # rows of lengths of their own
    first, second = everything.__getitems__([4, 5])
    assert first["lists"]["ragged"].tolist() == [0]
    assert second["lists"]["ragged"].tolist() == [0, 1]
    assert (second["group"]["text"], second["group"]["flag"].item()) == ("é5", False)


def test_hdf5_files_that_are_no_good_are_named(tmp_path, rows_h5):
    data = rows_h5.read_bytes()
    for name, content in (("cut", data[: len(data) // 2]), ("empty", b""), ("text", b"x" * 9999)):
        path = tmp_path / name
        path.write_bytes(content)
        with begins(ValueError, f"{path} cannot be read, got OSError: "):
            HDF5(path)
    with h5py.File(rows_h5, "a") as file:
        file["short"], file["single"] = np.arange(3), 3
        file["refs"] = np.array([file.ref] * 200, h5py.ref_dtype)
    for given_names, message in (
        ("y", f"`datasets` must name datasets of {rows_h5}, got 'y'; it has 'group/flag', "),
        ("group", f"`datasets` must name datasets of {rows_h5}, got 'group'; it has "),
        ("single", f"`datasets` must have rows, got a single value, 'single' of {rows_h5}"),
        ("refs", "`datasets` must be of numbers or texts, got "),
        (["x", "short"], "`datasets` must be of one length, got 3 in 'short', 200 in 'x' of "),
        ([], f"`datasets` must name at least one dataset of {rows_h5}, got none"),
    ):
        with begins(ValueError, message):
            HDF5(rows_h5, given_names)
    with begins(TypeError, "`datasets` must be names, or a dict or tuple of them, or None, got 3"):
        HDF5(rows_h5, 3)


def test_a_damaged_chunk_is_named_with_its_first_record(tmp_path):
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        rows = np.random.default_rng(0).integers(0, 100, (400, 8))
        file.create_dataset("x", data=rows, chunks=(50, 8), compression="gzip")
        chunk = file["x"].id.get_chunk_info(2)
    damage(path, chunk.byte_offset, chunk.size)
    source = HDF5(path, "x")
    message = f"record 120 cannot be read from dataset 'x' of {path}, got OSError: "
    with begins(feeder.SourceError, message):
        source.read(np.array([300, 130, 120, 99]))
    assert np.array_equal(source.read(np.array([300, 99])), rows[[300, 99]])


class Masked:
    """A source over a memory map that is more than its numbers."""

    def __init__(self, mapped):
        self.rows = np.ma.masked_array(mapped, mask=np.arange(len(mapped)) % 2 == 1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index : index + 1].filled(-1)[0]


def test_a_masked_array_over_a_map_keeps_its_mask(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8))
    source = Masked(np.load(tmp_path / "x.npy", mmap_mode="r"))
    for num_workers in (0, 1):
        with feeder.DataLoader(source, 8, num_workers=num_workers) as loader:
            assert next(iter(loader)).tolist() == [0, -1, 2, -1, 4, -1, 6, -1]


def test_a_map_whose_file_was_replaced_is_what_it_was(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8))
    np.save(tmp_path / "y.npy", np.arange(8) + 100)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    (tmp_path / "y.npy").replace(tmp_path / "x.npy")
    with feeder.DataLoader(mapped, 8, num_workers=1) as loader:
        assert next(iter(loader)).tolist() == list(range(8))


def test_a_file_that_is_replaced_before_a_worker_maps_it_is_an_error(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8))
    np.save(tmp_path / "y.npy", np.arange(8) + 100)
    pickled = payload.pack(np.load(tmp_path / "x.npy", mmap_mode="r"))[0]
    (tmp_path / "y.npy").replace(tmp_path / "x.npy")
    message = (
        f"{tmp_path}/x.npy must stay where it is while a loader reads it, got another file of that "
        "name; make the loader anew"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        unpacking.unpack(pickled)
    os.close(pickled)
