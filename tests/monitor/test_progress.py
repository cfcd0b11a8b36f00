"""A progress bar around batches, which changes nothing but what is seen."""

import io
import operator
import sys

import numpy as np
import pytest

import feeder
from feeder.monitor import bar

from ..support import indices_of, rows


def test_batches_are_those_without_a_bar_and_the_bar_knows_how_many_there_are(monkeypatch):
    monkeypatch.setattr(bar, "_REFRESH_S", 0)
    shown = io.StringIO()
    with feeder.DataLoader(rows(40), 4, num_epochs=2) as loader:
        expected = indices_of(loader)
        batches = feeder.progress(loader, desc="train", file=shown, ascii=True)
        assert indices_of(batches) == expected
        assert list(batches) == []
        batches.close()
        with pytest.raises(feeder.ClosedError):  # it was made there, so it is closed there
            next(batches.batches)
    text = shown.getvalue()
    assert "train: 100%" in text
    assert " 20/20 " in text
    assert " records/s, data wait " in text


def test_an_iterator_stays_open_and_keeps_its_state():
    with feeder.DataLoader(rows(40), 4) as loader:
        batches = iter(loader)
        next(batches)
        shown = io.StringIO()
        with feeder.progress(batches, file=shown) as shown_batches:
            assert shown_batches.batches is batches
            next(shown_batches)
        assert "1/9 " in shown.getvalue()
        assert batches.get_state()["step"] == 2
        assert len(list(batches)) == 8


def test_a_batch_that_failed_comes_with_the_next_next():
    failed = []

    def once(record):
        if record["index"] == 6 and not failed:
            failed.append(6)
            raise ValueError("once")
        return record

    with feeder.DataLoader(rows(12), 4, transforms=[once]) as loader:
        batches = feeder.progress(iter(loader), disable=True)
        next(batches)
        with pytest.raises(ValueError, match="once"):
            next(batches)
        assert indices_of(batches) == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_any_iterable_has_a_bar():
    assert list(feeder.progress(range(5), disable=True)) == [0, 1, 2, 3, 4]
    shown = io.StringIO()
    assert list(feeder.progress((n for n in range(3)), total=3, file=shown)) == [0, 1, 2]
    assert "3/3 " in shown.getvalue()


def test_batches_that_are_left_are_known_where_they_are():
    def left(batches):
        return operator.length_hint(batches, -1)

    with feeder.DataLoader(rows(40), 4, num_epochs=3) as loader:
        batches = iter(loader)
        assert left(batches) == 30
        next(batches)
        saved = batches.get_state()
        assert left(batches) == 29
        assert left(loader.epoch(2)) == 10
    with feeder.DataLoader(rows(40), 8, num_epochs=3) as loader:
        batches = iter(loader)
        batches.set_state(saved, allow_new_batch_size=True)
        assert left(batches) == len(list(batches))
    with feeder.DataLoader(rows(40), 4, num_epochs=None) as loader:
        assert left(iter(loader)) == -1
        assert left(loader.epoch(7)) == 10
    with feeder.DataLoader(feeder.FromCallable(lambda size: None), 4) as loader:
        assert left(iter(loader)) == -1
    with feeder.DataLoader(rows(42), 4, num_epochs=2, last_batch="rollover") as loader:
        assert left(iter(loader)) == 21
        assert left(loader.epoch(1)) == len(list(loader.epoch(1)))


@pytest.mark.parametrize("batches", [3, None])
def test_what_holds_no_batches_is_refused(batches):
    with pytest.raises(TypeError) as found:
        feeder.progress(batches)
    rule = f"`batches` must be an iterator of batches or a loader, got {batches!r}"
    assert str(found.value) == rule


@pytest.mark.parametrize("total", [-1, 2.5])
def test_a_total_that_is_none_is_refused(total):
    with pytest.raises((TypeError, ValueError), match="`total` must be an integer of at least 0"):
        feeder.progress(np.arange(3), total=total)


def test_without_tqdm_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError) as found:
        feeder.progress(range(3))
    text = "feeder.progress needs the package tqdm: pip install 'jax-feeder[progress]'"
    assert str(found.value) == text


def test_the_last_line_is_of_the_whole_run(monkeypatch):
    monkeypatch.setattr(bar, "_REFRESH_S", 0)
    now = iter(range(100))
    monkeypatch.setattr(bar.time, "perf_counter", lambda: float(next(now)))
    shown = io.StringIO()
    list(feeder.progress(["one", "two"], file=shown, ascii=True))
    # A second of each call of the clock: 0 at the start, 1 and 2, 3 and 4, and 5 and 6 at the end.
    assert shown.getvalue().split("\r")[-1].strip().endswith("data wait 33%]")
