"""The zygote: a small, single-threaded process that forks workers and tells how they end.

Forking the user's process would copy JAX's threads' locks; spawning would import the user's
``__main__`` again, jax with it. The zygote has imported NumPy and the recipe's code, no user
code, so a worker costs one fork.

Guarantees:
    * It runs no user code: it always answers.
    * It ends when its parent does, in whatever way: it watches the parent's pidfd, and EOF.
    * No worker outlives it: a worker is killed by the kernel when the zygote ends.

Owner:
    The zygote owns its workers' processes: it alone forks and reaps them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass

from feeder.produce import worker
from feeder.produce.messages import MAX_PACKET, Kind, decode, encode

GRACE_MS = 300
"""Workers that are idle leave on their own when the parent closes; busy ones get this long."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class _Child:
    serial: int
    pid: int
    pidfd: int


class Zygote:
    """Forks workers on demand, reaps them, and reports both.

    Args:
        sock: The socket to the parent.
        parent_pidfd: Readable once the parent is gone.
        slab_fd: The slots.
        recipe_fd: The recipe.
    """

    def __init__(
        self, sock: socket.socket, parent_pidfd: int, slab_fd: int, recipe_fd: int
    ) -> None:
        self._sock = sock
        self._parent_pidfd = parent_pidfd
        self._slab_fd = slab_fd
        self._recipe_fd = recipe_fd
        self._children: dict[int, _Child] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(parent_pidfd, select.POLLIN)

    def run(self) -> None:
        """Serves until the parent closes its end, or dies; then ends all workers."""
        with contextlib.suppress(ConnectionError):
            while self._serve():
                pass
        self._end()

    def _serve(self) -> bool:
        for fd, _ in self._poll.poll():
            if fd == self._parent_pidfd:
                return False
            if fd != self._sock.fileno():
                self._reap(self._children[fd])
                continue
            packet, fds, _, _ = socket.recv_fds(self._sock, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
            if not packet:
                return False
            _, serial, worker_id, num_workers = decode(packet)
            self._spawn(serial, fds[0], worker_id, num_workers)
        return True

    def _spawn(self, serial: int, fd: int, worker_id: int, num_workers: int) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(zygote, fd, worker_id, num_workers)
        os.close(fd)
        child = _Child(serial, pid, os.pidfd_open(pid))
        self._children[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)
        socket.send_fds(self._sock, [encode(int(Kind.SPAWNED), serial, pid)], [child.pidfd])

    def _become_worker(self, zygote: int, fd: int, worker_id: int, num_workers: int) -> None:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == zygote:  # else it died before the line above
                for pidfd in self._children:
                    os.close(pidfd)
                self._sock.close()
                sock = socket.socket(fileno=fd)
                worker.main(sock, self._slab_fd, self._recipe_fd, worker_id, num_workers)
                code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # not sys.exit: the zygote's stack and atexit are not the worker's

    def _reap(self, child: _Child) -> None:
        self._poll.unregister(child.pidfd)
        del self._children[child.pidfd]
        _, status = os.waitpid(child.pid, 0)
        os.close(child.pidfd)
        code = os.waitstatus_to_exitcode(status)
        self._sock.send(encode(int(Kind.EXITED), child.serial, code))

    def _end(self) -> None:
        """Gives idle workers time to see EOF, kills the others, and reaps all."""
        self._poll.unregister(self._sock)
        self._poll.unregister(self._parent_pidfd)
        while self._children:
            ended = self._poll.poll(GRACE_MS)
            for child in [self._children[fd] for fd, _ in ended] or list(self._children.values()):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
                self._poll.unregister(child.pidfd)
                del self._children[child.pidfd]
                os.waitpid(child.pid, 0)


def main(sock_fd: int, parent_pid: int, slab_fd: int, recipe_fd: int) -> None:
    """The life of the zygote, from after its imports to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the user's process alone
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited SIG_IGN would reap the workers
    try:
        parent_pidfd = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        return
    if os.getppid() != parent_pid:
        return
    gc.collect()
    gc.freeze()  # a collection in a worker shall not touch, and so copy, the shared pages
    Zygote(socket.socket(fileno=sock_fd), parent_pidfd, slab_fd, recipe_fd).run()
