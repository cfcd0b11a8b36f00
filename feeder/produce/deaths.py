"""How many deaths of workers are outlived, and what is said of the others. Pure.

Guarantees:
    * Work that goes on is never given up, unless ``max_restarts`` says so; work that does not is,
      after `MAX_DEATHS` deaths.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from feeder.errors import WorkerDiedError, WorkerTimeoutError
from feeder.plan.chunks import Chunk, PlannedChunk

MAX_DEATHS = 3
"""Workers that one chunk, or the start of workers, may cost before it is an error."""

MAX_DEATHS_AMONG_OTHERS = 12
"""The same for a chunk where workers die at other chunks too: somebody kills them at random."""


class Deaths:
    """Counts the deaths since work last went on."""

    def __init__(self) -> None:
        self._at_start: list[int] = []
        self._of_zygote = 0

    def forget(self) -> None:
        """A worker is ready, or a batch has come: work goes on."""
        self._at_start.clear()
        self._of_zygote = 0

    def at_start(self, exit_code: int, oom_kills: int = 0) -> WorkerDiedError | None:
        """Counts a worker that ended while it loaded the recipe; the error if it is one too many.

        Args:
            exit_code: As in `subprocess`: -N for signal N.
            oom_kills: Kills for want of memory in this container since the loader was made.
        """
        self._at_start.append(exit_code)
        if len(self._at_start) < MAX_DEATHS:
            return None
        codes, self._at_start = self._at_start, []
        return WorkerDiedError(
            f"{len(codes)} worker processes in a row ended while they loaded the source and the "
            f"transforms, with {listed(codes, oom_kills)}; their standard error may tell why; "
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


def of_chunk(
    chunk: Chunk,
    exit_codes: Sequence[int],
    timeouts: int = 0,
    timeout_s: float | None = None,
    oom_kills: int = 0,
    others: int = 0,
) -> WorkerDiedError | None:
    """The error if a chunk has cost one worker too many.

    Args:
        chunk: What they were building.
        exit_codes: How each of them ended.
        timeouts: How many of them were killed for taking longer than ``timeout_s``.
        timeout_s: The limit, in seconds.
        oom_kills: Kills for want of memory in this container since the loader was made.
        others: Workers that ended at other chunks since the first of these.
    """
    most = min(MAX_DEATHS + others, MAX_DEATHS_AMONG_OTHERS)
    if len(exit_codes) < most and timeouts < MAX_DEATHS:
        return None
    indices, at_fault = suspects(chunk)
    if timeout_s is not None and timeouts == len(exit_codes):
        return WorkerTimeoutError(
            f"step {chunk.step} took longer than `timeout_s` = {timeout_s:g} in each of {timeouts} "
            f"worker processes, which were killed; {at_fault}; "
            "raise `timeout_s` if they need more time",
            timeout_s=timeout_s,
            step=chunk.step,
            indices=indices,
            exit_codes=exit_codes,
        )
    late = f" ({timeouts} of them after `timeout_s` = {timeout_s:g})" if timeouts else ""
    return WorkerDiedError(
        f"{len(exit_codes)} worker processes ended while they built step {chunk.step}, with "
        f"{listed(exit_codes, oom_kills)}{late}; {at_fault}",
        step=chunk.step,
        indices=indices,
        exit_codes=exit_codes,
    )


def too_many(
    chunk: Chunk, exit_code: int, max_restarts: int, oom_kills: int = 0
) -> WorkerDiedError:
    """The error of a run that may not go on after so many deaths.

    Args:
        chunk: What comes next in the run.
        exit_code: How the last worker ended.
        max_restarts: The limit.
        oom_kills: Kills for want of memory in this container since the loader was made.
    """
    return WorkerDiedError(
        f"more than `max_restarts` = {max_restarts} worker processes ended in one run, the last "
        f"with {listed([exit_code], oom_kills)}; step {chunk.step} is not finished; raise "
        "`max_restarts`, or leave it out, to go on as long as work does",
        step=chunk.step,
        indices=suspects(chunk)[0],
        exit_codes=[exit_code],
    )


def suspects(chunk: Chunk) -> tuple[list[int], str]:
    """Indices of a chunk's records, and words that name them.

    Of a stream there are no indices: which shard has which record, only reading tells.
    """
    numbers = (chunk.indices if isinstance(chunk, PlannedChunk) else chunk.positions).tolist()
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    if isinstance(chunk, PlannedChunk):
        return numbers, f"one of its records is at fault: {shown}"
    return [], f"one of its records is at fault, at the positions {shown}"


def listed(exit_codes: Sequence[int], oom_kills: int = 0) -> str:
    """Exit codes for a message: signals by name, with a hint at what kills without a word.

    Args:
        exit_codes: As in `subprocess`.
        oom_kills: Kills for want of memory in this container since the loader was made.
    """
    names = [_signal(-code) if code < 0 else f"exit code {code}" for code in exit_codes]
    text = ", ".join(names)
    if -signal.SIGKILL in exit_codes:
        counted = f"; this container counts {oom_kills} such kills" if oom_kills else ""
        text += f" (SIGKILL: most often the kernel, out of memory{counted})"
    return text


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
