"""The Generator of one record and one transform.

Guarantees:
    * The draws depend on (seed, position, place among the transforms) and on nothing else;
      so do those of the children that ``Generator.spawn`` makes.
    * A Generator that user code keeps goes on as its own: it is never rewound under it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray


class RecordRng:
    """Hands out the Generator for each (position, place).

    Philox is counter-based (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
    SC 2011): the seed makes the key, (place, position) two words of the counter, and the
    lowest word, 2**64 blocks long, is left to the draws.

    One Generator is rewound for every record, at a fifth of the price of a new one. It is
    replaced as soon as anyone else holds a reference to it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._counter = np.zeros(4, np.uint64)
        # What Philox.state returns for a fresh generator: an empty buffer, no spare 32 bits.
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._renew()
        self._unshared = self._references()

    def at(self, position: int, place: int) -> np.random.Generator:
        """The Generator for the record at ``position`` in transform number ``place``.

        Args:
            position: Place of the record in the run's global order, below 2**64.
            place: Number of the transform among the loader's transforms.
        """
        if self._references() > self._unshared:
            self._renew()
        self._counter[1] = place
        self._counter[2] = position
        self._bits.state = self._state
        self._children.rewind(place, position)
        return self._generator

    def _renew(self) -> None:
        self._children = _Children(self._seed)
        self._bits = np.random.Philox(self._children)  # type: ignore[arg-type]  # any ISeedSequence
        self._generator = np.random.Generator(self._bits)

    def _references(self) -> int:
        # User code may keep the Generator, or only its bit generator.
        return sys.getrefcount(self._generator) + sys.getrefcount(self._bits)


class _Children(ISpawnableSeedSequence):
    """Seeds the Generators that ``Generator.spawn`` makes, from (seed, place, position)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._key = (0, 0)
        self._num_spawned = 0

    def rewind(self, place: int, position: int) -> None:
        self._key = (place, position)
        self._num_spawned = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return np.random.SeedSequence(self._seed, spawn_key=self._key).generate_state(
            n_words, dtype
        )

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:  # type: ignore[override]
        first = self._num_spawned
        self._num_spawned += n_children
        return [
            np.random.SeedSequence(self._seed, spawn_key=(*self._key, first + child))
            for child in range(n_children)
        ]
