"""filtered: each record is asked about once, in workers; the index is kept, and checked."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feeder
from feeder.sources import index_file
from feeder.sources.in_place import in_place

SOURCE = {"n": np.arange(1000), "x": np.arange(1000.0) / 7}
DIVISOR = 3


def third(record):
    return record["n"] % DIVISOR == 0


def numbers_of(source):
    return source.read(np.arange(len(source)))["n"].tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_records_kept_are_those_of_the_predicate_in_order(num_workers):
    source = feeder.filtered(SOURCE, third, num_workers=num_workers)
    assert numbers_of(source) == list(range(0, 1000, 3))
    assert in_place(source).source is source
    assert [r["n"] for r in feeder.filtered([{"n": 1}, {"n": 3}], third)] == [3]


def test_a_predicate_is_asked_once_for_each_record_and_in_no_other_order(tmp_path):
    asked = []
    names = ["a", "", "b", ""]
    source = feeder.filtered(names, lambda name: asked.append(name) or name, num_workers=0)
    assert list(source) == ["a", "b"]
    assert asked == names


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), max_size=300), st.integers(1, 40))
def test_an_index_is_read_back_as_it_was_written(tmp_path_factory, kept, times):
    path = tmp_path_factory.mktemp("index") / "kept.npz"
    records = np.array(kept * times, bool)
    indices = np.flatnonzero(records)
    index_file.write(path, indices, records, bool)
    found = index_file.read(path, records, bool, bool)
    assert found.dtype == np.int64
    assert np.array_equal(found, indices)
    assert [file.name for file in path.parent.iterdir()] == ["kept.npz"]


def test_an_index_in_a_file_is_not_made_again(tmp_path):
    path = tmp_path / "kept.npz"
    first = feeder.filtered(SOURCE, third, path=path, num_workers=0)
    asked = []

    class Watched:
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            asked.append(index)
            return {name: array[index] for name, array in SOURCE.items()}

    again = feeder.filtered(Watched(), third, path=str(path), num_workers=0)
    assert len(set(asked)) <= 16  # those that are compared
    assert len(again) == len(first) == 334


def test_an_index_of_another_source_or_predicate_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "kept.npz"
    feeder.filtered(SOURCE, third, path=path, num_workers=0)
    other = {**SOURCE, "x": SOURCE["x"] * 2}
    for source, predicate, what in (
        (
            feeder.subset(SOURCE, range(999)),
            third,
            "of a source of 1000 records, where this has 999",
        ),
        (SOURCE, lambda r: r["n"] % 3 == 0, "of a predicate with other code or values"),
        (other, third, "of a source whose record 141 is another one"),
    ):
        with pytest.raises(
            ValueError, match="`path` must be the index of this source and"
        ) as caught:
            feeder.filtered(source, predicate, path=path)
        assert str(caught.value) == (
            f"`path` must be the index of this source and predicate, got {path}, which is {what}; "
            "delete it, and it is made anew, or give another path"
        )
    monkeypatch.setattr(sys.modules[__name__], "DIVISOR", 4)
    with pytest.raises(ValueError, match="of a predicate with other code or values"):
        feeder.filtered(SOURCE, third, path=path)
    monkeypatch.setattr(index_file, "_python", lambda: "2.7")  # then code cannot be compared
    with pytest.raises(ValueError, match="of a predicate that answers otherwise for record 141"):
        feeder.filtered(SOURCE, third, path=path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other", "header"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "kept.npz"
    feeder.filtered(SOURCE, third, path=path, num_workers=0)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[data.index(b"NUMPY", data.index(b"mask")) + 150] ^= 1
    elif damage == "empty":
        data = bytearray()
    elif damage == "other":
        with path.open("wb") as file:
            np.save(file, np.arange(9))
        data = bytearray(path.read_bytes())
    else:
        np.savez(path, mask=np.arange(9))
        data = bytearray(path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(ValueError, match="which is damaged or another file; delete it") as caught:
        feeder.filtered(SOURCE, third, path=path)
    assert str(path) in str(caught.value)


def test_what_a_predicate_raises_names_the_record_and_leaves_no_file(tmp_path):
    def fail(record):
        if record["n"] == 700:
            raise KeyError("label")
        return True

    with pytest.raises(KeyError, match="label") as caught:
        feeder.filtered(SOURCE, fail, path=tmp_path / "kept", num_workers=2)
    assert caught.value.__cause__.index == 700
    with pytest.raises(
        TypeError, match="`predicate` must return whether the record stays, got None"
    ):
        feeder.filtered(SOURCE, lambda record: None, path=tmp_path / "kept", num_workers=0)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_no_file_and_no_process(tmp_path):
    script = """
        import os, signal, sys, feeder
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind "&"
        def slow(record):
            if record == 600:
                print("asked", os.getpid(), flush=True)
                while True: pass
            return True
        feeder.filtered(list(range(1000)), slow, path=sys.argv[1] + "/kept", num_workers=1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    worker = psutil.Process(int(process.stdout.readline().split()[1]))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.iterdir()) == []
    _, alive = psutil.wait_procs([worker], timeout=30)
    assert not alive


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        feeder.filtered(SOURCE, third, path=tmp_path / "kept", num_workers=0)
    assert list(tmp_path.iterdir()) == []


def test_how_many_are_kept_is_logged_and_nothing_is_drawn_where_nobody_looks(caplog, capfd):
    with caplog.at_level(logging.INFO, "feeder"):
        feeder.filtered(SOURCE, third, num_workers=0)
    assert "feeder.filtered keeps 334 of 1000 records" in caplog.text
    assert "it/s" not in "".join(capfd.readouterr())


def test_none_kept_is_a_source_without_records():
    assert len(feeder.filtered(SOURCE, lambda record: False, num_workers=0)) == 0
    assert len(feeder.filtered([], bool)) == 0


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"predicate": 3},
            TypeError,
            "`predicate` must be callable as predicate(record), got 3",
        ),
        ({"path": 3}, TypeError, "`path` must be the name of a file, got 3"),
        ({"path": "/"}, ValueError, "`path` must be the name of a file, got the folder /"),
        (
            {"path": "/no/kept"},
            ValueError,
            "`path` must be in a folder that exists, got /no/kept; make /no",
        ),
        ({"progress": 1}, TypeError, "`progress` must be True or False, got 1"),
    ],
)
def test_bad_arguments_say_what_to_change(options, kind, message):
    with pytest.raises(kind) as caught:
        feeder.filtered(SOURCE, **{"predicate": third} | options)
    assert str(caught.value) == message
