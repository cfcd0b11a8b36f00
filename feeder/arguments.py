"""Checks of constructor arguments, in one form: `argument` must ..., got ..."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T", bound=str)


def integer(name: str, value: object, minimum: int, remedy: str = "") -> int:
    """Checks an integer argument.

    Args:
        name: Name of the argument.
        value: What was given; NumPy's integers are fine, bool and float are not.
        minimum: The least value allowed.
        remedy: What to do instead, appended to the message.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below the minimum.
    """
    rule = f"`{name}` must be an integer of at least {minimum}"
    tail = f"; {remedy}" if remedy else ""
    if isinstance(value, bool):
        raise TypeError(f"{rule}, got {value!r}{tail}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{rule}, got {value!r}{tail}") from None
    if number < minimum:
        raise ValueError(f"{rule}, got {number}{tail}")
    return number


def optional_integer(name: str, value: object, minimum: int) -> int | None:
    """Checks an integer argument that may be None, as `integer` does."""
    return None if value is None else integer(name, value, minimum)


def optional_seconds(name: str, value: object) -> float | None:
    """Checks a number of seconds that may be None.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0, or not finite.
    """
    if value is None:
        return None
    rule = f"`{name}` must be a number of seconds above 0, or None, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(rule)
    if not 0 < value < math.inf:
        raise ValueError(rule)
    return float(value)


def boolean(name: str, value: object) -> bool:
    """Checks an argument that is True or False.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, got {value!r}")
    return value


def choice(name: str, value: object, choices: tuple[T, ...]) -> T:
    """Checks an argument that is one of a few words.

    Raises:
        ValueError: It is none of them.
    """
    for word in choices:
        if value == word:
            return word
    listed = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
    raise ValueError(f"`{name}` must be {listed}, got {value!r}")


def callables(
    name: str, value: Any, signature: str, also: type | tuple[type, ...] = ()
) -> tuple[Any, ...]:
    """Checks a sequence of callables.

    Args:
        name: Name of the argument.
        value: What was given.
        signature: How each is called, for the message.
        also: Types of items that are allowed although they are not callable.

    Raises:
        TypeError: It is no sequence, or an item is not callable.
    """
    if callable(value) or isinstance(value, also) or not isinstance(value, Iterable):
        raise TypeError(f"`{name}` must be a sequence of callables, got {value!r}")
    items = tuple(value)
    for number, item in enumerate(items):
        if not (callable(item) or isinstance(item, also)):
            raise TypeError(f"`{name}[{number}]` must be callable as {signature}, got {item!r}")
    return items


def optional_callable(name: str, value: Any, signature: str) -> Any:
    """Checks a callable that may be None.

    Raises:
        TypeError: It is neither.
    """
    if value is not None and not callable(value):
        raise TypeError(f"`{name}` must be callable as {signature}, got {value!r}")
    return value
