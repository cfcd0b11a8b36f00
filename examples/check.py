"""Runs the examples of several processes, of Orbax, of images and of a replay buffer.

The last two check themselves; what the others stop goes on the same. Ends with a line that says
whether all of this is so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
ENVIRONMENT = {**os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def run(script: str, *options: str) -> list[str]:
    """Runs an example, showing what it prints; returns its lines."""
    print(f"\n=== {script} {' '.join(options)}", flush=True)
    command = [sys.executable, str(FOLDER / script), *options]
    result = subprocess.run(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False
    )
    print(result.stdout, end="", flush=True)
    if result.returncode:
        raise SystemExit(f"FAILED: {script} ended with {result.returncode}")
    return result.stdout.splitlines()


def gpt(folder: Path, *options: str) -> str:
    """The last line of a short training: its last loss, to the bit."""
    return run("train_gpt.py", "--steps=16", "--save-every=4", f"--checkpoints={folder}", *options)[
        -1
    ]


def main() -> int:
    run("train_multihost.py")
    run("train_images.py")  # compares its losses with those without workers
    run("replay_buffer.py", "--workers=2")  # compares its losses with those without workers
    with tempfile.TemporaryDirectory() as folder:
        ENVIRONMENT["JAX_COMPILATION_CACHE_DIR"] = (
            f"{folder}/compiled"  # three runs of one program, one of another
        )
        gpt(Path(folder) / "windows", "--stop-at=4")
        undisturbed = gpt(Path(folder) / "undisturbed", "--packed", "--workers=0")
        gpt(
            Path(folder) / "stopped", "--packed", "--stop-at=10"
        )  # the checkpoint of step 8 is left
        resumed = gpt(Path(folder) / "stopped", "--packed")
    if resumed != undisturbed:
        print(f"FAILED: {resumed}, undisturbed {undisturbed}")
        return 1
    print(f"OK: what the examples say of themselves, and, stopped or not, the same {resumed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
