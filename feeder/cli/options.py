"""Types of options, for argparse: what is wrong is said with its rule."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """A number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A duration above 0."""
    return _above_zero(text, "seconds")


def milliseconds(text: str) -> float:
    """A duration above 0, in milliseconds."""
    return _above_zero(text, "milliseconds")


def workers(text: str) -> tuple[int, ...]:
    """Numbers of workers: ``0,1,2``."""
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"must be numbers like 0,1,2, got {text!r}")
    return tuple(dict.fromkeys(map(int, numbers)))


def _above_zero(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of {unit} above 0, got {text!r}")
    return value
