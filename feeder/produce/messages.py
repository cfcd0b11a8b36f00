"""What parent, worker and zygote say to each other: one pickled tuple per packet.

SOCK_SEQPACKET delivers whole packets, in order, or none; EOF when the other side is gone.

::

    parent → worker    TASK     ticket, chunk, slot offset, slot capacity
                       GRANT    slot offset, slot capacity; offset None: give the chunk up
    worker → parent    READY    (the recipe is loaded)
                       BROKEN   failure: the recipe could not be loaded
                       NEED     ticket, bytes: the batch does not fit its slot
                       DONE     ticket, layout number, layout or None, pickled objects, times, bad
                       FAILED   ticket, failure
                       PART     part of a message that fits no packet
                       WHOLE    the parts before it are one message
    parent → zygote    SPAWN    serial, worker id, workers  (+ the worker's end of its socket)
    zygote → parent    SPAWNED  serial, pid  (+ its pidfd)
                       EXITED   serial, exit code
"""

from __future__ import annotations

import enum
import itertools
import mmap
import pickle
import socket
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.plan.batches import Chunk
from feeder.produce.slots import Slot

MAX_PACKET = 64 * 1024
"""Bytes of the largest packet; the kernel's default socket buffer holds three."""

_PART_BYTES = 48 * 1024
"""Bytes of a message in one packet; a longer message travels in parts."""

_INLINE_BYTES = 16 * 1024
"""A chunk up to this size travels in its packet, a larger one in its slot."""


class Kind(enum.IntEnum):
    """First item of every message."""

    TASK = 0
    GRANT = 1
    BROKEN = 2
    NEED = 3
    DONE = 4
    FAILED = 5
    PART = 6
    WHOLE = 7
    SPAWN = 8
    SPAWNED = 9
    EXITED = 10
    READY = 11


Message: TypeAlias = tuple[Any, ...]


def encode(*message: Any) -> bytes:
    """One packet. Its first item is an int, not a Kind: a third of the pickling time."""
    return pickle.dumps(message, 5)


def decode(packet: bytes) -> Message:
    """The message of a packet."""
    message: Message = pickle.loads(packet)
    return message


def post(sock: socket.socket, message: bytes) -> None:
    """Sends an encoded message of any length, waiting for room."""
    if len(message) <= _PART_BYTES:
        sock.send(message)
        return
    for start in range(0, len(message), _PART_BYTES):
        sock.send(encode(int(Kind.PART), message[start : start + _PART_BYTES]))
    sock.send(encode(int(Kind.WHOLE)))


def chunk_bytes(chunk: Chunk) -> int:
    """Bytes that the chunk takes in the slot; 0 where it travels in the packet."""
    size = _size(chunk)
    return size if size > _INLINE_BYTES and not chunk.is_part else 0


def num_packets(chunk: Chunk) -> int:
    """Least number of parts of a batch that can travel in a packet each."""
    return -(-_size(chunk) // _PART_BYTES)


def encode_task(ticket: int, chunk: Chunk, slot: Slot | None, slab: mmap.mmap) -> bytes:
    """The packet that asks a worker for a chunk; a large one is written into the slot.

    Not a part of a batch: others may be writing to the slot.
    """
    parts: tuple[bytes, ...] | None = tuple(array.tobytes() for array in _arrays(chunk))
    if chunk_bytes(chunk):
        assert slot is not None
        assert parts is not None
        data = b"".join(parts)
        slab[slot.offset : slot.offset + len(data)] = data
        parts = None
    offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
    spares = 0 if chunk.spares is None else chunk.spares.shape[1]
    shape = (len(chunk.indices), chunk.mask is not None, spares, chunk.first_row, chunk.part_of)
    return encode(int(Kind.TASK), ticket, chunk.step, shape, parts, offset, capacity)


def decode_task(message: Message, slab: mmap.mmap) -> tuple[int, Chunk, Slot]:
    """Ticket, chunk and slot of a TASK."""
    _, ticket, step, (rows, masked, num_spares, first_row, part_of), parts, offset, capacity = (
        message
    )
    sizes = [rows * 8, rows * 8, rows if masked else 0, rows * num_spares * 8]
    if parts is None:
        ends = list(itertools.accumulate(sizes))
        data = slab[offset : offset + ends[-1]]
        parts = [data[end - size : end] for size, end in zip(sizes, ends, strict=True) if size]
    arrays = iter(parts)
    positions = np.frombuffer(next(arrays), np.int64)
    indices = np.frombuffer(next(arrays), np.int64)
    mask = np.frombuffer(next(arrays), bool) if masked else None
    spares = None
    if num_spares:
        spares = np.frombuffer(next(arrays), np.int64).reshape(rows, num_spares)
    chunk = Chunk(step, positions, indices, mask, spares, first_row, part_of)
    return ticket, chunk, Slot(offset, capacity)


def _arrays(chunk: Chunk) -> list[NDArray[Any]]:
    arrays = (chunk.positions, chunk.indices, chunk.mask, chunk.spares)
    return [array for array in arrays if array is not None]


def _size(chunk: Chunk) -> int:
    rows = len(chunk.indices)
    spares = 0 if chunk.spares is None else chunk.spares.nbytes
    return rows * (16 if chunk.mask is None else 17) + spares
