"""Which number of workers to take, and why: from what each of them gave."""

from __future__ import annotations

from collections.abc import Mapping

from feeder.cli import text
from feeder.produce.auto import HANDOVER_S

_AS_GOOD = 0.9
"""What is so near to the best is as good: measurements differ by as much."""

_HEADROOM = 1.1
"""How much faster than the step batches should come."""


def recommended(
    rates: Mapping[int, float], cpus: int, step_s: float | None = None
) -> tuple[int, str]:
    """The number of workers to take, and the reason in words.

    The fewest that are as good as any; with a step, that keep up with it. None at all only where a
    batch costs no more than handing it over: what is built in this process holds up the step.

    Args:
        rates: Batches per second of each number of workers, some of them above 0 perhaps.
        cpus: Processors that there are.
        step_s: What a step takes, in seconds; None: not known.
    """
    here = rates.get(0)
    if here is not None and 1 / here <= HANDOVER_S:
        return 0, f"a batch takes {text.duration(1 / here)}, no more than handing it over would"
    with_workers = {number: rate for number, rate in rates.items() if number}
    if not with_workers:
        return 0, "no other number was tried"
    if step_s is not None:
        return _for_step(with_workers, cpus, step_s)
    best = max(with_workers.values())
    number = min(number for number, rate in with_workers.items() if rate >= _AS_GOOD * best)
    return number, f"{_gain(number, rates)}{_why_no_more(number, with_workers, cpus)}"


def _for_step(rates: Mapping[int, float], cpus: int, step_s: float) -> tuple[int, str]:
    needed = 1 / step_s
    enough = [number for number, rate in rates.items() if rate >= _HEADROOM * needed]
    said = f"a step of {text.duration(step_s)} takes {text.number(needed)} batches/s"
    if enough:
        number = min(enough)
        return number, f"{said}, and they give {text.number(rates[number])}"
    number = max(rates, key=lambda number: rates[number])
    share = 1 - rates[number] / needed
    waits = f"it waits {share:.0%} of the time" if share > 0.01 else "they have no reserve"
    more = _why_no_more(number, rates, cpus)
    return number, f"{said}, and they give only {text.number(rates[number])}: {waits}{more}"


def _gain(number: int, rates: Mapping[int, float]) -> str:
    here = rates.get(0)
    if here is None:
        return f"{text.number(rates[number])} batches/s"
    if rates[number] < here / _AS_GOOD:
        return (
            f"no more batches/s than with 0, but they are built while the step computes; with 0, "
            f"{text.duration(1 / here)} would be added to each step"
        )
    return f"{rates[number] / here:.1f} × the batches/s of 0"


def _why_no_more(number: int, rates: Mapping[int, float], cpus: int) -> str:
    more = [other for other in rates if other > number]
    if more:
        most = max(more, key=lambda other: rates[other])
        return f"; {most} give {rates[most] / rates[number]:.2f} × that"
    if number >= cpus:
        return f"; there {'is 1 CPU' if cpus == 1 else f'are {cpus} CPUs'}"
    return "; perhaps more would give more: try them with --workers"
