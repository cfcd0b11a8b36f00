"""The few integers of a checkpoint, and what must match when it is restored.

A state speaks of the batches that the user got: the step and the position that come next.
The other fields say which sequence of batches these two numbers belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from feeder.errors import StateError
from feeder.plan.order import MAX_RECORDS
from feeder.plan.schedule import Cursor

VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What names one sequence of batches; JSON-able values only."""

    num_records: int
    batch_size: int
    seed: int
    shuffle: bool | dict[str, int]
    last_batch: str


def save(cursor: Cursor, identity: Identity) -> dict[str, Any]:
    """The state as a JSON-able dict, below 1 KiB, the same on every process."""
    return {
        "version": VERSION,
        "step": cursor.step,
        "position": cursor.position,
        **asdict(identity),
    }


def restore(state: object, identity: Identity) -> Cursor:
    """The cursor that a state speaks of.

    Args:
        state: What `save` returned, perhaps through JSON.
        identity: The sequence that it shall continue.

    Raises:
        StateError: The state is damaged, of a newer format, or of another sequence.
    """
    if not isinstance(state, Mapping):
        raise StateError(
            f"`state` must be the dict that get_state() returned, got {type(state).__name__}"
        )
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
    expected = {"version", "step", "position", *(field.name for field in fields(identity))}
    if missing := sorted(expected - state.keys()):
        raise StateError(
            f"`state` must have every field of format {version}, got none of {missing}"
        )
    if unknown := sorted(map(repr, state.keys() - expected)):
        raise StateError(
            f"`state` must have no field unknown to format {version}, got {', '.join(unknown)}"
        )
    for name in ("step", "position"):
        if not _is_count(state[name]):
            raise StateError(
                f"`state[{name!r}]` must be a non-negative integer, got {_brief(state[name])}"
            )
    if state["position"] > MAX_RECORDS:
        raise StateError(
            f"`state['position']` must be at most 2**62, got {_brief(state['position'])}"
        )
    mismatches = {
        name: (state[name], present)
        for name, present in asdict(identity).items()
        if type(state[name]) is not type(present) or state[name] != present
    }
    if mismatches:
        lines = [
            f"  {name}: saved {_brief(saved)}, present {_brief(present)}"
            for name, (saved, present) in mismatches.items()
        ]
        raise StateError(
            "`state` must belong to the sequence of batches of this loader, got another one:\n"
            + "\n".join(lines)
            + "\nRestore it in a loader with the saved values, or start anew without it.",
            mismatches=mismatches,
        )
    return Cursor(state["step"], state["position"])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
