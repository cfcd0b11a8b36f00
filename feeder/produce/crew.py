"""The processes of a pool: one zygote, its workers, and word of how each of them ends.

Guarantees:
    * A death is told once, after every message that the worker had sent before it, and only
      when the process is gone for certain.
    * What a worker waits for reaches it, however full its socket is.
    * A wait ends with the zygote too: it is watched by pidfd, and its workers die with it.

Owner:
    The crew owns the zygote, every worker's handle and the epoll. `end` ends and closes them;
    the crew can then start again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from feeder.produce.handle import WorkerHandle
from feeder.produce.launch import Exited, Spawned, ZygoteProcess, wait_readable
from feeder.produce.messages import Message
from feeder.produce.room import start_error


class Heard(NamedTuple):
    """A worker said something."""

    worker: WorkerHandle
    message: Message


class Death(NamedTuple):
    """A worker is gone.

    Attributes:
        worker: Its handle, which no longer counts among the living.
        exit_code: As in `subprocess`: -N for signal N. None where the zygote ended, and the
            worker with it.
    """

    worker: WorkerHandle
    exit_code: int | None


class ZygoteDeath(NamedTuple):
    """The zygote is gone; all its workers went before."""


Event: TypeAlias = Heard | Death | ZygoteDeath


class Crew:
    """Starts workers and hears them.

    Attributes:
        workers: Those that live, by serial.
        num_workers: How many there should be.

    Args:
        num_workers: Workers that `start` starts.
        slab_fd: The slots.
        recipe_fd: The recipe.
    """

    def __init__(self, num_workers: int, slab_fd: int, recipe_fd: int) -> None:
        self.workers: dict[int, WorkerHandle] = {}
        self.num_workers = num_workers
        self._slab_fd = slab_fd
        self._recipe_fd = recipe_fd
        self._serials = itertools.count()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._zygote: ZygoteProcess | None = None
        self._epoll: select.epoll | None = None
        self._waker: int | None = None

    def adopt(self, worker: WorkerHandle) -> None:
        """Owns a worker from now on, and hears it."""
        self._open()
        assert self._epoll is not None
        self.workers[worker.serial] = worker
        self._by_fd[worker.sock.fileno()] = worker
        self._epoll.register(worker.sock, select.EPOLLIN)

    def _open(self) -> None:
        if self._epoll is None:
            self._epoll = select.epoll()
        if self._waker is None:
            self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._epoll.register(self._waker, select.EPOLLIN)

    def start(self) -> None:
        """Starts what is missing: the zygote, and workers up to their number.

        Raises:
            WorkerStartError: The system has no room for them.
        """
        try:
            self._start()
        except OSError as error:
            if (explained := start_error(error)) is not None:
                raise explained from error
            raise

    def _start(self) -> None:
        self._open()
        assert self._epoll is not None
        if self._zygote is None:
            self._zygote = ZygoteProcess(self._slab_fd, self._recipe_fd)
            self._epoll.register(self._zygote.sock, select.EPOLLIN)
            self._epoll.register(self._zygote.pidfd, select.EPOLLIN)
        while len(self.workers) < self.num_workers:
            taken = {worker.worker_id for worker in self.workers.values()}
            free = next(number for number in itertools.count() if number not in taken)
            worker = WorkerHandle(next(self._serials), free)
            self.adopt(worker)
            try:
                self._zygote.spawn(worker.serial, free, self.num_workers, worker.far)
            except ConnectionError:
                return  # the zygote is gone: the next `events` will tell

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Waits up to ``timeout_s`` (-1: for ever) until there is something for `events`."""
        assert self._epoll is not None
        return self._epoll.poll(timeout_s)

    def events(self, polled: list[tuple[int, int]]) -> Iterator[Event]:
        """Yields what came; never waits.

        Args:
            polled: What `poll` returned.
        """
        assert self._epoll is not None
        for fd, ready in polled:
            worker = self._by_fd.get(fd)
            if worker is not None:
                if ready & select.EPOLLOUT and worker.flush():
                    self._epoll.modify(fd, select.EPOLLIN)
                if (message := worker.receive()) is not None:
                    yield Heard(worker, message)
            elif fd == self._waker:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif self._zygote is not None and fd in (
                self._zygote.sock.fileno(),
                self._zygote.pidfd,
            ):
                yield from self._hear_zygote(self._zygote)

    def grant(self, worker: WorkerHandle, *packets: bytes) -> None:
        """Sends what the worker waits for; where its socket is full, as soon as there is room."""
        worker.outbox.extend(packets)
        if not worker.flush():
            assert self._epoll is not None
            self._epoll.modify(worker.sock, select.EPOLLIN | select.EPOLLOUT)

    def wake(self) -> None:
        """Lets a thread that waits in `poll` return."""
        if self._waker is not None:
            os.eventfd_write(self._waker, 1)

    def end(self) -> None:
        """Ends every process, and closes every descriptor. Idempotent.

        Interrupted, it is to be called again: nothing is forgotten before it is closed.
        """
        for worker in self.workers.values():
            worker.close_sockets()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        for worker in list(self.workers.values()):
            worker.wait_gone()
            del self.workers[worker.serial]
        self._by_fd.clear()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        if self._waker is not None:
            os.close(self._waker)
            self._waker = None

    def _hear_zygote(self, zygote: ZygoteProcess) -> Iterator[Event]:
        try:
            word = zygote.hear()
        except EOFError:
            yield from self._bury(zygote)
            return
        if word is None:
            if wait_readable(zygote.pidfd, 0):
                yield from self._bury(zygote)
        elif isinstance(word, Spawned):
            worker = self.workers[word.serial]
            worker.pid, worker.pidfd = word.pid, word.pidfd
        elif isinstance(word, Exited):
            yield from self._lose(self.workers[word.serial], word.code)

    def _bury(self, zygote: ZygoteProcess) -> Iterator[Event]:
        """The zygote is dead, and the kernel kills its workers."""
        assert self._epoll is not None
        self._zygote = None
        self._epoll.unregister(zygote.sock)
        self._epoll.unregister(zygote.pidfd)
        zygote.close()
        for worker in list(self.workers.values()):
            yield from self._lose(worker, None)
        yield ZygoteDeath()

    def _lose(self, worker: WorkerHandle, exit_code: int | None) -> Iterator[Event]:
        assert self._epoll is not None
        del self.workers[worker.serial]
        del self._by_fd[worker.sock.fileno()]
        self._epoll.unregister(worker.sock)
        worker.wait_gone()
        while (message := worker.receive()) is not None:
            yield Heard(worker, message)
        yield Death(worker, exit_code)
        worker.close_sockets()
