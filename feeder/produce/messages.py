"""What parent, worker and zygote say to each other: one pickled tuple per packet.

SOCK_SEQPACKET delivers whole packets, in order, or none; EOF when the other side is gone.

::

    parent → worker    TASK     ticket, chunk, slot offset, slot capacity
                       GRANT    slot offset, slot capacity; offset None: give the chunk up
                       OPEN     number, count, data: part of where the lanes asked for are to be
                                opened; data None: as above
    worker → parent    READY    (the recipe is loaded)
                       BROKEN   failure: the recipe could not be loaded
                       NEED     ticket, bytes: the batch does not fit its slot
                       WHERE    ticket, lanes: where are they to be opened?
                       DONE     ticket, layout number, layout or None, pickled objects, times, bad,
                                reports, rows of the objects
                       PASSED   ticket, reports: the chunk was read, and has no rows
                       ENDED    ticket, totals, bad: lanes end before the chunk
                       FAILED   ticket, failure
                       PART     part of a message that fits no packet
                       WHOLE    the parts before it are one message
    parent → zygote    SPAWN    serial, worker id, workers  (+ the worker's end of its socket)
    zygote → parent    SPAWNED  serial, pid  (+ its pidfd)
                       EXITED   serial, exit code
"""

from __future__ import annotations

import enum
import math
import mmap
import pickle
import socket
import zlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.plan.batches import Chunk, Reads
from feeder.produce.slots import Slot

MAX_PACKET = 64 * 1024
"""Bytes of the largest packet; the kernel's default socket buffer holds three."""

_PART_BYTES = 48 * 1024
"""Bytes of a message in one packet; a longer message travels in parts."""

_LARGEST_PART = 4 * _PART_BYTES
"""A part of a batch up to this size shrinks to what fits a packet."""

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
    WHERE = 12
    OPEN = 13
    PASSED = 14
    ENDED = 15


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


def encode_open(data: bytes | None) -> list[bytes]:
    """The packets of an OPEN; they may arrive in any order."""
    parts = [None] if data is None else _in_parts(data)
    return [encode(int(Kind.OPEN), number, len(parts), part) for number, part in enumerate(parts)]


def _in_parts(data: bytes) -> list[bytes | None]:
    return [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]


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
    arrays = {name: array for name, array in _arrays(chunk).items() if array is not None}
    shapes = [(name, array.dtype.char, array.shape) for name, array in arrays.items()]
    parts: tuple[bytes, ...] | None = tuple(array.tobytes() for array in arrays.values())
    if chunk_bytes(chunk):
        assert slot is not None
        assert parts is not None
        data = b"".join(parts)
        slab[slot.offset : slot.offset + len(data)] = data
        parts = None
    shrunk = parts is not None and _size(chunk) > _PART_BYTES  # of a stream: regular, it shrinks
    if shrunk:
        assert parts is not None
        parts = tuple(zlib.compress(part, 1) for part in parts)
    offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
    of = chunk.reads
    reads = None if of is None else (of.run, of.live, of.settled, of.snapshot, of.num_rows)
    whole = (chunk.first_row, chunk.part_of, reads, shrunk)
    return encode(int(Kind.TASK), ticket, chunk.step, whole, shapes, parts, offset, capacity)


def fits_packet(chunk: Chunk) -> bool:
    """Whether a part of a batch of a stream can travel in a packet, for certain."""
    return _size(chunk) <= _LARGEST_PART


def decode_task(message: Message, slab: mmap.mmap) -> tuple[int, Chunk, Slot]:
    """Ticket, chunk and slot of a TASK."""
    _, ticket, step, (first_row, part_of, reads, shrunk), shapes, parts, offset, capacity = message
    if parts is None:
        parts, at = [], offset
        for _, char, shape in shapes:
            end = at + np.dtype(char).itemsize * math.prod(shape)
            parts.append(slab[at:end])
            at = end
    elif shrunk:
        parts = [zlib.decompress(part) for part in parts]
    arrays: dict[str, NDArray[Any]] = {
        name: np.frombuffer(part, char).reshape(shape)
        for (name, char, shape), part in zip(shapes, parts, strict=True)
    }
    of = None
    if reads is not None:
        run, live, settled, snapshot, num_rows = reads
        lanes, rows = arrays["lanes"], arrays["rows"]
        of = Reads(run, live, settled, snapshot, lanes, rows, num_rows)
    given = arrays.get("given")
    chunk = Chunk(
        step,
        arrays["positions"],
        arrays["indices"],
        arrays.get("mask"),
        arrays.get("spares"),
        first_row,
        part_of,
        of,
        None if given is None else given.tobytes(),
    )
    return ticket, chunk, Slot(offset, capacity)


def _arrays(chunk: Chunk) -> dict[str, NDArray[Any] | None]:
    reads = chunk.reads
    return {
        "positions": chunk.positions,
        "indices": chunk.indices,
        "mask": chunk.mask,
        "spares": chunk.spares,
        "lanes": None if reads is None else reads.lanes,
        "rows": None if reads is None else reads.rows,
        "given": None if chunk.given is None else np.frombuffer(chunk.given, np.uint8),
    }


def _size(chunk: Chunk) -> int:
    return sum(array.nbytes for array in _arrays(chunk).values() if array is not None)
