"""How many deaths of workers are outlived, and what is said of the others. Pure.

Guarantees:
    * Work that goes on is never given up; work that does not is, after `MAX_DEATHS` deaths.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from feeder.errors import WorkerDiedError
from feeder.plan.batches import Chunk

MAX_DEATHS = 3
"""Workers that one batch, or the start of workers, may cost before it is an error."""


class Deaths:
    """Counts the deaths since work last went on."""

    def __init__(self) -> None:
        self._at_start: list[int] = []
        self._of_zygote = 0

    def forget(self) -> None:
        """A worker is ready, or a batch has come: work goes on."""
        self._at_start.clear()
        self._of_zygote = 0

    def at_start(self, exit_code: int) -> WorkerDiedError | None:
        """Counts a worker that ended while it loaded the recipe; the error if it is one too many.

        Args:
            exit_code: As in `subprocess`: -N for signal N.
        """
        self._at_start.append(exit_code)
        if len(self._at_start) < MAX_DEATHS:
            return None
        codes, self._at_start = self._at_start, []
        return WorkerDiedError(
            f"{len(codes)} worker processes in a row ended while they loaded the source and the "
            f"transforms, with {_listed(codes)}; their standard error may tell why; "
            "`num_workers=0` runs the same code in this process",
            step=None,
            exit_codes=codes,
        )

    def of_zygote(self) -> WorkerDiedError | None:
        """Counts an end of the zygote; the error if it is one too many."""
        self._of_zygote += 1
        if self._of_zygote < MAX_DEATHS:
            return None
        self._of_zygote = 0
        return WorkerDiedError(
            f"the process that starts workers ended {MAX_DEATHS} times without a batch in "
            "between; its standard error may tell why; `num_workers=0` needs none",
            step=None,
        )


def of_chunk(chunk: Chunk, exit_codes: Sequence[int]) -> WorkerDiedError | None:
    """The error if a chunk has cost one worker too many.

    Args:
        chunk: What they were building.
        exit_codes: How each of them ended.
    """
    if len(exit_codes) < MAX_DEATHS:
        return None
    indices = chunk.indices.tolist()
    shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    return WorkerDiedError(
        f"{len(exit_codes)} worker processes ended while they built step {chunk.step}, with "
        f"{_listed(exit_codes)}; one of its records is at fault: {shown}",
        step=chunk.step,
        indices=indices,
        exit_codes=exit_codes,
    )


def _listed(exit_codes: Sequence[int]) -> str:
    """Exit codes for a message: signals by name, with a hint at what kills without a word."""
    names = [_signal(-code) if code < 0 else f"exit code {code}" for code in exit_codes]
    text = ", ".join(names)
    if -signal.SIGKILL in exit_codes:
        text += " (SIGKILL: most often the kernel, out of memory)"
    return text


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
