"""The README's Python, run as it stands: all blocks, one after the other, in one process."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_blocks_of_the_readme_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) > 3
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
