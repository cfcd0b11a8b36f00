"""The ways in which iterators, samplers and callables offer a state: torchdata's, and our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PROTOCOLS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
"""Methods that save and load a state."""


def saver(owner: Any) -> Callable[[], Any] | None:
    """The method that returns its state; None: it has none."""
    return next((getattr(owner, save) for save, _ in PROTOCOLS if hasattr(owner, save)), None)


def loader(owner: Any) -> Callable[[Any], object] | None:
    """The method that takes a state; None: it has none."""
    return next((getattr(owner, load) for _, load in PROTOCOLS if hasattr(owner, load)), None)


def is_stateful(owner: Any) -> bool:
    """Whether it has both methods of a kind."""
    return any(hasattr(owner, save) and hasattr(owner, load) for save, load in PROTOCOLS)
