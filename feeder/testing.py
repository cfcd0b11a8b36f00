"""Assertions for your own test suite: is my input pipeline reproducible?

    import feeder.testing

    def test_my_pipeline_is_reproducible():
        feeder.testing.assert_reproducible(lambda **options: make_my_loader(**options), steps=20)

Digests are of structure, dtypes, shapes and bytes: 1 is not 1.0, nor is an array its list. They
are the same on every platform and with every version of Python, NumPy and JAX, as long as the
batches are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.loader import DataLoader

__all__ = ["assert_reproducible", "assert_same_batches", "digest"]


def digest(batches: Iterable[Any], steps: int | None = None) -> str:
    """A digest of batches and of their order.

    Args:
        batches: A loader, an iterator, or any iterable of batches: arrays of NumPy or JAX, numbers,
            strings, bytes and None in dicts, lists and (named) tuples.
        steps: Batches to look at; None: all.

    Returns:
        64 hexadecimal digits (SHA-256).

    Raises:
        TypeError: A leaf is of a type that has no exact form.
    """
    hashed = hashlib.sha256()
    for batch in _first(batches, steps):
        for path, leaf in _leaves(batch, "batch"):
            _update(hashed, path.encode())
            _update(hashed, _exact(path, leaf))
        _update(hashed, b"end of batch")
    return hashed.hexdigest()


def assert_same_batches(a: Iterable[Any], b: Iterable[Any], steps: int | None = None) -> None:
    """Asserts that two loaders deliver the same batches, to the bit.

    Args:
        a: A loader, an iterator, or any iterable of batches.
        b: Another one.
        steps: Batches to compare; None: all, and there must be as many.

    Raises:
        AssertionError: They differ; it names the first step, leaf and row that do.
        TypeError: A leaf is of a type that has no exact form.
    """
    nothing = object()
    pairs = itertools.zip_longest(_first(a, steps), _first(b, steps), fillvalue=nothing)
    for step, (left, right) in enumerate(pairs):
        if left is nothing or right is nothing:
            shorter = "a" if left is nothing else "b"
            raise AssertionError(f"step {step}: {shorter} has ended, the other has not")
        found = difference(left, right)
        if found:
            raise AssertionError(f"step {step}: {found}")


def assert_reproducible(
    make_loader: Callable[..., DataLoader],
    num_workers: Sequence[int] = (0, 1, 2),
    process_counts: Sequence[int] = (1, 2),
    steps: int | None = None,
) -> None:
    """Asserts that batches depend on no number of workers or processes, and on no resume.

    Compares, with the first of ``num_workers``: all of them; a run that is stopped half-way, its
    state sent through JSON, and resumed with the last of them; and the batches of simulated
    processes, joined.

    Args:
        make_loader: Called as ``make_loader(num_workers=…, process_index=…, process_count=…)``,
            returns a new loader with these arguments and without a sharding. The tests close it.
        num_workers: Numbers of workers to try.
        process_counts: Numbers of processes to simulate; each must divide the batch.
        steps: Batches to compare; None: all of the run, which must then have an end.

    Raises:
        AssertionError: Something depends on them; it says what, and names the first step, leaf and
            row that differ.
    """

    def run(workers: int, index: int = 0, count: int = 1) -> list[Any]:
        options = {"num_workers": workers, "process_index": index, "process_count": count}
        with make_loader(**options) as loader:
            return list(_first(loader, steps))

    first = num_workers[0]
    expected = run(first)
    for workers in num_workers:
        what = f"num_workers={workers} differs from num_workers={first}"
        if workers == first:
            what = f"two runs with num_workers={first} differ: something in them is not seeded"
        with _explained(what):
            assert_same_batches(expected, run(workers))
    with _explained("a run resumed half-way differs from an undisturbed one"):
        assert_same_batches(expected, _interrupted(make_loader, num_workers, len(expected)))
    for count in process_counts:
        parts = [run(first, index, count) for index in range(count)]
        with _explained(f"the batches of {count} processes differ from those of one"):
            assert_same_batches(expected, [joined(split) for split in zip(*parts, strict=True)])


def _interrupted(
    make_loader: Callable[..., DataLoader], num_workers: Sequence[int], steps: int
) -> Iterator[Any]:
    one = {"process_index": 0, "process_count": 1}
    with make_loader(num_workers=num_workers[0], **one) as loader, iter(loader) as batches:
        yield from itertools.islice(batches, steps // 2)
        saved = json.dumps(batches.get_state())
    with make_loader(num_workers=num_workers[-1], **one) as loader, iter(loader) as batches:
        batches.set_state(json.loads(saved))
        yield from itertools.islice(batches, steps - steps // 2)


class _explained:  # noqa: N801 - reads as the statement it is
    """Says in front of a failure what was compared."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AssertionError):
            raise AssertionError(f"{self._text}: {error}") from None


def _first(batches: Iterable[Any], steps: int | None) -> Iterator[Any]:
    if steps is None and isinstance(batches, DataLoader):
        try:
            len(batches)
        except TypeError as error:
            raise ValueError(f"`steps` must say how many batches, got None: {error}") from None
    return itertools.islice(iter(batches), steps)


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path; containers tell their kind in it, so that empty ones count."""
    if isinstance(tree, Mapping):
        yield f"{path}{{{len(tree)}}}", None
        for key in sorted(tree, key=repr):
            yield from _leaves(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        brackets = "[]" if isinstance(tree, list) else "()"
        yield f"{path}{brackets[0]}{len(tree)}{brackets[1]}", None
        for number, item in enumerate(tree):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, tree


def _exact(path: str, leaf: Any) -> bytes:
    """A leaf's type and value as bytes that no platform or version changes."""
    if leaf is None or isinstance(leaf, bool | int):
        return f"{type(leaf).__name__} {leaf}".encode()
    if isinstance(leaf, float) and not isinstance(leaf, np.generic):
        return b"float " + struct.pack("<d", leaf)
    if isinstance(leaf, str) and not isinstance(leaf, np.generic):
        return b"str " + leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes) and not isinstance(leaf, np.generic):
        return b"bytes " + leaf
    if isinstance(leaf, np.ndarray | np.generic) or hasattr(leaf, "__array__"):
        return _exact_array(path, np.asarray(leaf))
    raise TypeError(
        f"{path} must be an array, a number, a string, bytes or None to have a digest, got "
        f"{type(leaf).__name__}; turn it into one of these in a transform"
    )


def _exact_array(path: str, array: NDArray[Any]) -> bytes:
    if array.dtype.hasobject:
        described = f"array object {array.shape} ".encode()
        parts = [
            _exact(f"{path}[{row}]", item) for row, item in enumerate(array.reshape(-1).tolist())
        ]
        return described + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    # By name: narrow floats of ml_dtypes have no other. Bytes in little-endian order.
    described = f"array {array.dtype.newbyteorder('=').name} {array.shape} ".encode()
    if array.dtype.str.startswith(">") or (array.dtype.isnative and _BIG_ENDIAN):
        array = array.astype(array.dtype.newbyteorder("<"))
    return described + array.tobytes()


_BIG_ENDIAN = np.dtype("=i2").str.startswith(">")


def _update(hashed: Any, part: bytes) -> None:
    hashed.update(len(part).to_bytes(8, "little"))
    hashed.update(part)


def difference(left: Any, right: Any) -> str:
    """The first leaf and row in which two batches differ; empty where they do not."""
    ours, theirs = list(_leaves(left, "batch")), list(_leaves(right, "batch"))
    for (path, a), (other, b) in zip(ours, theirs, strict=False):
        if path != other:
            return f"{path} in a stands where {other} does in b"
        if _exact(path, a) == _exact(path, b):
            continue
        if not (hasattr(a, "__array__") and hasattr(b, "__array__")):
            return f"{path} is {a!r} in a, {b!r} in b"
        return f"{path}{_array_difference(np.asarray(a), np.asarray(b), path)}"
    if len(ours) != len(theirs):
        longer, name = (ours, "a") if len(ours) > len(theirs) else (theirs, "b")
        return f"only {name} has {longer[min(len(ours), len(theirs))][0]}"
    return ""


def _array_difference(a: NDArray[Any], b: NDArray[Any], path: str) -> str:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f" is {a.dtype}{a.shape} in a, {b.dtype}{b.shape} in b"
    if a.ndim == 0:
        return f" is {a!r} in a, {b!r} in b"
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        if _exact(path, x) != _exact(path, y):
            return f", row {row}, is {_brief(x)} in a, {_brief(y)} in b"
    raise AssertionError("equal rows of unequal arrays")


def _brief(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def joined(parts: Sequence[Any]) -> Any:
    """The global batch of the local ones, in process order."""
    first = parts[0]
    if isinstance(first, Mapping):
        return type(first)({key: joined([part[key] for part in parts]) for key in first})  # type: ignore[call-arg]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(joined, zip(*parts, strict=True)))
    if isinstance(first, list | tuple):
        return type(first)(map(joined, zip(*parts, strict=True)))
    arrays = [np.asarray(part) for part in parts]
    if arrays[0].ndim == 0:  # no rows: one value for the whole batch
        for process, array in enumerate(arrays):
            if _exact("leaf", array) != _exact("leaf", arrays[0]):
                raise AssertionError(
                    f"a leaf without rows is {_brief(first)} in process 0, "
                    f"{_brief(parts[process])} in process {process}"
                )
        return first
    return np.concatenate(arrays)
