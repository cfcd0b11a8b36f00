"""What a hostile reviewer found, and what must never come back."""

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

import feeder

from .support import indices_of, rows, run

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


@WORKERS
def test_a_stop_iteration_of_user_code_is_no_end_of_the_run(num_workers):
    def bad(batch):
        if batch[0] == 4:
            next(iter([]))
        return batch

    with feeder.DataLoader(
        np.arange(10), 2, batch_transforms=[bad], num_workers=num_workers
    ) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        for _ in range(2):
            with pytest.raises(feeder.RecordError, match=r"of step 2 failed: StopIteration: "):
                next(batches)


def in_a_fork(function):
    """Runs a function in a forked copy of this process; whether it went well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forks: rightly
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@WORKERS
def test_a_forked_copy_of_the_process_cannot_disturb_its_parent(num_workers):
    with feeder.DataLoader(np.arange(400), 4, num_workers=num_workers) as loader:
        batches = iter(loader)
        kept = [next(batches)]

        def child():
            kept.clear()
            gc.collect()
            for use in (lambda: next(batches), lambda: next(iter(loader))):
                with pytest.raises(
                    feeder.ClosedError, match=r"^the (loader|iterator) was made before this"
                ):
                    use()
            batches.close()
            loader.close()

        assert in_a_fork(child)
        assert kept[0].tolist() == [0, 1, 2, 3]
        rest = [batch.tolist() for batch in batches]
    assert rest == np.arange(4, 400).reshape(-1, 4).tolist()
    assert in_a_fork(kept.clear)
    assert kept[0].tolist() == [0, 1, 2, 3]


@WORKERS
def test_iterators_in_several_threads_get_their_own_batches(num_workers):
    source = np.arange(4000)
    got = {}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with feeder.DataLoader(source, 4, num_workers=num_workers) as loader:

            def take(name):
                got[name] = list(loader)

            threads = [threading.Thread(target=take, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    for name in range(4):
        assert np.array_equal(np.concatenate(got[name]), source)


def gated(tmp_path, record=0):
    """A transform that waits at one record until `open_gate`, and that function."""
    os.mkfifo(tmp_path / "gate")

    def transform(value):
        if value == record:
            (tmp_path / "reached").touch()
            (tmp_path / "gate").read_text()
        return value

    def open_gate():
        (tmp_path / "gate").write_text("")

    return transform, open_gate


def test_one_iterator_does_not_wait_for_the_batch_of_another(tmp_path):
    transform, open_gate = gated(tmp_path)
    with feeder.DataLoader(
        list(range(40)), 1, transforms=[transform], num_workers=2, prefetch_batches=1
    ) as loader:
        slow, fast = iter(loader), loader.epoch(0)
        fast.set_state({**fast.get_state(), "step": 5, "position": 5})
        next(fast)
        got = []
        thread = threading.Thread(target=lambda: got.extend(int(batch[0]) for batch in slow))
        thread.start()
        assert [int(batch[0]) for batch in fast] == list(range(6, 40))
        assert got == []
        open_gate()
        thread.join()
        assert got == list(range(40))


@pytest.mark.parametrize("close", ["iterator", "loader", "set_state"])
def test_closing_ends_the_wait_of_another_thread(close, tmp_path):
    transform, _open = gated(tmp_path, record=1)
    loader = feeder.DataLoader(
        list(range(4)), 1, transforms=[transform], num_workers=1, prefetch_batches=2
    )
    batches = iter(loader)
    state = batches.get_state()
    next(batches)
    ways = {
        "iterator": batches.close,
        "loader": loader.close,
        "set_state": lambda: batches.set_state(state),
    }
    threading.Timer(0.2, ways[close]).start()
    with pytest.raises(feeder.ClosedError):
        next(batches)
    loader.close()


def test_a_signal_handler_may_close_the_loader_that_is_waited_for(tmp_path):
    transform, _open = gated(tmp_path, record=1)
    loader = feeder.DataLoader(
        list(range(4)), 1, transforms=[transform], num_workers=1, prefetch_batches=2
    )
    batches = iter(loader)
    next(batches)
    previous = signal.signal(signal.SIGUSR1, lambda *_: loader.close())
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(feeder.ClosedError, match=r"^the loader was closed; make a new one$"):
            next(batches)
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_the_program_ends_while_a_daemon_thread_waits_for_a_batch():
    code = """
        import threading, time
        import feeder

        def slow(record):
            if record:
                time.sleep(60)
            return record

        loader = feeder.DataLoader([0, 1, 2], 1, transforms=[slow], num_workers=1)
        batches = iter(loader)
        next(batches)

        def wait():
            try:
                next(batches)
            except feeder.ClosedError:
                pass

        threading.Thread(target=wait, daemon=True).start()
        print("main ends")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "main ends\n", "")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_batch_larger_than_the_limit_is_the_same_error_every_time(num_workers):
    with feeder.DataLoader(
        np.zeros((64, 1000)), 8, num_workers=num_workers, max_memory_bytes=10_000
    ) as loader:
        batches = iter(loader)
        for _ in range(3):
            with pytest.raises(feeder.MemoryLimitError, match=r"^a batch needs a slot of 65,536 "):
                next(batches)
        assert batches.stats().restarts == 0


@pytest.mark.parametrize("num_workers", [1, 4])
def test_prefetching_never_fails_at_the_limit_by_itself(num_workers):
    source = np.arange(40 * 65_536, dtype=np.uint8).reshape(40, 65_536)
    with feeder.DataLoader(
        source, 1, num_workers=num_workers, max_memory_bytes=3 * 65_536, prefetch_batches=20
    ) as loader:
        batches = iter(loader)
        for step, batch in enumerate(batches):
            assert np.array_equal(batch[0], source[step])
            if step == 20:
                batches.set_state(batches.get_state())
        assert step == 39


def test_ctrl_c_twice_loses_no_batch_of_any_iterator(tmp_path):
    go = tmp_path / "go"

    def stubborn(record):
        while record["index"] == 4 and not go.exists():
            signal.sigtimedwait([], 0.01)
        return record

    # Two of them will be stuck, and the third goes round them.
    with feeder.DataLoader(rows(8), 2, transforms=[stubborn], num_workers=3) as loader:
        first, second = iter(loader), iter(loader)
        seen = [indices_of(next(batches) for _ in range(2)) for batches in (first, second)]
        for _ in range(2):
            previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            try:
                with pytest.raises(KeyboardInterrupt):
                    next(first)
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, previous)
        go.touch()
        for got, batches in zip(seen, (first, second), strict=True):
            assert got + indices_of(batches) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@WORKERS
def test_a_message_of_any_length_arrives(num_workers):
    def fail(record):
        raise ValueError("漢" * 200_000)

    with feeder.DataLoader([1, 2], 2, transforms=[fail], num_workers=num_workers) as loader:
        with pytest.raises((ValueError, feeder.RecordError)) as caught:
            next(iter(loader))
    where = caught.value.__cause__ or caught.value
    assert where.index == 0
    record = {f"column {k} {'x' * 40}": np.int8(k % 100) for k in range(3000)}
    (batch,) = run([record, record], 2, num_workers=num_workers)
    assert batch.keys() == record.keys()
    (texts,) = run(["é" * 300_000, "b"], 2, num_workers=num_workers)
    assert texts.tolist() == ["é" * 300_000, "b"]


class Unloadable:
    def __reduce__(self):
        return int, ("no number",)


def test_an_object_that_cannot_be_loaded_here_fails_its_own_batch_alone():
    def spoil(record):
        return Unloadable() if record == 5 else {"x": record}["x"]

    with feeder.DataLoader([*"abcd", 5, "e"], 2, transforms=[spoil], num_workers=1) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [["a", "b"], ["c", "d"]]
        with pytest.raises(ValueError, match="no number"):
            next(batches)
        assert batches.stats().restarts == 0
        assert batches.get_state()["step"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": 5}, "`state` must have the position of its step, 8 of step 2, got 5: it is"),
        ({"step": 1000}, "`state` must have the position of its step, 4000 of step 1000, got 8: "),
    ],
)
def test_a_state_whose_numbers_do_not_fit_each_other_is_refused(change, message):
    with feeder.DataLoader(rows(40), 4, num_epochs=None) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        with pytest.raises(feeder.StateError, match=f"^{re.escape(message)}"):
            batches.set_state({**batches.get_state(), **change})


def test_a_parent_that_ignores_its_children_still_hears_how_workers_end(tmp_path):
    code = """
        import os, signal
        import feeder
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        def die(record):
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            next(iter(feeder.DataLoader([0, 1], 2, transforms=[die], num_workers=1)))
        except feeder.WorkerDiedError as error:
            print(error.step, error.exit_codes)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "0 [-9, -9, -9]\n"


@pytest.mark.parametrize("max_memory_bytes", [10**13, 2**60])
@WORKERS
def test_a_limit_beyond_all_memory_is_no_limit(max_memory_bytes, num_workers):
    options = {"num_workers": num_workers, "max_memory_bytes": max_memory_bytes}
    assert len(run(rows(8), 4, **options)) == 2


def test_an_interrupted_build_in_this_process_leaks_no_slot():
    def interrupt(record):
        if record["index"] == 5 and interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return record

    interrupts = list(range(30))
    source = {"index": np.arange(16), "x": np.zeros((16, 4096), np.uint8)}
    with feeder.DataLoader(source, 4, transforms=[interrupt], max_memory_bytes=65_536) as loader:
        batches = iter(loader)
        seen = indices_of([next(batches)])
        for _ in range(30):
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        assert seen + indices_of(batches) == np.arange(16).reshape(4, 4).tolist()


class Reusing:
    """A source that hands out one buffer, with another record in it each time."""

    def __init__(self):
        self.buffer = np.zeros(3)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.buffer[:] = index
        return self.buffer


def test_a_source_or_a_transform_may_use_one_buffer_for_all_its_records():
    with feeder.DataLoader(Reusing(), 4) as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    buffer = np.zeros(3)

    def into_buffer(number):
        buffer[:] = number
        return buffer

    for source in (list(range(8)), lambda: iter(range(8))):
        with feeder.DataLoader(source, 4, transforms=[into_buffer]) as loader:
            assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
