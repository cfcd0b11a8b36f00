"""`feeder verify`: one line for each way to run a loader, and what differs."""

import itertools
import re

import numpy as np
import pytest

import feeder
from feeder.cli import main
from feeder.cli.subject import Subject
from feeder.cli.verify import Runs
from feeder.testing import digest, joined
from tests.cli import loaders

HERE = "tests/cli/loaders.py"


def verified(capsys, name, *options):
    code = main(["verify", f"{HERE}:{name}", *options])
    out, errors = capsys.readouterr()
    assert errors == ""
    return code, re.sub(r"np.int64\(\d+\)", "np.int64(1)", out)


def test_a_reproducible_loader_passes(capsys):
    expected = digest(loaders.loader(), 10)
    assert verified(capsys, "ready") == (
        0,
        f"""\
{HERE}:ready, 10 batches: must be those of num_workers=0

  ok        num_workers=0, once more
  ok        num_workers=1
  ok        num_workers=2
  ok        num_workers=2, chunks_per_batch=3
  ok        process_count=2, simulated
  ok        all workers killed at step 5
  ok        stopped at step 5, state through JSON, resumed with num_workers=2

the same to the bit: digest {expected}
""",
    )


def test_what_depends_on_its_workers_fails_with_step_leaf_and_row(capsys):
    different = "batch['pid'], row 0, is np.int64(1) in a, np.int64(1) in b"
    assert verified(capsys, "depends_on_workers", "--steps", "2") == (
        1,
        f"""\
{HERE}:depends_on_workers, 2 batches: must be those of num_workers=0

  ok        num_workers=0, once more
  FAILED    num_workers=1: step 0: {different}
  FAILED    num_workers=2: step 0: {different}
  FAILED    num_workers=2, chunks_per_batch=3: step 0: {different}
  ok        process_count=2, simulated
  left out  all workers killed at step 1: it needs 5 steps
  FAILED    stopped at step 1, state through JSON, resumed with num_workers=2: step 1: {different}

4 of 6 differ; a is the run with num_workers=0, b that of the line
""",
    )


def test_a_function_gets_the_arguments_that_it_takes():
    runs = Runs.of(Subject("x", loaders.seeded_by_workers), 3)
    assert runs.compare(runs.made(num_workers=1)).startswith("step 0: batch['image'], row 0, is ")
    with pytest.raises(feeder.StateError):
        runs.compare(runs.resumed(1))


def test_a_stream_is_verified_and_told_what_it_lacks(capsys):
    code, out = verified(capsys, "stream", "--steps", "6")
    assert code == 0
    assert out.count("  ok        ") == 7
    assert re.search(r"\nwarning: \d+ records of the stream were read again, .+\n\nthe same", out)


def left_out(make, steps):
    """Names of checks that mean nothing, with the reason."""
    checks = Runs.of(Subject("x", make), steps).checks()
    return {check.name: check.left_out for check in checks if check.left_out}


def test_what_means_nothing_is_left_out_with_the_reason():
    chunks, killed = "num_workers=2, chunks_per_batch=3", "all workers killed at step 2"
    assert left_out(loaders.of_odd_batches, 5) == {
        "process_count=2, simulated": "batches of 1 to 3 rows cannot be split evenly",
        killed: "it needs 5 steps",
    }
    assert left_out(loaders.collated, 5) == {
        chunks: "`collate` sees the whole batch, which is built in one piece"
    }
    assert left_out(lambda: loaders.loader(worker_type="thread"), 5) == {
        chunks: "threads build batches in one piece",
        killed: "threads cannot be killed",
    }
    assert left_out(lambda: feeder.DataLoader(loaders.rows(29), 4, last_batch="keep"), 5) == {
        "process_count=2, simulated": '`last_batch="keep"` ends each epoch with a batch of 1 rows, '
        'which 2 processes cannot split evenly; use "pad"'
    }
    assert left_out(loaders.live_anew, 5) == {
        chunks: "a callable's batches are built in one piece",
        "process_count=2, simulated": "every process asks a callable of its own for its rows",
        "stopped at step 2, state through JSON, resumed with num_workers=2": "the callable has no "
        "state_dict() and load_state_dict()",
    }


def test_live_data_are_verified_where_they_can_begin_anew(capsys):
    saved = Runs.of(Subject("x", loaders.saved), 6)
    assert saved.compare(saved.killed(2)) == saved.compare(saved.resumed(3)) == ""
    anew = Runs.of(Subject("x", loaders.live_anew), 6)
    assert anew.compare(anew.made()) == ""
    assert main(["verify", f"{HERE}:live"]) == 2
    assert capsys.readouterr().err == (
        f"feeder verify: error: `{HERE}:live` gives live batches, each of them once, so no two "
        "runs can be compared; name a function that returns a new loader, or give the callable "
        "state_dict() and load_state_dict()\n"
    )


def test_with_a_sharding_batches_are_compared_on_the_host():
    assert Runs.of(Subject("x", loaders.sharded), 5).digest == digest(loaders.loader(), 5)


def test_what_is_not_seeded_differs_from_itself(capsys):
    draws = itertools.count()

    def unseeded(record):
        return {**record, "draw": np.int64(next(draws))}

    runs = Runs.of(Subject("x", lambda: loaders.loader(transforms=[unseeded])), 3)
    assert runs.compare(runs.made()) == (
        "step 0: it is never the same, whatever the workers: not seeded?"
    )


def test_a_run_that_ends_before_the_other_differs():
    runs = Runs.of(Subject("x", loaders.loader), 4)
    assert runs.compare(itertools.islice(runs.made(), 2)) == "step 2: it has ended before"


def test_values_without_rows_are_those_of_every_process():
    def scaled(batch):
        return {**batch, "scale": 2.0}

    runs = Runs.of(Subject("x", lambda: loaders.loader(batch_transforms=[scaled])), 3)
    assert runs.compare(runs.on_processes(2)) == ""
    with pytest.raises(AssertionError, match=r"^a leaf without rows is 8 in process 0, 4 in pro"):
        joined([{"rows": 8}, {"rows": 4}])


def test_a_loader_is_made_anew_with_other_arguments():
    loader = loaders.loader(seed=4)
    assert loader.arguments["seed"] == 4
    assert loader.arguments["last_batch"] == "drop"
    with loader.replace(num_workers=1) as other:
        assert digest(other) == digest(loader)
    assert digest(loader.__replace__(seed=5)) == digest(loaders.loader(seed=5))
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'sed'$"):
        loader.replace(sed=5)
    with pytest.raises(ValueError, match=r"^`seed` must be an integer of at least 0, got -1$"):
        loader.replace(seed=-1)
    assert type(loader.replace()) is feeder.DataLoader
