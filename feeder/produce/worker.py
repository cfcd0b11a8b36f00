"""The worker's loop: a task in, a batch in its slot, a word back.

Guarantees:
    * It never imports jax (user code may, and then gets the CPU).
    * It ends when its parent does: by EOF when idle, by signal when the zygote goes, busy or not.
    * It writes to a slot only between the TASK or GRANT that names it and its answer.
"""

from __future__ import annotations

import contextlib
import mmap
import pickle
import socket
import sys
from collections import deque

from feeder.plan.kept import KeptPatterns
from feeder.plan.patterns import Pattern
from feeder.produce import homing, unpacking
from feeder.produce.ambient import Ambient
from feeder.produce.builder import Builder
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.failures import START, Failure
from feeder.produce.given import GivenBuilder, builder_of
from feeder.produce.layout import Buffer, Layout
from feeder.produce.messages import (
    LAYOUTS_NAMED,
    MAX_PACKET,
    Asked,
    Kind,
    Message,
    decode,
    encode,
    post,
    understood,
)
from feeder.produce.session import GivenUpError
from feeder.produce.slots import Slot, map_shared
from feeder.produce.snapshot import Snapshot


class Worker:
    """Builds batches for one parent.

    Args:
        sock: Its end of the socket to the parent.
        slab: The slots.
        builder: Builds batches.
    """

    def __init__(
        self, sock: socket.socket, slab: mmap.mmap, builder: Builder | GivenBuilder
    ) -> None:
        self._sock = sock
        self._slab = slab
        self._builder = builder
        self._slot = Slot(0, 0)  # of the batch at hand
        self._asked: deque[Asked] = deque()
        self._layouts: dict[Layout, int] = {}
        self._patterns: KeptPatterns[bytes, Pattern] = KeptPatterns()
        builder.tell_busy(lambda: self._send(Kind.BUSY))

    def run(self) -> None:
        """Serves until the parent is gone.

        Raises:
            EOFError: It is.
        """
        while True:
            while not self._asked:
                self._asked.extend(self._receive()[1:])
            item = self._asked.popleft()
            ticket, chunk, slot = understood(item, self._slab, self._patterns)
            self._slot = slot

            def reserve(num_bytes: int, ticket: int = ticket) -> tuple[Buffer, int]:
                return self._slab, self._grant(num_bytes, ticket)

            def locate(lanes: list[int], ticket: int = ticket) -> list[tuple[Snapshot, int]]:
                return self._locate(lanes, ticket)

            try:
                outcome = self._builder.build(chunk, reserve, locate)
            except GivenUpError:
                continue
            # What user code printed for a batch is out before the batch is.
            with contextlib.suppress(Exception):  # it may have closed or replaced it
                sys.stdout.flush()
            if isinstance(outcome, Built):
                self._deliver(ticket, outcome)
            elif isinstance(outcome, Passed):
                self._send(Kind.PASSED, ticket, [tuple(report) for report in outcome.reports])
            elif isinstance(outcome, Ended):
                self._send(Kind.ENDED, ticket, *outcome)
            else:
                self._send(Kind.FAILED, ticket, outcome.packed())

    def _grant(self, num_bytes: int, ticket: int) -> int:
        """Offset of a slot for the batch: its own, or a larger one that the parent grants."""
        if self._slot.capacity >= max(num_bytes, 1):
            return self._slot.offset
        self._send(Kind.NEED, ticket, num_bytes)
        _, offset, capacity = self._answer(Kind.GRANT)
        if offset is None:
            raise GivenUpError
        self._slot = Slot(offset, capacity)  # the one before is no longer this batch's
        return self._slot.offset

    def _locate(self, lanes: list[int], ticket: int) -> list[tuple[Snapshot, int]]:
        """Where lanes of a stream are to be opened: the parent keeps their snapshots."""
        self._send(Kind.WHERE, ticket, lanes)
        parts: dict[int, bytes] = {}
        count = 1
        while len(parts) < count:
            _, number, count, part = self._answer(Kind.OPEN)
            if part is None:
                raise GivenUpError
            parts[number] = part
        found: list[tuple[Snapshot, int]] = pickle.loads(
            b"".join(map(parts.__getitem__, range(count)))
        )
        return found

    def _answer(self, kind: Kind) -> Message:
        """What the parent answers; tasks that come before are kept."""
        while (message := self._receive())[0] != kind:
            self._asked.extend(message[1:])
        return message

    def _deliver(self, ticket: int, built: Built) -> None:
        try:
            objects = homing.dumps(built.objects) if built.objects else b""
            if not built.objects:
                built = built._replace(rows=())  # they say where objects belong
            packet = self._done(ticket, built, objects)
        except Exception as error:  # a class that cannot be pickled, or found again at home
            error.add_note("Records reach the loop by pickle: define their classes in a module.")
            self._send(Kind.FAILED, ticket, Failure.of(error, "collate", None).packed())
            return
        post(self._sock, packet)

    def _done(self, ticket: int, built: Built, objects: bytes) -> bytes:
        """The message that says where all is; with the layout, the first time."""
        reports = [tuple(report) for report in built.reports]
        rest = (objects, tuple(built.times), built.bad, reports, built.rows)
        number = self._layouts.get(built.layout)
        if number is not None:
            return encode(int(Kind.DONE), ticket, number, None, *rest)
        if len(self._layouts) == LAYOUTS_NAMED:
            self._layouts.clear()
        number = len(self._layouts)
        packet = homing.dumps((int(Kind.DONE), ticket, number, built.layout, *rest))
        self._layouts[built.layout] = number
        return packet

    def _send(self, kind: Kind, *items: object) -> None:
        post(self._sock, encode(int(kind), *items))

    def _receive(self) -> Message:
        packet = self._sock.recv(MAX_PACKET)
        if not packet:
            raise EOFError
        return decode(packet)


def main(
    sock: socket.socket, slab_fd: int, recipe_fd: int, worker_id: int, num_workers: int
) -> None:
    """The life of a worker process, from after the fork to its end."""
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone: nobody to tell
        try:
            recipe = unpacking.unpack(recipe_fd)
            recipe.start(worker_id, num_workers)
            worker = Worker(sock, map_shared(slab_fd, 0), builder_of(recipe, Ambient(recipe.seed)))
        except (Exception, SystemExit) as error:
            post(sock, encode(int(Kind.BROKEN), Failure.of(error, START, None).packed()))
            return
        post(sock, encode(int(Kind.READY)))
        worker.run()
