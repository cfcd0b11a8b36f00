"""The documentation names tests that are there, and its Python runs as it stands."""

import pathlib
import re

import pytest

from tests.jobs import run

ROOT = pathlib.Path(__file__).parents[1]


def test_every_row_of_the_fault_matrix_names_a_test():
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [
        line for line in lines if line.startswith("|") and not line.startswith(("| fault", "|--"))
    ]
    assert len(rows) > 50
    for row in rows:
        path, name = re.search(r"`([\w/]+\.py)::(\w+)` \|$", row).groups()
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), row


@pytest.mark.parametrize(("kind", "num_processes"), [("", 1), (" job=2", 2)])
def test_the_blocks_of_the_page_on_hosts_run(kind, num_processes):
    text = (ROOT / "docs" / "hosts.md").read_text()
    blocks = re.findall(rf"```python{kind}\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    for code, out, errors in run("\n".join(blocks), num_processes, num_devices=8 // num_processes):
        assert code == 0, errors
        if num_processes == 2:
            assert "(64,) 4\n" in out
            assert "`first records`: {" in out


def test_the_blocks_of_the_page_on_monitoring_run():
    text = (ROOT / "docs" / "monitoring.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    (code, out, errors) = run("\n".join(blocks), 1)[0]
    assert code == 0, errors
    assert "The workers cannot keep up" in out
    assert out.endswith(".pb\n")


def test_the_blocks_of_the_page_on_language_models_run():
    text = (ROOT / "docs" / "language_models.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    (code, out, errors) = run("\n".join(blocks), 1)[0]
    assert code == 0, errors
    assert out.startswith("Packed(2000 documents in 3011 records of 1024 tokens, fill_ratio=0.99")


def test_the_blocks_of_the_page_on_streams_run():
    text = (ROOT / "docs" / "streams.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    (code, out, errors) = run("\n".join(blocks), 1)[0]
    assert code == 0, errors
    assert out.endswith("(64, 4)\n")


def test_the_blocks_of_the_page_on_composition_run(tmp_path):
    text = (ROOT / "docs" / "composition.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 6
    (code, out, errors) = run(
        "\n".join(["import os, sys; os.chdir(sys.argv[4])", *blocks]), 1, str(tmp_path)
    )[0]
    assert code == 0, errors
    assert out.endswith("72 of 96 rows\n")
    assert [file.name for file in tmp_path.iterdir()] == ["short.npz"]


def test_the_blocks_of_the_page_on_sources_run(tmp_path):
    text = (ROOT / "docs" / "sources.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    (code, _, errors) = run(f"import os\nos.chdir({str(tmp_path)!r})\n" + "\n".join(blocks), 1)[0]
    assert code == 0, errors


def test_the_blocks_of_the_page_on_tensorstore_run(tmp_path):
    text = (ROOT / "docs" / "tensorstore.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    (code, out, errors) = run(f"import os\nos.chdir({str(tmp_path)!r})\n" + "\n".join(blocks), 1)[0]
    assert code == 0, errors
    assert out == "3000 (32, 32, 3) 1024\n(8, 64, 48, 1)\n2944\n"
