"""A worker process as its parent sees it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable

from feeder.produce.jobs import Task
from feeder.produce.launch import wait_readable
from feeder.produce.layout import Layout
from feeder.produce.messages import MAX_PACKET, Kind, Message, decode


class WorkerHandle:
    """One worker: its socket, its process, and the jobs that it has.

    Owner:
        Owns both ends of the socket and the pidfd, until `close_sockets` and `wait_gone`. The
        process belongs to the zygote.

    The parent keeps the worker's end too: packets that the worker has not yet taken can then
    be taken back, and the kernel decides who was first.

    Attributes:
        serial: Its number, unique in the pool.
        worker_id: Its number among the workers that live.
        sock: The parent's end.
        far: The worker's end.
        pid: Process id; None until the zygote has forked it.
        since: When it was last heard, or sent what it had waited for: seconds of a monotonic clock.
        ready: Whether it has loaded the recipe.
        proven: Whether it has answered a task.
        timed_out: Whether it was killed for being at one chunk for too long.
        broken: Whether it could not load the recipe.
        outbox: A GRANT or OPEN that found the socket full.
        tasks: What it was sent and has not answered, in order; it works on the first.
    """

    def __init__(self, serial: int, worker_id: int = 0) -> None:
        self.serial = serial
        self.worker_id = worker_id
        self.sock, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.since = time.monotonic()
        self.ready = False
        self.proven = False
        self.timed_out = False
        self.broken = False
        self.outbox: deque[bytes] = deque()
        self.tasks: deque[Task] = deque()
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
        while self.outbox and self.send(self.outbox[0]):
            self.outbox.popleft()
        return not self.outbox

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

    def take_back(self) -> tuple[list[Task], bytes] | None:
        """Tasks that the worker has not begun, with their packet; None where there are none."""
        while True:
            try:
                packet = self.far.recv(MAX_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            message = decode(packet)
            if message[0] != Kind.TASK:  # a GRANT or OPEN: the worker is waiting for it
                self.send(packet)
                return None
            tickets = {ticket for ticket, *_ in message[1:]}
            if found := [task for task in self.tasks if task.ticket in tickets]:
                self.tasks = deque(task for task in self.tasks if task.ticket not in tickets)
                return found, packet

    def begin(self, tasks: Iterable[Task]) -> None:
        """Takes note of tasks that were sent to it."""
        if not self.tasks:
            self.since = time.monotonic()
        self.tasks.extend(tasks)

    def kill(self) -> None:
        """Kills the process; the zygote tells when it is gone."""
        if self.pidfd is not None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

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
