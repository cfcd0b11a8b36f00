"""Real processes, real signals: nothing hangs, nothing is lost, nothing is left behind."""

import contextlib
import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import psutil
import pytest

import feeder

from .support import indices_of, rows


def dying_at(bad, how, once=None):
    """A transform that ends its worker at a record; only the first time, with a file ``once``."""

    def transform(record):
        if record["index"] == bad and not (once and once.exists()):
            if once:
                once.touch()
            how()
        return record

    return transform


def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def exit_quietly():
    os._exit(0)


WAYS = pytest.mark.parametrize(
    ("how", "exit_code", "text"),
    [
        (sigkill, -9, "SIGKILL, SIGKILL, SIGKILL (SIGKILL: most often the kernel, out of memory)"),
        (segfault, -11, "SIGSEGV, SIGSEGV, SIGSEGV"),
        (exit_quietly, 0, "exit code 0, exit code 0, exit code 0"),
    ],
)


@WAYS
def test_a_worker_that_dies_once_is_replaced_and_its_batch_computed_again(
    how, exit_code, text, tmp_path, caplog
):
    transforms = [dying_at(17, how, once=tmp_path / "died")]
    with feeder.DataLoader(rows(40), 4, transforms=transforms, num_workers=2) as loader:
        batches = iter(loader)
        assert sum(indices_of(batches), []) == list(range(40))
        assert batches.stats().restarts == 1
    (record,) = caplog.records
    assert record.name == "feeder"
    assert re.fullmatch(
        rf"worker process \d+ ended with {re.escape(text.split(', ')[0])}.*; it is replaced",
        record.message,
    )


@WAYS
def test_a_batch_that_kills_three_workers_is_an_error_at_its_place(how, exit_code, text):
    transforms = [dying_at(17, how)]
    with feeder.DataLoader(rows(40), 4, transforms=transforms, num_workers=2) as loader:
        batches = iter(loader)
        seen = indices_of(next(batches) for _ in range(4))
        with pytest.raises(feeder.WorkerDiedError) as caught:
            next(batches)
        assert sum(seen, []) == list(range(16))
        assert batches.get_state()["step"] == 4
    assert str(caught.value) == (
        f"3 worker processes ended while they built step 4, with {text}; one of its records is at "
        "fault: 16, 17, 18, 19"
    )
    assert caught.value.step == 4
    assert caught.value.indices == [16, 17, 18, 19]
    assert caught.value.exit_codes == [exit_code] * 3


def test_workers_that_die_while_they_start_are_an_error_not_a_loop():
    with feeder.DataLoader([DiesInWorkers()] * 4, 2, num_workers=2) as loader:
        with pytest.raises(feeder.WorkerDiedError) as caught:
            next(iter(loader))
    assert str(caught.value) == (
        "3 worker processes in a row ended while they loaded the source and the transforms, with "
        "exit code 5, exit code 5, exit code 5; their standard error may tell why; "
        "`num_workers=0` runs the same code in this process"
    )
    assert caught.value.step is None


class DiesInWorkers:
    def __reduce__(self):
        return os._exit, (5,)


def test_a_zygote_that_cannot_start_is_an_error_not_a_loop(monkeypatch, capfd, tmp_path):
    script = tmp_path / "boot.py"
    script.write_text("raise SystemExit('no numpy here')")
    monkeypatch.setattr("feeder.produce.boot.__file__", str(script))
    with feeder.DataLoader(rows(8), 2, num_workers=2) as loader:
        with pytest.raises(feeder.WorkerDiedError, match=r"^the process that starts workers ended"):
            next(iter(loader))
    assert "no numpy here" in capfd.readouterr().err


def test_closing_leaves_no_process_descriptor_or_memory():
    def one_run():
        with feeder.DataLoader(rows(400), 8, num_workers=2) as loader:
            next(iter(loader))

    one_run()
    gc.collect()
    me = psutil.Process()
    before = me.num_fds()
    for _ in range(20):
        one_run()
    gc.collect()
    assert me.num_fds() == before
    assert me.children(recursive=True) == []


def test_a_loader_that_is_dropped_ends_its_workers():
    loader = feeder.DataLoader(rows(400), 8, num_workers=2)
    for _ in loader:
        break
    assert len(psutil.Process().children(recursive=True)) == 3
    del loader
    gc.collect()
    assert psutil.Process().children(recursive=True) == []


def test_an_iterator_keeps_the_workers_of_a_loader_that_is_dropped():
    batches = iter(feeder.DataLoader(rows(40), 4, num_workers=2))
    gc.collect()
    assert sum(indices_of(batches), []) == list(range(40))


def test_a_closed_loader_and_a_closed_iterator_say_so():
    loader = feeder.DataLoader(rows(40), 4, num_workers=1)
    closed, batches = iter(loader), iter(loader)
    closed.close()
    closed.close()
    with pytest.raises(feeder.ClosedError, match=r"^the iterator was closed; make a new one with"):
        next(closed)
    with pytest.raises(feeder.ClosedError, match=r"^the iterator was closed; make a new one with"):
        closed.set_state({})
    next(batches)
    loader.close()
    loader.close()
    with pytest.raises(feeder.ClosedError, match=r"^the loader was closed; make a new one$"):
        list(batches)
    with pytest.raises(feeder.ClosedError, match=r"^the loader was closed; make a new one$"):
        iter(loader)


def test_a_closed_loader_without_workers_says_so():
    loader = feeder.DataLoader(rows(40), 4)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(feeder.ClosedError, match=r"^the loader was closed; make a new one$"):
        list(batches)


SCRIPT = """
    import os, signal, sys
    import numpy as np
    import feeder

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run behind a "&"

    def stuck(record):
        read, write = os.pipe()
        if record >= 4:
            os.read(read, 1)
        return record

    loader = feeder.DataLoader(list(range(64)), 2, transforms=[stuck], num_workers=3)
    batches = iter(loader)
    next(batches), next(batches)
    print("ready", flush=True)
    sys.stdin.readline()
    {ending}
"""


@contextlib.contextmanager
def started(ending):
    """A process with three busy workers, and its family: the zygote and the workers."""
    code = textwrap.dedent(SCRIPT).format(ending=ending)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) >= 3  # the third worker may still be on its way
            process.stdin.write("go\n")
            process.stdin.flush()
            yield process, family
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_parent_that_is_killed_while_its_workers_are_busy(number):
    with started("sys.stdin.read()") as (process, family):
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    _, alive = psutil.wait_procs(family, timeout=2)
    assert alive == []
    if number == signal.SIGINT:
        assert errors.count("Traceback") == 1, errors
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert errors == ""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("loader.close()", 0),
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('in the loop')", 1),
        ("del loader, batches", 0),
        ("os._exit(4)", 4),
    ],
)
def test_nothing_outlives_a_parent_that_ends(ending, code):
    with started(ending) as (process, family):
        _, errors = process.communicate(timeout=10)
    assert process.returncode == code
    _, alive = psutil.wait_procs(family, timeout=2)
    assert alive == []
    assert errors.count("Traceback") == (1 if code == 1 else 0)


def test_a_script_needs_no_main_guard_and_workers_do_not_run_it_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import numpy as np
            import feeder

            print("main runs")

            class Config:
                scale = 3

            def transform(record):
                import __main__
                assert not hasattr(__main__, "loader")
                assert "jax" not in sys.modules
                return record * Config.scale

            loader = feeder.DataLoader(np.arange(8), 4, transforms=[transform], num_workers=2)
            print([batch.tolist() for batch in loader])
            assert "jax" not in sys.modules
            """
        )
    )
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stderr == ""
    assert result.stdout == "main runs\n[[0, 3, 6, 9], [12, 15, 18, 21]]\n"


def test_what_a_worker_prints_is_seen_even_if_it_is_killed(capfd, tmp_path):
    def speak(record):
        print("record", record, flush=False)
        return record

    with feeder.DataLoader(list(range(4)), 2, transforms=[speak], num_workers=1) as loader:
        batches = iter(loader)
        for _ in batches:
            pass
        for pid in batches.stats().worker_pids:
            os.kill(pid, signal.SIGKILL)
    assert capfd.readouterr().out == "".join(f"record {k}\n" for k in range(4))


def test_workers_take_no_accelerator_and_no_threads():
    def environment(record):
        names = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        return {
            **{name: os.environ[name] for name in names},
            "threads": psutil.Process().num_threads(),
        }

    with feeder.DataLoader([0, 1], 2, transforms=[environment], num_workers=1) as loader:
        (batch,) = loader
    assert {name: set(values.tolist()) for name, values in batch.items()} == {
        "JAX_PLATFORMS": {"cpu"},
        "CUDA_VISIBLE_DEVICES": {""},
        "OMP_NUM_THREADS": {"1"},
        "threads": {1},
    }


def test_a_large_source_is_shared_by_the_workers_not_copied():
    source = np.ones((64, 1 << 20), np.uint8)

    def private_bytes(record):
        assert record[0] == 1
        with open("/proc/self/status") as status:
            (line,) = [line for line in status if line.startswith("RssAnon")]
        return np.int64(line.split()[1]) * 1024

    with feeder.DataLoader(source, 4, transforms=[private_bytes], num_workers=2) as loader:
        assert max(int(batch.max()) for batch in loader) < 40 << 20


def test_nothing_lies_in_dev_shm():
    def listed():  # but for what other tests' browser and locks leave there meanwhile
        names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
        return {name for name in names if not name.startswith((".org.chromium", "sem."))}

    before = listed()
    with feeder.DataLoader(rows(400), 8, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        for pid in (os.getpid(), *batches.stats().worker_pids):
            with open(f"/proc/{pid}/maps") as maps:
                assert "/dev/shm/" not in maps.read().replace("/dev/shm/sem.", "")
        assert listed() == before
