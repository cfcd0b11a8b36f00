"""Trains the digits three times: undisturbed, with a worker killed, and stopped and resumed.

Ends with a line that says whether all three saw the same batches and learnt the same model.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).with_name("train_digits.py")
SAME = ("digest", "final loss", "held-out accuracy")
LEAST_ACCURACY = 0.97


def train(title: str, *options: str) -> dict[str, str]:
    """Runs the training, showing what it prints; returns its ``name: value`` lines."""
    print(f"\n=== {title}", flush=True)
    command = [sys.executable, str(SCRIPT), *options]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(result.stdout, end="", flush=True)
    return dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = str(Path(folder) / "digits.npz")
        runs = {
            "undisturbed": train("undisturbed"),
            "with a worker killed": train("with a worker killed in mid-run", "--kill-worker"),
        }
        train("stopped in mid-epoch", "--stop-at", "300", "--checkpoint", checkpoint)
        runs["resumed"] = train("resumed", "--resume", checkpoint)

    print()
    first, *others = runs.values()
    differing = [name for name in SAME if any(run[name] != first[name] for run in others)]
    if differing:
        print(f"FAILED: {' and '.join(differing)} differ between {', '.join(runs)}")
        return 1
    if runs["with a worker killed"]["workers replaced"] == "0":
        print("FAILED: no worker was killed")
        return 1
    accuracy = float(first["held-out accuracy"].rstrip("%")) / 100
    if accuracy < LEAST_ACCURACY:
        print(f"FAILED: held-out accuracy {accuracy:.2%} is below {LEAST_ACCURACY:.0%}")
        return 1
    print(
        f"OK: {', '.join(runs)}: the same batches (digest {first['digest'][:16]}…), the same final "
        f"loss to the bit ({float.fromhex(first['final loss']):.6f}), {accuracy:.2%} held-out "
        "accuracy"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
