"""How a loader is named, and what becomes of errors, whatever the command."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.cli import main
from feeder.version import VERSION

ROOT = Path(__file__).parents[2]
HERE = "tests/cli/loaders.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "loaders",
            "the loader must be named module:loader or path/to/file.py:loader, got 'loaders'",
        ),
        (
            f"{HERE}:",
            "the loader must be named module:loader or path/to/file.py:loader, got "
            "'tests/cli/loaders.py:'",
        ),
        (
            "no_such_module:loader",
            f"there is no module 'no_such_module' in {ROOT}, nor among those installed; run the "
            "command where it is, or name the file: path/to/file.py:loader",
        ),
        (
            "tests.cli.nothing:loader",
            f"there is no module 'tests.cli.nothing' in {ROOT}, nor among those installed; run the "
            "command where it is, or name the file: path/to/file.py:loader",
        ),
        (".loaders:loader", "the module must be named as in an import, got '.loaders'"),
        ("tests/nothing.py:loader", f"there is no file 'tests/nothing.py' in {ROOT}"),
        ("tests/cli:loader", f"there is no file 'tests/cli' in {ROOT}"),
        (
            "./README.md:loader",
            "the file must be one of Python, with the ending .py, got 'README.md'",
        ),
        (
            f"{HERE}:none",
            "'tests/cli/loaders.py' has no 'none' of 'tests/cli/loaders.py:none'; loaders and "
            "functions in it: live, ready, saved, announced, breaks, broken, collated, "
            "depends_on_workers",
        ),
        (
            f"{HERE}:NUMBER",
            "`tests/cli/loaders.py:NUMBER` must be a feeder.DataLoader, or a function without "
            "required arguments that returns one, got int",
        ),
        (
            f"{HERE}:of_file",
            "`tests/cli/loaders.py:of_file` must be a feeder.DataLoader, or a function without "
            "required arguments that returns one, got of_file(path)",
        ),
        (
            f"{HERE}:no_loader",
            "`tests/cli/loaders.py:no_loader` must return a feeder.DataLoader, got list of "
            "no_loader()",
        ),
    ],
)
def test_what_is_no_loader_is_refused(name, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["inspect", name]) == 2
    assert capsys.readouterr() == ("", f"feeder inspect: error: {message}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "feeder: error: the following arguments are required: command"),
        (["inspect"], "feeder inspect: error: the following arguments are required: loader"),
        (
            ["verify", "a:b", "--steps", "0"],
            "feeder verify: error: argument --steps: must be an integer of at least 1, got '0'",
        ),
        (
            ["bench", "a:b", "--seconds", "nan"],
            "feeder bench: error: argument --seconds: must be a number of seconds above 0, got "
            "'nan'",
        ),
        (
            ["bench", "a:b", "--workers", "1,x"],
            "feeder bench: error: argument --workers: must be numbers like 0,1,2, got '1,x'",
        ),
        (["profile", "a:b"], "feeder profile: error: the following arguments are required: --html"),
        (
            ["profile", "a:b", "--html", "x", "--step-ms", "1", "--no-step"],
            "feeder profile: error: argument --no-step: not allowed with argument --step-ms",
        ),
    ],
)
def test_wrong_arguments_are_explained(argv, message, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err.splitlines()[-1] == message


def test_a_users_exception_is_shown_as_itself_from_the_users_code_on(capsys):
    assert main(["inspect", f"{HERE}:raises"]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith("in raises")
    assert lines[-1] == "RuntimeError: there are no data today"
    assert main(["inspect", f"{HERE}:breaks"]) == 1
    errors = capsys.readouterr().err
    assert errors.endswith("KeyError: 'nothing is known of 1'\n")
    assert "the transform of step 0 failed at record 1 (position 0): KeyError" in errors


def test_a_module_that_cannot_be_imported_is_shown_as_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("needs_more.py").write_text("import there_is_no_such_package\n")
    for name in ("needs_more:loader", "./needs_more.py:loader"):
        assert main(["inspect", name]) == 1
        errors = capsys.readouterr().err
        assert f'"{tmp_path / "needs_more.py"}", line 1' in errors
        assert errors.endswith("No module named 'there_is_no_such_package'\n")
        assert "importlib" not in errors


SCRIPT = """
import dataclasses
import numpy as np
import feeder
from beside import SIZE

@dataclasses.dataclass
class Scaled:
    factor: float

def scale(record):
    return {"x": record["x"] * Scaled(2.0).factor}

class Loaders:
    double = feeder.DataLoader({"x": np.ones((40, 3))}, SIZE, transforms=[scale], num_workers=2)

if __name__ == "__main__":
    raise SystemExit("this is no training")
"""


def test_a_file_is_a_script_whose_functions_reach_the_workers(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train-it.py").write_text(SCRIPT)
    (tmp_path / "folder" / "beside.py").write_text("SIZE = 10\n")
    done = subprocess.run(
        [sys.executable, "-m", "feeder", "inspect", "folder/train-it.py:Loaders.double"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "  batch['x']    2    2     2    0\n" in done.stdout


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jax-feeder {VERSION}\n"


def test_ctrl_c_ends_a_command_and_leaves_no_process():
    process = subprocess.Popen(
        [sys.executable, "-m", "feeder", "bench", f"{HERE}:endless", "--seconds", "600"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while "at work" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert _of_session(process.pid) == []


def _of_session(session):
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def test_a_reader_that_goes_away_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "feeder", "inspect", f"{HERE}:ready"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == ""
    process.stderr.close()
