"""The other end of `payload`: what a worker does without whatever pickling takes."""

from __future__ import annotations

import mmap
import pickle
from typing import Any


def unpack(fd: int) -> Any:
    """The value that `pack` wrote; its large arrays are read-only and shared."""
    mapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    memory = memoryview(mapping)
    end = len(memory) - 16
    pickled_length = int.from_bytes(memory[end : end + 8], "little")
    index_length = int.from_bytes(memory[end + 8 :], "little")
    index_start = end - index_length
    ranges = pickle.loads(memory[index_start:end])
    return pickle.loads(
        memory[index_start - pickled_length : index_start],
        buffers=[memory[start : start + length] for start, length in ranges],
    )
