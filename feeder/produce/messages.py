"""What parent, worker and zygote say to each other: one pickled tuple per packet.

SOCK_SEQPACKET delivers whole packets, in order, or none; EOF when the other side is gone.

::

    parent → worker    TASK     ticket, chunk, slot offset, slot capacity
                       GRANT    slot offset, slot capacity; offset None: give the chunk up
    worker → parent    BROKEN   failure: the recipe could not be loaded
                       NEED     ticket, bytes: the batch does not fit its slot
                       DONE     ticket, layout number, layout or None, pickled objects, times
                       FAILED   ticket, failure
                       PART     part of a message that fits no packet
                       WHOLE    the parts before it are one message
    parent → zygote    SPAWN    serial  (+ the worker's end of its socket)
    zygote → parent    SPAWNED  serial, pid  (+ its pidfd)
                       EXITED   serial, exit code
"""

from __future__ import annotations

import enum
import mmap
import pickle
import socket
from typing import Any, TypeAlias

import numpy as np

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
    size = (
        chunk.positions.nbytes
        + chunk.indices.nbytes
        + (0 if chunk.mask is None else len(chunk.mask))
    )
    return size if size > _INLINE_BYTES else 0


def encode_task(ticket: int, chunk: Chunk, slot: Slot | None, slab: mmap.mmap) -> bytes:
    """The packet that asks a worker for a batch; a large chunk is written into the slot."""
    rows = len(chunk.indices)
    mask = None if chunk.mask is None else chunk.mask.tobytes()
    parts: tuple[bytes, bytes, bytes | None] | None
    parts = (chunk.positions.tobytes(), chunk.indices.tobytes(), mask)
    if chunk_bytes(chunk):
        assert slot is not None
        data = b"".join(part for part in parts if part is not None)
        slab[slot.offset : slot.offset + len(data)] = data
        parts = None
    offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
    masked = mask is not None
    return encode(int(Kind.TASK), ticket, chunk.step, rows, masked, parts, offset, capacity)


def decode_task(message: Message, slab: mmap.mmap) -> tuple[int, Chunk, Slot]:
    """Ticket, chunk and slot of a TASK."""
    _, ticket, step, rows, masked, parts, offset, capacity = message
    if parts is None:
        size = rows * 8
        data = slab[offset : offset + 2 * size + (rows if masked else 0)]
        parts = (data[:size], data[size : 2 * size], data[2 * size :] if masked else None)
    positions, indices, mask = parts
    chunk = Chunk(
        step,
        np.frombuffer(positions, np.int64),
        np.frombuffer(indices, np.int64),
        None if mask is None else np.frombuffer(mask, bool),
    )
    return ticket, chunk, Slot(offset, capacity)
