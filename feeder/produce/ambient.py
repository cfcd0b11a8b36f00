"""`random` and `numpy.random` as user code finds them while a batch is built.

Guarantees:
    * What code draws from them for a record depends on (seed, position) alone; what `read` and
      `__getitems__` draw, on (seed, first position read); what `collate` and batch transforms
      draw, on (seed, step).
    * Code that draws nothing pays 4 us per batch. Keying both generators takes 6 us per record,
      and is done only once a batch has drawn: that batch is built again, keyed.
    * `preserved` puts a caller's own generators back as they were.

Both generators are global to the process: where threads share them, nobody can promise anything.
Nor can a draw be seen whose traces are removed: code that puts a generator back to the state that
it found should use `RandomMap` instead.
"""

from __future__ import annotations

import contextlib
import enum
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import mtrand

_AMBIENT_KEY = (0, 0, 0, 2)  # tells these numbers from the permutations' of the same seed


class Scope(enum.IntEnum):
    """What a number keys: the position of a record, or of the first one read; a step; or a record.

    Of a stream, that is known by its shard and number, not by its position.
    """

    RECORD = 0
    READ = 1
    BATCH = 2
    STREAM = 3


class Ambient:
    """Sees to both generators for one builder of batches.

    Attributes:
        keyed: Whether they are keyed: a batch has drawn from them.
    """

    def __init__(self, seed: int) -> None:
        words = np.random.SeedSequence(seed, spawn_key=_AMBIENT_KEY).generate_state(2, np.uint64)
        self._key = (int(words[0]) << 64 | int(words[1])) << 96
        self.keyed = False
        # NumPy's own kind, which user code may seed.
        self._bits = np.random.MT19937()
        unkeyed = random.Random(self._key)
        self._unkeyed = unkeyed.getstate()
        self._unkeyed_draw = unkeyed.random()
        self._numpy_seed = int(words[0]) >> 32
        self._numpy_draw = np.random.RandomState(self._numpy_seed).bytes(4)

    def begin(self) -> None:
        """Makes both ready for a batch."""
        mtrand.set_bit_generator(self._bits)
        if not self.keyed:
            random.setstate(self._unkeyed)
            np.random.seed(self._numpy_seed)

    def key(self, scope: Scope, number: int) -> None:
        """Keys both, where they are drawn from."""
        if self.keyed:
            random.seed(self._key | scope << 64 | number)
            np.random.seed(random.getrandbits(32))

    def drew_unkeyed(self) -> bool:
        """Whether anything was drawn since `begin` without a key; from now on, all is keyed."""
        if self.keyed:
            return False
        self.keyed = (
            random.random() != self._unkeyed_draw
            or mtrand.get_bit_generator() is not self._bits
            or np.random.bytes(4) != self._numpy_draw
        )
        return self.keyed


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Puts both generators back in the end."""
    state, bits = random.getstate(), mtrand.get_bit_generator()
    numpy_state: Any = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        mtrand.set_bit_generator(bits)
        if numpy_state["has_gauss"]:  # the spare deviate of the legacy normal distribution
            np.random.set_state(numpy_state)
        random.setstate(state)
