"""A worker process as its parent sees it."""

from __future__ import annotations

import os
import socket
import weakref
from collections import deque
from dataclasses import dataclass, field

from feeder.plan.batches import Chunk
from feeder.produce.launch import wait_readable
from feeder.produce.layout import Layout
from feeder.produce.messages import MAX_PACKET, Kind, Message, decode
from feeder.produce.session import Outcome
from feeder.produce.slots import Slot


@dataclass(slots=True, eq=False, weakref_slot=True)
class Inbox:
    """Where one session's outcomes arrive.

    Attributes:
        arrived: (step, outcome) pairs that came and were not taken.
        closed: Whether nobody wants the others any more.
        awaited: Whether a thread waits for them: it has used up all that came before.
    """

    arrived: list[tuple[int, Outcome]] = field(default_factory=list)
    closed: bool = False
    awaited: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A batch that a session asked for, from then until it is delivered.

    Attributes:
        ticket: Its number, unique in the pool.
        chunk: Which batch.
        inbox: Of the session that asked; dead once it is gone.
        slot: Where it is built; the job's own until it is leased to the batch.
        deaths: Exit codes of the workers that died while they built it.
    """

    ticket: int
    chunk: Chunk
    inbox: weakref.ref[Inbox]
    slot: Slot | None = None
    deaths: list[int] = field(default_factory=list)

    def wanted_by(self) -> Inbox | None:
        """The inbox of whoever still waits for it."""
        inbox = self.inbox()
        return None if inbox is None or inbox.closed else inbox


class WorkerHandle:
    """One worker: its socket, its process, and the jobs that it has.

    Owner:
        Owns both ends of the socket and the pidfd, until `close_sockets` and `wait_gone`. The
        process belongs to the zygote.

    The parent keeps the worker's end too: packets that the worker has not yet taken can then
    be taken back, and the kernel decides who was first.

    Attributes:
        serial: Its number, unique in the pool.
        sock: The parent's end.
        far: The worker's end.
        pid: Process id; None until the zygote has forked it.
        proven: Whether it has answered a task.
        broken: Whether it could not load the recipe.
        outbox: A GRANT that found the socket full; there is one at most.
        jobs: What it was sent and has not answered, in order; it works on the first.
    """

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.sock, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.proven = False
        self.broken = False
        self.outbox: bytes | None = None
        self.jobs: deque[Job] = deque()
        self._layouts: dict[int, Layout] = {}
        self._parts: list[bytes] = []

    def send(self, packet: bytes) -> bool:
        """Sends without waiting; False where the socket is full, or the worker gone."""
        try:
            self.sock.send(packet, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def flush(self) -> bool:
        """Sends what is in the outbox; False where there is still no room for it."""
        if self.outbox is not None and self.send(self.outbox):
            self.outbox = None
        return self.outbox is None

    def receive(self) -> Message | None:
        """The next message, without waiting; None where there is none, or not all of it."""
        while True:
            try:
                packet = self.sock.recv(MAX_PACKET, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionError):
                return None
            if not packet:
                return None
            message = decode(packet)
            if message[0] == Kind.PART:
                self._parts.append(message[1])
            elif message[0] == Kind.WHOLE:
                parts, self._parts = self._parts, []
                return decode(b"".join(parts))
            else:
                return message

    def take_back(self) -> tuple[Job, bytes] | None:
        """A job that the worker has not begun, with its packet; None where there is none."""
        while True:
            try:
                packet = self.far.recv(MAX_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            message = decode(packet)
            if message[0] != Kind.TASK:  # a GRANT: the worker is waiting for it
                self.send(packet)
                return None
            for job in self.jobs:
                if job.ticket == message[1]:
                    self.jobs.remove(job)
                    return job, packet

    def layout(self, number: int, new: Layout | None) -> Layout:
        """The layout that the worker calls ``number``, learnt the first time."""
        if new is not None:
            self._layouts[number] = new
        return self._layouts[number]

    def wait_gone(self) -> None:
        """Waits until the process, which has ended or was killed, is gone. Idempotent."""
        if self.pidfd is not None:
            wait_readable(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None

    def close_sockets(self) -> None:
        """Closes both ends of the socket: an idle worker then ends. Idempotent."""
        self.sock.close()
        self.far.close()
