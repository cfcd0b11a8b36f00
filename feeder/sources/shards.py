"""Names of shards: lists, brace patterns and glob patterns of them."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def names_of(argument: str, given: Any, must_exist: bool) -> tuple[str, ...]:
    """The shards that the user means, in order.

    Args:
        argument: Name of the argument, for messages.
        given: A path, a pattern, or a sequence of them.
        must_exist: Whether they are files here; else globs cannot be expanded, and are names.

    Raises:
        TypeError: It is none of these.
        ValueError: A pattern matches nothing, a file is not there, or is named twice.
    """
    if isinstance(given, str | os.PathLike):
        given = [given]
    if isinstance(given, bytes | dict) or not isinstance(given, Iterable):
        raise TypeError(f"`{argument}` must be a path, a pattern, or a list of them, got {given!r}")
    found: list[str] = []
    for one in given:
        if not isinstance(one, str | os.PathLike):
            raise TypeError(f"`{argument}` must hold paths and patterns, got {one!r}")
        found += _expanded(argument, os.fspath(one), must_exist)
    if not found:
        raise ValueError(f"`{argument}` must name at least one shard, got none")
    seen: set[str] = set()
    for name in found:
        if name in seen:
            raise ValueError(f"`{argument}` must name each shard once, got {name!r} twice")
        seen.add(name)
    return tuple(found)


def braces(pattern: str) -> Iterator[str]:
    """Expands ``{a,b}`` and ``{000..127}``, the first of them slowest, as a shell does."""
    for start, sign in enumerate(pattern):
        if sign != "{" or (choices := _choices(pattern, start)) is None:
            continue  # as in a shell, braces around a single word stay
        words, end = choices
        for word in words:
            for middle, rest in itertools.product(braces(word), braces(pattern[end:])):
                yield pattern[:start] + middle + rest
        return
    yield pattern


def _choices(pattern: str, start: int) -> tuple[list[str], int] | None:
    """What the braces that open at a place hold, and the place behind them; None: no choice."""
    depth, words = 0, [""]
    for place in range(start + 1, len(pattern)):
        sign = pattern[place]
        if sign == "}" and depth == 0:
            words = words if len(words) > 1 else _numbers(words[0])
            return (words, place + 1) if words else None
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            words.append("")
        else:
            words[-1] += sign
    return None


def _numbers(text: str) -> list[str]:
    """A range of numbers, padded by zeros where its bounds are; none where it is no range."""
    bounds = _RANGE.fullmatch(text)
    if bounds is None:
        return []
    first, last = map(int, bounds.groups())
    padded = any(len(one) > 1 and one[0] == "0" for one in bounds.groups())
    width = max(map(len, bounds.groups())) if padded else 0
    step = 1 if first <= last else -1
    return [f"{number:0{width}}" for number in range(first, last + step, step)]


def _expanded(argument: str, given: str, must_exist: bool) -> list[str]:
    if must_exist and Path(given).exists():  # whatever signs are in its name
        return [_file(argument, given)]
    found = []
    for name in braces(given):
        if not must_exist:
            found.append(name)
        elif "://" in name or name.startswith("pipe:"):
            raise ValueError(
                f"`{argument}` must name files here, got {name!r}; give an `opener` that opens it"
            )
        elif glob.has_magic(name) and not Path(name).exists():
            matches = sorted(glob.iglob(name, recursive=True))  # noqa: PTH207 - Path.glob is relative
            if not matches:
                raise ValueError(f"`{argument}` must name files, got {name!r}, which matches none")
            found += [_file(argument, match) for match in matches]
        else:
            found.append(_file(argument, name))
    return found


def _file(argument: str, name: str) -> str:
    path = Path(name).absolute()
    if not path.exists():
        raise ValueError(f"`{argument}` must name files that are there, got {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"`{argument}` must name files, got the folder {str(path)!r}")
    return str(path)
