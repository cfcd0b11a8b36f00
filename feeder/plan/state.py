"""The few integers of a checkpoint, and what must match when it is restored.

A state speaks of the batches that the user got: the step and the position that come next.
The other fields say which sequence of batches these two numbers belong to.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from feeder.errors import StateError
from feeder.plan.schedule import MAX_POSITIONS, START, Cursor

VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What names one sequence of batches; JSON-able values only.

    ``batch_size`` and ``last_batch`` are None with a ``batch_sampler``; ``sampler`` describes it,
    or the ``sampler``, or the stream. ``num_records`` is None where the stream does not say.
    ``source`` is the source's own fingerprint; None, and left out of states, where it has none.
    """

    num_records: int | None
    batch_size: int | None
    seed: int
    shuffle: bool | dict[str, int]
    sampler: dict[str, Any] | None
    last_batch: str | None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """What a state says.

    Attributes:
        cursor: The batch that comes next.
        origin: Where batches of this size began.
        batch_size: Their size; None where a ``batch_sampler`` says.
    """

    cursor: Cursor
    origin: Cursor
    batch_size: int | None


def save(cursor: Cursor, origin: Cursor, identity: Identity) -> dict[str, Any]:
    """The state as a JSON-able dict, below 1 KiB, the same on every process."""
    state: dict[str, Any] = {
        "version": VERSION,
        "step": cursor.step,
        "position": cursor.position,
        "origin": [origin.step, origin.position],
        "draws": None if cursor.draws is None else dict(cursor.draws),
    }
    for name in identity.__slots__:  # four times as fast as asdict: some save after every step
        value = getattr(identity, name)
        state[name] = dict(value) if isinstance(value, dict) else value
    if identity.source is None:
        del state["source"]
    return state


def restore(state: object, identity: Identity, new_batch_size: bool = False) -> Saved:
    """What a state says.

    Args:
        state: What `save` returned, perhaps through JSON.
        identity: The sequence that it shall continue.
        new_batch_size: Whether it may have another batch size.

    Raises:
        StateError: The state is damaged, of a newer format, or of another sequence.
    """
    if not isinstance(state, Mapping):
        raise StateError(
            f"`state` must be the dict that get_state() returned, got {type(state).__name__}"
        )
    _check_fields(state, identity)
    _check_values(state)
    present = asdict(identity)
    if new_batch_size and present["batch_size"] is not None and _is_size(state["batch_size"]):
        del present["batch_size"]
    state = {"source": None, **state}
    mismatches = {
        name: (state[name], value)
        for name, value in present.items()
        if type(state[name]) is not type(value) or state[name] != value
    }
    if mismatches:
        raise _mismatch(mismatches)
    return Saved(
        Cursor(state["step"], state["position"], copy.deepcopy(state["draws"])),
        Cursor(*state["origin"]),
        state["batch_size"],
    )


def merged(states: list[Any] | tuple[Any, ...]) -> Any:
    """One state of those that the processes of a job saved at the same step.

    They differ only in the shards of a stream that each of them has read.

    Raises:
        StateError: They are not of the same step of the same run.
    """
    if not states or not all(isinstance(state, Mapping) for state in states):
        raise StateError(
            "`state` must be a dict that get_state() returned, or a list of those of all "
            f"processes, got {_brief(states)}"
        )
    first, *others = (_shared(state) for state in states)
    for process, other in enumerate(others, start=1):
        if other != first:
            raise StateError(
                "`state` must be of one step of one run, where it is a list of those of all "
                f"processes, got step {_brief(states[0].get('step'))} and step "
                f"{_brief(states[process].get('step'))}, or states of different runs"
            )
    draws = states[0].get("draws")
    if not isinstance(draws, Mapping) or "shards" not in draws:
        return states[0]
    shards: dict[Any, Any] = {}
    for state in states:
        entries = state["draws"]["shards"]
        for entry in entries if isinstance(entries, list) else [entries]:
            key = entry[0] if isinstance(entry, list | tuple) and len(entry) > 1 else None
            if key is None or key not in shards or shards[key][1] < entry[1]:
                shards[key] = entry
    return {**states[0], "draws": {**draws, "shards": list(shards.values())}}


def _shared(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """What the states of all processes have in common."""
    draws = state.get("draws")
    if isinstance(draws, Mapping):
        draws = {name: value for name, value in draws.items() if name != "shards"}
    return {**state, "draws": draws}


def _check_fields(state: Mapping[Any, Any], identity: Identity) -> None:
    version = state.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StateError(
            "`state` must be a dict that get_state() returned, got one whose 'version' is "
            f"{_brief(version)}: it is damaged, or no state of a feeder loader"
        )
    if version > VERSION:
        raise StateError(
            f"`state` must be of format {VERSION} or older, got format {version}: it was saved "
            "by a newer jax-feeder; upgrade to restore it"
        )
    expected = set(save(START, START, identity)) - {"source"}
    if missing := sorted(expected - state.keys()):
        raise StateError(
            f"`state` must have every field of format {version}, got none of {missing}"
        )
    if unknown := sorted(map(_brief, state.keys() - expected - {"source"})):
        raise StateError(
            f"`state` must have no field unknown to format {version}, got {', '.join(unknown)}"
        )


def _check_values(state: Mapping[Any, Any]) -> None:
    """Checks the fields that say where the run is; the others are compared."""
    for name in ("step", "position"):
        if not _is_count(state[name]):
            raise StateError(
                f"`state[{name!r}]` must be an integer from 0 to 2**62, got {_brief(state[name])}"
            )
    origin = state["origin"]
    if not (isinstance(origin, list | tuple) and len(origin) == 2 and all(map(_is_count, origin))):
        raise StateError(
            f"`state['origin']` must be a step and a position, got {_brief(origin)}: it is damaged"
        )
    if origin[0] > state["step"] or origin[1] > state["position"]:
        raise StateError(
            f"`state['origin']` must not be later than step {state['step']} and position "
            f"{state['position']}, got {_brief(origin)}: it is damaged"
        )
    if state["draws"] is not None and not isinstance(state["draws"], dict):
        raise StateError(
            f"`state['draws']` must be a dict or None, got {_brief(state['draws'])}: it is damaged"
        )


def _mismatch(mismatches: dict[str, tuple[object, object]]) -> StateError:
    lines = [
        f"  {name}: saved {_brief(saved)}, present {_brief(present)}"
        for name, (saved, present) in mismatches.items()
    ]
    remedy = "Restore it in a loader with the saved values, or start anew without it."
    if list(mismatches) == ["batch_size"] and None not in mismatches["batch_size"]:
        remedy = (
            "Restore it in a loader with the saved value, or go on at the same record with "
            "set_state(state, allow_new_batch_size=True)."
        )
    return StateError(
        "`state` must belong to the sequence of batches of this loader, got another one:\n"
        + "\n".join([*lines, remedy]),
        mismatches=mismatches,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_POSITIONS


def _is_size(value: object) -> bool:
    return _is_count(value) and value != 0


def _brief(value: object) -> str:
    shown = reprlib.Repr()  # a hostile value must not make a hostile message
    shown.maxdict, shown.maxstring, shown.maxother = 8, 40, 60
    text = shown.repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
