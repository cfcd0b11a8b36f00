"""Block shuffle: random enough to train on, in runs that storage can read.

Guarantees:
    * Every epoch is a permutation of its own, a function of (number of records, seed, epoch).
    * Any `window_blocks` · `block_size` consecutive positions from a window's start on hold
      records of at most `window_blocks` + 2 blocks.
    * O(1) memory in the number of records: two windows' tables at most.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.plan.order import Indices, Permutation, permutation

_WINDOWS_KEPT = 2  # positions come in order: the window at hand, and the next
_TAIL_KEY = 1
_WINDOW_KEY = 2


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """Shuffles blocks of neighbours, and records within windows of blocks.

    For ``shuffle=``: blocks of ``block_size`` neighbouring records come in random order, another
    one in each epoch; within each window of ``window_blocks`` blocks the records are shuffled.
    Storage that reads best in runs, as chunked arrays or row groups, is then read about one block
    at a time, where ``shuffle=True`` reads every record from another place.

    Args:
        block_size: Records in a block; the chunk length of the storage, or a multiple.
        window_blocks: Blocks whose records are mixed; the more, the better the shuffle, and the
            more blocks are open at a time.

    Raises:
        TypeError: An argument is no integer.
        ValueError: An argument is below 1.
    """

    block_size: int
    window_blocks: int = 16

    def __post_init__(self) -> None:
        for name in ("block_size", "window_blocks"):
            value: Any = getattr(self, name)
            rule = f"`{name}` must be an integer of at least 1, got {value!r}"
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(rule)
            if value < 1:
                raise ValueError(rule)
            object.__setattr__(self, name, int(value))  # a state is JSON, which knows no NumPy


class BlockShuffled:
    """The order that a `BlockShuffle` asks for.

    Args:
        num_records: Records in an epoch.
        seed: The loader's seed.
        shuffle: Sizes of blocks and windows.
    """

    def __init__(self, num_records: int, seed: int, shuffle: BlockShuffle) -> None:
        self._num_records = num_records
        self._seed = seed
        self._block = min(int(shuffle.block_size), num_records)
        self._window = min(int(shuffle.window_blocks) * self._block, num_records)
        self._num_full, self._tail = divmod(num_records, self._block)
        self._blocks = functools.lru_cache(maxsize=2)(
            lambda epoch: permutation(self._num_full, seed, epoch)
        )
        self._in_window = functools.lru_cache(maxsize=_WINDOWS_KEPT)(self._window_permutation)

    def __call__(self, positions: Indices) -> Indices:
        """Returns the record index at each position."""
        indices = np.empty_like(positions)
        epochs, offsets = np.divmod(positions, self._num_records)
        windows = offsets // self._window
        # Positions come sorted, so each window is one run.
        keys = np.stack([epochs, windows])
        starts = np.flatnonzero(np.any(np.diff(keys, prepend=-1) != 0, axis=0))
        for start, stop in zip(starts, [*starts[1:], len(positions)], strict=True):
            epoch, window = int(epochs[start]), int(windows[start])
            base = window * self._window
            mixed = self._in_window(epoch, window)(offsets[start:stop] - base) + base
            indices[start:stop] = self._record(epoch, mixed)
        return indices

    def _window_permutation(self, epoch: int, window: int) -> Permutation:
        length = min(self._window, self._num_records - window * self._window)
        return permutation(length, self._seed, epoch, _WINDOW_KEY, window)

    def _record(self, epoch: int, offsets: Indices) -> Indices:
        """The record at each offset, blocks in random order, records in order within each.

        The last block, where shorter than the others, has a random place among them.
        """
        blocks = self._blocks(epoch)
        if not self._tail:
            places, within = np.divmod(offsets, self._block)
            return blocks(places) * self._block + within
        key = np.random.SeedSequence(self._seed, spawn_key=(epoch, _TAIL_KEY))
        place = int(key.generate_state(1, np.uint64)[0]) % (self._num_full + 1)
        first = place * self._block
        behind = offsets >= first + self._tail
        places, within = np.divmod(np.where(behind, offsets - self._tail, offsets), self._block)
        in_tail = (offsets >= first) & ~behind
        # Any place will do for the tail's offsets, which are not used.
        records = blocks(np.where(in_tail, 0, places)) * self._block + within
        return np.where(in_tail, self._num_full * self._block + offsets - first, records)
