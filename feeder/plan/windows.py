"""Which shards a lane of a stream reads, and the shuffle of a stream. Pure.

Guarantees:
    * Every epoch has a shuffle of its own, a function of (seed, epoch) and of the records alone.
    * Shuffling needs the records of one window, and no memory of the windows before it: whoever
      goes on in the middle of a window reads that window again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder import arguments
from feeder.plan.order import Indices, permutation

_SHARDS_KEY = 4  # tells these permutations from others of the same seed and epoch
_WINDOW_KEY = 5


@dataclass(frozen=True, slots=True)
class WindowShuffle:
    """Shuffles a stream: its shards, and the records of each within windows.

    For ``shuffle=`` with a `Stream`: each epoch takes the shards in another order; and of each of
    the shards that are read side by side, so many records as make up ``window_size`` over all of
    them are read at a time, and come in random order.

    Args:
        window_size: Records held in memory for it, over all shards read side by side, in all
            processes.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below 1.
    """

    window_size: int = 4096

    def __post_init__(self) -> None:
        size: Any = arguments.integer("window_size", self.window_size, 1)
        object.__setattr__(self, "window_size", size)


@dataclass(frozen=True, slots=True)
class Lanes:
    """How the shards of a stream are spread over its lanes, and shuffled.

    Attributes:
        num_shards: Shards of the stream.
        num_lanes: Those read side by side.
        batch_rows: Rows of a global batch.
        seed: The loader's seed.
        shuffle: How to shuffle; None: not at all.
    """

    num_shards: int
    num_lanes: int
    batch_rows: int
    seed: int
    shuffle: WindowShuffle | None

    @property
    def window(self) -> int:
        """Records of a lane that are shuffled together."""
        return 1 if self.shuffle is None else -(-self.shuffle.window_size // self.num_lanes)

    def shards(self, epoch: int, lane: int) -> Indices:
        """The shards that a lane reads in an epoch, in order."""
        numbers = np.arange(lane, self.num_shards, self.num_lanes)
        if self.shuffle is None:
            return numbers
        return permutation(self.num_shards, self.seed, epoch, _SHARDS_KEY)(numbers)

    def order(self, epoch: int, lane: int, offset: int, size: int) -> list[int]:
        """The order of the records of a window that begins at an offset of a lane."""
        order = permutation(size, self.seed, epoch, _WINDOW_KEY, lane, offset)
        found: list[int] = order(np.arange(size)).tolist()
        return found
