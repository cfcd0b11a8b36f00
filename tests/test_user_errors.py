"""What user code raises arrives as its own type, with where it happened; never past it."""

import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import feeder

from .support import indices_of, rows, run

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2])


class PlainError(Exception):
    pass


class StubbornError(Exception):
    """Pickles, but does not unpickle: its __init__ wants more than its args."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


class UnsendableError(Exception):
    pass


def local_error():
    class LocalError(Exception):
        pass

    return LocalError("here")


def failing_at(bad, error):
    def transform(record):
        if record["index"] == bad:
            raise error
        return record

    return transform


@WORKERS
def test_an_exception_keeps_its_type_and_tells_step_position_and_record(num_workers):
    with feeder.DataLoader(
        rows(40),
        4,
        transforms=[failing_at(22, PlainError("no good"))],
        num_workers=num_workers,
        num_epochs=2,
    ) as loader:
        batches = iter(loader)
        assert len(indices_of(next(batches) for _ in range(5))) == 5
        with pytest.raises(PlainError, match=r"^no good$") as caught:
            next(batches)
    where = caught.value.__cause__
    assert isinstance(where, feeder.RecordError)
    assert (where.step, where.position, where.index) == (5, 22, 22)
    assert where.stage == "transform"
    assert str(where).startswith(
        "the transform of step 5 failed at record 22 (position 22): "
        f"{__name__}.PlainError: no good\n\nTraceback (most recent call last):"
    )
    assert "in transform\n    raise error" in where.worker_traceback


@WORKERS
def test_an_iterator_that_raised_goes_on_exactly_where_the_batch_is_missing(num_workers, tmp_path):
    def flaky(record):
        fixed = tmp_path / "fixed"
        if record["index"] == 9 and not fixed.exists():
            fixed.touch()
            raise OSError("for once")
        return record

    with feeder.DataLoader(rows(20), 4, transforms=[flaky], num_workers=num_workers) as loader:
        batches = iter(loader)
        seen = indices_of(next(batches) for _ in range(2))
        with pytest.raises(OSError, match=r"^for once$"):
            next(batches)
        assert batches.get_state()["step"] == 2
        seen += indices_of(batches)
    assert sum(seen, []) == list(range(20))


@WORKERS
def test_an_iterator_never_passes_a_batch_that_keeps_failing(num_workers):
    transforms = [failing_at(5, ValueError("always"))]
    with feeder.DataLoader(rows(20), 4, transforms=transforms, num_workers=num_workers) as loader:
        batches = iter(loader)
        next(batches)
        for _ in range(3):
            with pytest.raises(ValueError, match=r"^always$"):
                next(batches)
            assert batches.get_state()["step"] == 1


@WORKERS
@pytest.mark.parametrize(
    ("make", "stage", "names_record"),
    [
        (lambda fail: {"source": Failing(fail)}, "read", True),
        (lambda fail: {"source": FailingRead(fail)}, "read", False),
        (lambda fail: {"collate": fail}, "collate", False),
        (lambda fail: {"batch_transforms": [fail]}, "batch_transform", False),
        (lambda fail: {"transforms": [feeder.RandomMap(fail)]}, "transform", True),
    ],
)
def test_every_stage_is_named(num_workers, make, stage, names_record):
    def fail(*_):
        raise KeyError("gone")

    options = {"source": rows(8), **make(fail)}
    with feeder.DataLoader(options.pop("source"), 4, num_workers=num_workers, **options) as loader:
        with pytest.raises(KeyError) as caught:
            next(iter(loader))
    where = caught.value.__cause__
    assert where.stage == stage
    assert (where.index is not None) == names_record


class Failing:
    def __init__(self, fail):
        self.fail = fail

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.fail(index)


class FailingRead(Failing):
    def read(self, indices):
        return self.fail(indices)


@WORKERS
def test_an_exception_with_an_init_of_its_own_keeps_type_args_and_fields(num_workers):
    def transform(record):
        if record["index"] == 1:
            raise StubbornError(7, "odd")
        return record

    with feeder.DataLoader(rows(4), 2, transforms=[transform], num_workers=num_workers) as loader:
        with pytest.raises(StubbornError, match=r"^7: odd$") as caught:
            next(iter(loader))
    assert caught.value.code == 7
    assert caught.value.__cause__.index == 1


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("make", [lambda: UnsendableError(threading.Lock()), local_error])
def test_an_exception_that_cannot_be_sent_arrives_as_text(num_workers, make):
    def transform(record):
        if record["index"] == 1:
            raise make()
        return record

    with feeder.DataLoader(rows(4), 2, transforms=[transform], num_workers=num_workers) as loader:
        with pytest.raises(feeder.RecordError) as caught:
            next(iter(loader))
    assert re.match(
        r"the transform of step 0 failed at record 1 \(position 1\): \S+(Unsendable|Local)Error: ",
        str(caught.value),
    )
    assert caught.value.index == 1


def test_classes_of_the_users_script_come_home_as_themselves(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from typing import NamedTuple
            import numpy as np
            import feeder

            class Sample(NamedTuple):
                image: object
                name: object

            class OwnError(Exception):
                pass

            class Label:
                def __init__(self, text):
                    self.text = text

            def transform(record):
                if record.name.text == "3":
                    raise OwnError("three")
                return record

            records = [Sample(np.full(2, k), Label(str(k))) for k in range(4)]
            with feeder.DataLoader(records, 2, transforms=[transform], num_workers=1) as loader:
                batches = iter(loader)
                first = next(batches)
                assert type(first) is Sample and type(first.name[0]) is Label
                assert [label.text for label in first.name] == ["0", "1"]
                try:
                    next(batches)
                except OwnError as error:
                    print(error, error.__cause__.index)
            """
        )
    )
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == ("three 3\n", "")


def test_records_that_cannot_be_sent_home_are_an_error_not_a_death():
    class Local:
        pass

    with feeder.DataLoader(
        list(range(4)), 2, transforms=[lambda record: Local()], num_workers=1
    ) as loader:
        batches = iter(loader)
        with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
            next(batches)
        assert batches.stats().restarts == 0
    assert caught.value.__notes__ == [
        "Records reach the loop by pickle: define their classes in a module."
    ]


@WORKERS
@pytest.mark.parametrize(
    "transform", [lambda record: None, feeder.RandomMap(lambda record, rng: None)]
)
def test_a_transform_that_forgets_to_return_is_told_so(num_workers, transform):
    message = "`transforms[1]` must return the new record, got None; does it end without a return?"
    options = {"transforms": [lambda record: record, transform], "num_workers": num_workers}
    with feeder.DataLoader(rows(4), 2, **options) as loader:
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            next(iter(loader))


@WORKERS
def test_sys_exit_in_user_code_is_an_exception_like_others(num_workers):
    with feeder.DataLoader(
        rows(4), 2, transforms=[failing_at(0, SystemExit(3))], num_workers=num_workers
    ) as loader:
        with pytest.raises(SystemExit):
            next(iter(loader))


@WORKERS
@pytest.mark.parametrize(
    ("records", "message", "leaf", "expected", "got"),
    [
        (
            [{"x": np.zeros((2, 3))}, {"x": np.zeros((3, 2))}],
            "record['x'] must have the same shape in every record of a batch, got (3, 2) in record "
            "1 and (2, 3) in record 0, in step 0; make them equal in a transform, or give a "
            "`collate` that can join them",
            "record['x']",
            (2, 3),
            (3, 2),
        ),
        (
            [{"x": np.float32(1)}, {"x": np.float64(1)}],
            "record['x'] must have the same dtype in every record of a batch, got float64 in "
            "record 1 and float32 in record 0, in step 0; make them equal in a transform, or give "
            "a `collate` that can join them",
            "record['x']",
            np.dtype("float32"),
            np.dtype("float64"),
        ),
        (
            [1, 2.5],
            "record must have the same dtype in every record of a batch, got float64 in record 1 "
            "and int64 in record 0, in step 0; make them equal in a transform, or give a `collate` "
            "that can join them",
            "record",
            np.dtype("int64"),
            np.dtype("float64"),
        ),
        (
            [(1, "a"), (1, 2)],
            "record[1] must have the same dtype in every record of a batch, got int64 (int) in "
            "record 1 and an object in record 0, in step 0; make them equal in a transform, or "
            "give a `collate` that can join them",
            "record[1]",
            "an object",
            "int64 (int)",
        ),
        (
            [np.array(["ab"]), np.array(["abc"])],
            "record must have the same dtype in every record of a batch, got <U3 in record 1 and "
            "<U2 in record 0, in step 0; make them equal in a transform, or give a `collate` that "
            "can join them",
            "record",
            np.dtype("<U2"),
            np.dtype("<U3"),
        ),
    ],
)
def test_a_leaf_that_differs_names_itself_both_values_and_the_record(
    num_workers, records, message, leaf, expected, got
):
    with feeder.DataLoader(records, 2, num_workers=num_workers) as loader:
        with pytest.raises(feeder.RecordMismatchError, match=f"^{re.escape(message)}$") as caught:
            next(iter(loader))
    error = caught.value
    assert (error.leaf, error.expected, error.got) == (leaf, expected, got)
    assert (error.step, error.position, error.index) == (0, 1, 1)


@WORKERS
def test_a_record_of_another_structure_is_refused(num_workers):
    with feeder.DataLoader([{"a": 1}, {"b": 1}], 2, num_workers=num_workers) as loader:
        with pytest.raises(
            feeder.RecordMismatchError, match=r"^record must have the same structure in every"
        ) as caught:
            next(iter(loader))
    assert caught.value.index == 1


@WORKERS
def test_a_read_that_returns_another_number_of_rows_is_refused(num_workers):
    class Short(Failing):
        def read(self, indices):
            return {"x": np.zeros(len(indices) - 1)}

    message = (
        "`read(indices)` must return 4 rows for 4 indices in every leaf, got shape (3,) at "
        "batch['x'] in step 0"
    )
    with feeder.DataLoader(Short(None), 4, num_workers=num_workers) as loader:
        with pytest.raises(feeder.RecordMismatchError, match=f"^{re.escape(message)}$"):
            next(iter(loader))


@WORKERS
def test_a_leaf_named_mask_is_refused_with_pad(num_workers):
    message = (
        "a batch must not have a leaf 'mask' of its own with `last_batch=\"pad\"`, which adds one; "
        "give it another name in a transform"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        run({"mask": np.zeros(4)}, 4, last_batch="pad", num_workers=num_workers)


def test_a_recipe_that_cannot_be_loaded_in_a_worker_says_why():
    with feeder.DataLoader([OnlyHere()] * 4, 2, num_workers=2) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(ImportError, match=r"^not in a worker$") as caught:
                next(batches)
    where = caught.value.__cause__
    assert where.stage == "start"
    assert str(where).startswith("the start of a worker failed: ImportError: not in a worker\n\n")


def _refuse():
    raise ImportError("not in a worker")


class OnlyHere:
    def __reduce__(self):
        return _refuse, ()


def test_ctrl_c_while_waiting_interrupts_at_once_and_loses_nothing(tmp_path):
    go = tmp_path / "go"

    def slow(record):
        while record["index"] == 6 and not go.exists():
            signal.sigtimedwait([], 0.01)
        return record

    with feeder.DataLoader(rows(20), 2, transforms=[slow], num_workers=2) as loader:
        batches = iter(loader)
        seen = indices_of(next(batches) for _ in range(3))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        finally:
            signal.signal(signal.SIGALRM, previous)
        go.touch()
        seen += indices_of(batches)
    assert sum(seen, []) == list(range(20))
