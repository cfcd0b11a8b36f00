"""The promise, over every source there is: the same records, whoever reads them, come what may."""

import json
import signal

import pytest

import feeder
from feeder.testing import assert_reproducible, assert_same_batches
from tests.sources.makers import MAKERS
from tests.support import as_bytes, kill_one

each_source = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=getattr(make, "pytestmark", ()))
        for name, make in MAKERS.items()
    ],
)
WHOLE = {"shuffle": True, "seed": 3, "num_epochs": 2, "last_batch": "keep"}
BATCH = 8


@each_source
def test_its_records_are_those_of_a_list_of_them(make, tmp_path):
    source, records = make(tmp_path)
    if records is None:
        source, records = make(tmp_path)[0], make(tmp_path)[0]
    with (
        feeder.DataLoader(source, BATCH, **WHOLE) as loader,
        feeder.DataLoader(records, BATCH, **WHOLE) as expected,
    ):
        assert_same_batches(loader, expected)


@each_source
def test_no_number_of_workers_or_processes_and_no_resume_changes_a_batch(make, tmp_path):
    make(tmp_path)

    def loader(**options):
        return feeder.DataLoader(
            make(tmp_path)[0], BATCH, **{**WHOLE, "last_batch": "drop"} | options
        )

    assert_reproducible(loader, num_workers=(0, 2), process_counts=(2,))


@each_source
def test_threads_and_chunks_change_no_batch(make, tmp_path):
    source, _ = make(tmp_path)
    with (
        feeder.DataLoader(source, BATCH, **WHOLE) as expected,
        feeder.DataLoader(
            make(tmp_path)[0], BATCH, **WHOLE, num_workers=2, worker_type="thread"
        ) as threads,
        feeder.DataLoader(
            make(tmp_path)[0], BATCH, **WHOLE, num_workers=2, chunks_per_batch=2
        ) as chunks,
    ):
        assert_same_batches(threads, expected)
        assert_same_batches(chunks, expected)


@each_source
def test_killed_workers_and_a_resume_change_no_batch(make, tmp_path):
    source, _ = make(tmp_path)
    with feeder.DataLoader(source, BATCH, **WHOLE) as loader:
        expected = list(map(as_bytes, loader))
    got = []
    with feeder.DataLoader(make(tmp_path)[0], BATCH, **WHOLE, num_workers=2) as loader:
        with iter(loader) as batches:
            for _ in range(5):
                got.append(as_bytes(next(batches)))
                kill_one(batches, signal.SIGKILL, len(got))
            saved = json.dumps(batches.get_state())
        with iter(loader) as batches:
            batches.set_state(json.loads(saved))
            got.extend(map(as_bytes, batches))
    assert got == expected
