"""The documentation names tests that are there."""

import pathlib
import re

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
