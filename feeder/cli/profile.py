"""``feeder profile``: writes a page with a timeline of workers, devices and the loop."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

from feeder.cli import options, text
from feeder.cli.report import Profile, page
from feeder.cli.subject import Subject, UsageError
from feeder.monitor.timeline import STEPS_KEPT

_STEPS = 100
_STEP_MS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("--html", type=Path, required=True, metavar="FILE", help="the page")
    parser.add_argument(
        "--steps",
        type=options.count,
        default=_STEPS,
        metavar="N",
        help=f"steps to take ({_STEPS}); the page shows the last {STEPS_KEPT:,}",
    )
    step = parser.add_mutually_exclusive_group()
    step.add_argument(
        "--step-ms",
        type=options.milliseconds,
        default=_STEP_MS,
        metavar="T",
        help=f"what a step of your training takes, which is simulated ({_STEP_MS:.0f})",
    )
    step.add_argument(
        "--no-step",
        dest="step_ms",
        action="store_const",
        const=None,
        help="ask for the next batch at once",
    )


def run(subject: Subject, html: Path, steps: int = _STEPS, step_ms: float | None = _STEP_MS) -> int:
    """Takes steps that take their time and do nothing, and writes the page.

    Args:
        subject: The loader.
        html: The page's file.
        steps: Steps to take; fewer, where the run ends before.
        step_ms: What a step takes, in milliseconds; None: nothing.

    Returns:
        1 where there is no batch.

    Raises:
        UsageError: The page cannot be written.
    """
    if not html.parent.is_dir():
        raise UsageError(f"`--html` must lie in a folder that is there, got {str(html)!r}")
    if html.is_dir():
        raise UsageError(f"`--html` must name a file, got the folder {str(html)!r}")
    with subject.load() as loader, iter(loader) as batches:
        for batch in itertools.islice(batches, steps):
            if "jax" in sys.modules:
                sys.modules["jax"].block_until_ready(batch)
            if step_ms is not None:
                time.sleep(step_ms / 1e3)
            del batch
        timeline, stats = batches.timeline(), batches.stats()
    if not stats.batches:
        print(f"{subject.name}: a run without a batch")
        return 1
    step = "no step" if step_ms is None else f"a simulated step of {text.number(step_ms)} ms"
    notes = (
        f"{text.count(stats.batches, 'step')} in {text.duration(stats.elapsed_s)}",
        step,
        text.count(stats.num_workers, "worker") if stats.num_workers else "no workers",
        text.count(stats.num_cpus, "CPU"),
        time.strftime("%Y-%m-%d %H:%M"),
    )
    html.write_text(page(Profile(subject.name, timeline, stats, notes)), encoding="utf-8")
    print(f"{stats}\n\n{html}: open it in a browser")
    return 0
