"""What parent, worker and zygote say to each other: one pickled tuple per packet.

SOCK_SEQPACKET delivers whole packets, in order, or none; EOF when the other side is gone.

::

    parent → worker    TASK     for each of several chunks: ticket, chunk, slot offset, capacity
                       GRANT    slot offset, slot capacity; offset None: give the chunk up
                       OPEN     number, count, data: part of where the lanes asked for are to be
                                opened; data None: as above
    worker → parent    READY    (the recipe is loaded)
                       BROKEN   failure: the recipe could not be loaded
                       NEED     ticket, bytes: the batch does not fit its slot
                       WHERE    ticket, lanes: where are they to be opened?
                       BUSY     (shards are read again, and records come)
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
import itertools
import mmap
import pickle
import socket
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.plan.chunks import Chunk, PlannedChunk, StreamChunk
from feeder.plan.kept import KeptPatterns
from feeder.plan.patterns import Pattern, unpacked
from feeder.produce.slots import Slot

MAX_PACKET = 64 * 1024
"""Bytes of the largest packet; the kernel's default socket buffer holds three."""

_PART_BYTES = 48 * 1024
"""Bytes of a message in one packet; a longer message travels in parts."""

LAYOUTS_NAMED = 1024
"""Layouts that a worker gives a number to, so as to send each only once."""

MAX_BUNDLED = _PART_BYTES
"""Bytes of chunks that travel in one packet, where there are several."""

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
    BUSY = 16


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


def inline_bytes(chunk: Chunk) -> int:
    """Bytes that the chunk takes in its packet."""
    return 0 if chunk_bytes(chunk) else _size(chunk)


def num_packets(chunk: Chunk) -> int:
    """Least number of parts of a batch that can travel in a packet each."""
    return -(-_size(chunk) // _PART_BYTES)


Asked: TypeAlias = tuple[Any, ...]
"""A chunk that a worker is asked for, in a TASK."""


def asked(ticket: int, chunk: Chunk, slot: Slot | None, slab: mmap.mmap) -> Asked:
    """What a TASK says of a chunk; a large one is written into the slot.

    Not a part of a batch: others may be writing to the slot.
    """
    parts: list[bytes] | None = _parts(chunk)
    if chunk_bytes(chunk):
        assert slot is not None
        assert parts is not None
        data = b"".join(parts)
        slab[slot.offset : slot.offset + len(data)] = data
        parts = None
    offset, capacity = (0, 0) if slot is None else (slot.offset, slot.capacity)
    shape: tuple[Any, ...]
    if isinstance(chunk, StreamChunk):
        shape = (
            (_size(chunk), len(chunk.pattern)),
            (chunk.cycle, chunk.first_lane, chunk.position),
            (chunk.run, chunk.live, chunk.settled, chunk.snapshot, chunk.is_part),
        )
    else:
        spares = 0 if chunk.spares is None else chunk.spares.shape[1]
        given = 0 if chunk.given is None else len(chunk.given)
        masked = chunk.mask is not None
        shape = (len(chunk.indices), masked, spares, chunk.first_row, chunk.part_of, given)
    return ticket, chunk.step, shape, parts, offset, capacity


def understood(
    item: Asked, slab: mmap.mmap, patterns: KeptPatterns[bytes, Pattern]
) -> tuple[int, Chunk, Slot]:
    """Ticket, chunk and slot that a TASK speaks of.

    Args:
        item: What it says of the chunk.
        slab: The slots.
        patterns: Those that came before; few come once.
    """
    ticket, step, shape, parts, offset, capacity = item
    slot = Slot(offset, capacity)
    if len(shape) == 3:
        (size, entries), place, how = shape
        packed = slab[offset : offset + size] if parts is None else parts[0]
        pattern = patterns.get(packed, lambda: unpacked(packed), entries)
        return ticket, StreamChunk(step, pattern, *place, *how), slot
    rows, masked, num_spares, first_row, part_of, given = shape
    if parts is None:
        sizes = [rows * 8, rows * 8, rows if masked else 0, rows * num_spares * 8, given]
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
    made = next(arrays) if given else None
    return (
        ticket,
        PlannedChunk(step, positions, indices, mask, spares, first_row, part_of, made),
        slot,
    )


def fits_packet(chunk: Chunk) -> bool:
    """Whether a part of a batch of a stream can travel in a packet."""
    return _size(chunk) <= _PART_BYTES


def _parts(chunk: Chunk) -> list[bytes]:
    if isinstance(chunk, StreamChunk):
        return [chunk.pattern.packed]
    arrays: list[NDArray[Any] | None]
    arrays = [chunk.positions, chunk.indices, chunk.mask, chunk.spares]
    parts = [array.tobytes() for array in arrays if array is not None]
    return parts if chunk.given is None else [*parts, chunk.given]


def _size(chunk: Chunk) -> int:
    if isinstance(chunk, StreamChunk):
        return len(chunk.pattern.packed)
    size = len(chunk.indices) * (16 if chunk.mask is None else 17)
    if chunk.spares is not None:
        size += chunk.spares.nbytes
    return size if chunk.given is None else size + len(chunk.given)
