"""The worker's loop: a task in, a batch in its slot, a word back.

Guarantees:
    * It imports neither jax nor the loader, and touches no accelerator.
    * It ends when its parent does: by EOF when idle, by signal when the zygote goes, busy or not.
    * It writes to a slot only between the TASK or GRANT that names it and its answer.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import sys
from collections import deque

from feeder.produce import homing, payload
from feeder.produce.failures import START, Failure
from feeder.produce.layout import Buffer, Layout
from feeder.produce.messages import (
    MAX_PACKET,
    PART_BYTES,
    Kind,
    Message,
    decode,
    decode_task,
    encode,
)
from feeder.produce.recipe import Builder, Built
from feeder.produce.slots import Slot

_LAYOUTS_NAMED = 1024
"""Layouts that a worker gives a number to, so as to send each only once."""


class _GivenUpError(Exception):
    """The parent has no slot for this batch, or nobody wants it any more."""


class Worker:
    """Builds batches for one parent.

    Args:
        sock: Its end of the socket to the parent.
        slab: The slots.
        builder: Builds batches.
    """

    def __init__(self, sock: socket.socket, slab: mmap.mmap, builder: Builder) -> None:
        self._sock = sock
        self._slab = slab
        self._builder = builder
        self._waiting: deque[Message] = deque()  # tasks that came while a GRANT was awaited
        self._layouts: dict[Layout, int] = {}

    def run(self) -> None:
        """Serves until the parent is gone.

        Raises:
            EOFError: It is.
        """
        while True:
            message = self._waiting.popleft() if self._waiting else self._receive()
            ticket, chunk, slot = decode_task(message, self._slab)

            def reserve(
                num_bytes: int, ticket: int = ticket, slot: Slot = slot
            ) -> tuple[Buffer, int]:
                return self._slab, self._grant(num_bytes, ticket, slot)

            try:
                outcome = self._builder.build(chunk, reserve)
            except _GivenUpError:
                continue
            # What user code printed for a batch is out before the batch is.
            sys.stdout.flush()
            if isinstance(outcome, Built):
                self._deliver(ticket, outcome)
            else:
                self._send(Kind.FAILED, ticket, outcome.packed())

    def _grant(self, num_bytes: int, ticket: int, slot: Slot) -> int:
        """Offset of a slot for the batch: its own, or a larger one that the parent grants."""
        if slot.capacity >= max(num_bytes, 1):
            return slot.offset
        self._send(Kind.NEED, ticket, num_bytes)
        while (message := self._receive())[0] != Kind.GRANT:
            self._waiting.append(message)
        offset: int | None = message[1]
        if offset is None:
            raise _GivenUpError
        return offset

    def _deliver(self, ticket: int, built: Built) -> None:
        try:
            packets = [*self._objects(ticket, built), self._done(ticket, built)]
        except Exception as error:  # a class that cannot be pickled, or found again at home
            error.add_note("Records reach the loop by pickle: define their classes in a module.")
            self._send(Kind.FAILED, ticket, Failure.of(error, "collate", None).packed())
            return
        for packet in packets:
            self._sock.send(packet)

    def _objects(self, ticket: int, built: Built) -> list[bytes]:
        """The packets of the leaves that travel beside the slot."""
        if not built.objects:
            return []
        pickled = homing.dumps(built.objects)
        return [
            encode(int(Kind.OBJECTS), ticket, pickled[start : start + PART_BYTES])
            for start in range(0, len(pickled), PART_BYTES)
        ]

    def _done(self, ticket: int, built: Built) -> bytes:
        """The packet that says where all is; with the layout, the first time."""
        times = tuple(built.times)
        number = self._layouts.get(built.layout)
        if number is not None:
            return encode(int(Kind.DONE), ticket, number, None, times)
        if len(self._layouts) == _LAYOUTS_NAMED:
            self._layouts.clear()
        number = len(self._layouts)
        packet = homing.dumps((int(Kind.DONE), ticket, number, built.layout, times))
        self._layouts[built.layout] = number
        return packet

    def _send(self, kind: Kind, *items: object) -> None:
        self._sock.send(encode(int(kind), *items))

    def _receive(self) -> Message:
        packet = self._sock.recv(MAX_PACKET)
        if not packet:
            raise EOFError
        return decode(packet)


def main(sock: socket.socket, slab_fd: int, recipe_fd: int) -> None:
    """The life of a worker process, from after the fork to its end."""
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone: nobody to tell
        try:
            builder = Builder(payload.unpack(recipe_fd))
        except Exception as error:
            failure = Failure.of(error, START, None)
            sock.send(encode(int(Kind.BROKEN), failure.packed()))
            return
        sock.send(encode(int(Kind.READY)))
        Worker(sock, mmap.mmap(slab_fd, 0), builder).run()
