"""The page on the command line: its file, its commands, and what they print."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from feeder.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text()
BLOCKS = re.findall(r"```console\n\$ feeder (.*)\n([^`]*)```", PAGE)


def settled(printed: str) -> list[str]:
    """Its lines, without what every machine measures anew."""
    printed = re.sub(r"after [\d.]+ .?s", "after 1 ms", printed)
    return re.sub(r"has \d+ CPUs?", "has 2 CPUs", printed).splitlines()


def test_every_command_has_a_block():
    assert [command.split()[0] for command, _ in BLOCKS] == [
        "inspect",
        "bench",
        "verify",
        "profile",
    ]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("command", "shown"), BLOCKS, ids=[block[0].split()[0] for block in BLOCKS]
)
def test_its_commands_run_and_print_what_it_shows(command, shown, tmp_path, monkeypatch, capsys):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "data.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    sys.modules.pop("data", None)
    assert main(shlex.split(command)) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    if command.startswith(("inspect", "verify")):
        assert settled(out) == settled(shown)
    elif command.startswith("bench"):
        titles = [line for line in shown.splitlines() if line.startswith("  ") and "/" in line]
        assert titles[0].split() == out.splitlines()[2].split()
