"""Windows of long arrays of tokens, and packed documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import feeder


def token_windows(folder: Path) -> tuple[Any, list[Any]]:
    """Of a file without a header, and of a .npy file that is a memmap already."""
    tokens = np.arange(1000, 2400, dtype=np.uint16)
    raw, npy = folder / "tokens.bin", folder / "tokens.npy"
    if not raw.exists():
        tokens[:700].tofile(raw)
        np.save(npy, tokens[700:])
    parts = [raw, np.load(npy, mmap_mode="r")]
    source = feeder.TokenWindows(parts, 17, stride=16, dtype=np.uint16)
    records = [
        part[first : first + 17]
        for part in (tokens[:700], tokens[700:])
        for first in range(0, len(part) - 16, 16)
    ]
    return source, records


def _documents() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(1, 1000, n).astype(np.uint16) for n in rng.integers(0, 60, 60).tolist()]


def packed(_folder: Path) -> tuple[Any, list[Any]]:
    source = feeder.pack(_documents(), 32, window=20, separator=0)
    return source, [source[index] for index in range(len(source))]


class _Shard:
    """Every third document, with a state."""

    def __init__(self, shard: int, _epoch: int, state: int | None) -> None:
        self._documents = _documents()[shard::3]
        self._at = state or 0

    def __iter__(self) -> _Shard:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        if self._at == len(self._documents):
            raise StopIteration
        self._at += 1
        return {"tokens": self._documents[self._at - 1]}

    def state_dict(self) -> int:
        return self._at


def packed_stream(_folder: Path) -> tuple[Any, None]:
    stream = feeder.pack(feeder.Stream(_Shard, 3), 32, window=10)
    stream.length = sum(1 for shard in range(3) for _ in stream.open(shard, 0, None))
    return stream, None


MAKERS = {"token windows": token_windows, "packed": packed, "packed stream": packed_stream}
