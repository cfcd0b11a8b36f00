"""Names of shards: lists, brace patterns and glob patterns of them."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_BRACES = re.compile(r"\{([^{}]*)\}")
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
    parts: list[list[str]] = []
    end = 0
    for match in _BRACES.finditer(pattern):
        if (choices := _choices(match[1])) is None:
            continue  # as a shell: braces around a single word stay
        parts += [[pattern[end : match.start()]], choices]
        end = match.end()
    parts.append([pattern[end:]])
    if len(parts) == 1:
        yield pattern
        return
    for words in itertools.product(*parts):
        yield from braces("".join(words))  # those around others that were nested


def _choices(text: str) -> list[str] | None:
    if bounds := _RANGE.fullmatch(text):
        first, last = int(bounds[1]), int(bounds[2])
        padded = any(len(one) > 1 and one[0] == "0" for one in bounds.groups())
        width = max(map(len, bounds.groups())) if padded else 0
        step = 1 if first <= last else -1
        return [f"{number:0{width}}" for number in range(first, last + step, step)]
    return text.split(",") if "," in text else None


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
