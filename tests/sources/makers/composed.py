"""Sources made of others: over arrays, lists, what reads batches, and over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import feeder


def tree(first: int, length: int) -> tuple[dict[str, Any], list[Any]]:
    """Arrays in memory, and their records."""
    number = np.arange(first, first + length)
    row = number[:, None] * np.array([1.0, 0.5], np.float32)
    return {"number": number, "row": row.astype(np.float32)}, [
        {"number": n, "row": r} for n, r in zip(number, row.astype(np.float32), strict=True)
    ]


class Reading:
    """A source that reads batches."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]

    def read(self, indices: Any) -> Any:
        chosen = [self.records[index] for index in indices.tolist()]
        return {name: np.stack([record[name] for record in chosen]) for name in chosen[0]}


class Listing:
    """A source that reads lists of records."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.records[index] for index in indices]


def of_every_kind(_folder: Path) -> tuple[Any, list[Any]]:
    (a, of_a), (_, of_b), (_, of_c), (_, of_d) = (tree(100 * i, 12) for i in range(4))
    return feeder.concat([a, of_b, Listing(of_c), Reading(of_d)]), of_a + of_b + of_c + of_d


def of_readers(_folder: Path) -> tuple[Any, list[Any]]:
    (a, of_a), (_, of_b) = tree(0, 20), tree(100, 15)
    return feeder.concat([a, feeder.repeat(Reading(of_b), 2)]), of_a + of_b * 2


def mixed(_folder: Path) -> tuple[Any, list[Any]]:
    (a, of_a), (b, of_b), (c, of_c) = tree(0, 50), tree(100, 4), tree(200, 5)
    source = feeder.mix(
        [feeder.subset(a, slice(None, None, -2)), feeder.concat([b, c])], [3, 1], seed=5, length=70
    )
    by_number = {int(record["number"]): record for record in of_a + of_b + of_c}
    return source, [by_number[int(record["number"])] for record in source]


def zipped(_folder: Path) -> tuple[Any, list[Any]]:
    (a, of_a), names = tree(0, 50), [f"name {i}" for i in range(50)]
    source = feeder.zip({"a": a, "more": (names, np.arange(50))})
    return source, [{"a": r, "more": (names[i], np.int64(i))} for i, r in enumerate(of_a)]


MAKERS = {
    "concat of every kind": of_every_kind,
    "concat of readers": of_readers,
    "mix of arrays": mixed,
    "zip": zipped,
}
