"""`random`, `numpy.random` and PyTorch's generator as user code finds them while a batch is built.

Guarantees:
    * What code draws from them for a record depends on (seed, position) alone; what `read` and
      `__getitems__` draw, on (seed, first position read); what `collate` and batch transforms
      draw, on (seed, step).
    * Code that draws nothing finds them in the same state for every batch, and pays 7 us per batch.
      Keying them takes 6 us per record, and is done only once a batch has drawn: that batch is
      built again, keyed.
    * PyTorch's generator, the default one for the CPU, is seen to in processes that have imported
      torch, as by unpickling a data set; it takes 15 us per batch, and 8 us per record.
    * `preserved` puts a caller's own generators back as they were.

The generators are global to the process: where threads share them, nobody can promise anything.
Nor can a draw be seen whose traces are removed: code that puts a generator back to the state that
it found should use `RandomMap` instead.
"""

from __future__ import annotations

import contextlib
import enum
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import mtrand

_AMBIENT_KEY = (0, 0, 0, 2)  # tells these numbers from the permutations' of the same seed
_OTHER_WORD = 0x9E3779B9  # NumPy's and PyTorch's are of one kind, and must not draw the same


class Scope(enum.IntEnum):
    """What a number keys: the position of a record, or of the first one read; a step; or a record.

    Of a stream, that is known by its shard and number, not by its position.
    """

    RECORD = 0
    READ = 1
    BATCH = 2
    STREAM = 3


class Ambient:
    """Sees to the generators while batches are built.

    Attributes:
        keyed: Whether they are keyed: a batch has drawn from them.
    """

    def __init__(self, seed: int) -> None:
        words = np.random.SeedSequence(seed, spawn_key=_AMBIENT_KEY).generate_state(2, np.uint64)
        self._key = (int(words[0]) << 64 | int(words[1])) << 96
        self.keyed = False
        # NumPy's own kind, which user code may seed.
        self._bits = np.random.MT19937()
        self._numpy_seed = int(words[0]) >> 32
        unkeyed = random.Random(self._key)
        self._unkeyed = unkeyed.getstate()
        self._next = (unkeyed.random(), np.random.RandomState(self._numpy_seed).random_sample())
        self._torch: Any = None  # the generator that `begin` saw to
        self._torch_state = b""

    def begin(self) -> None:
        """Makes them ready for a batch."""
        mtrand.set_bit_generator(self._bits)
        if not self.keyed:
            random.setstate(self._unkeyed)
            np.random.seed(self._numpy_seed)
            self._torch = _of_torch()
            if self._torch is not None:
                self._torch.manual_seed(self._numpy_seed)
                self._torch_state = self._torch_state or _state(self._torch)

    def key(self, scope: Scope, number: int) -> None:
        """Keys them, where they are drawn from."""
        if self.keyed:
            random.seed(self._key | scope << 64 | number)
            word = random.getrandbits(32)
            np.random.seed(word)
            if (generator := _of_torch()) is not None:
                generator.manual_seed(word ^ _OTHER_WORD)

    def drew_unkeyed(self) -> bool:
        """Whether anything was drawn since `begin` without a key; from now on, all is keyed."""
        if self.keyed:
            return False
        self.keyed = (
            mtrand.get_bit_generator() is not self._bits
            or (random.random(), np.random.random_sample()) != self._next
            or self._torch_drew()
        )
        return self.keyed

    def _torch_drew(self) -> bool:
        generator = _of_torch()
        if generator is not self._torch:  # it was imported meanwhile, and may have been drawn from
            return True
        return generator is not None and _state(generator) != self._torch_state


def _of_torch() -> Any:
    """PyTorch's default generator; None where nobody has imported torch."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


def _state(generator: Any) -> bytes:
    state: bytes = generator.get_state().numpy().tobytes()
    return state


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Puts the generators back in the end."""
    generator = _of_torch()
    torch_state = None if generator is None else generator.get_state()
    state, bits = random.getstate(), mtrand.get_bit_generator()
    numpy_state: Any = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        mtrand.set_bit_generator(bits)
        if numpy_state["has_gauss"]:  # the spare deviate of the legacy normal distribution
            np.random.set_state(numpy_state)
        random.setstate(state)
        if generator is not None:
            generator.set_state(torch_state)
