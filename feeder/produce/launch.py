"""Starting the zygote, and talking to it from the parent's side."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

from feeder.produce import boot
from feeder.produce.messages import MAX_PACKET, Kind, decode, encode
from feeder.produce.room import start_error

CLOSE_TIMEOUT_S = 2.0
"""A zygote that has not ended by then is killed; it takes its workers with it."""

_ENVIRONMENT = {
    # Should user code import jax in a worker, it must not take the accelerator.
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    # Workers are the parallelism: threads inside each would only fight over the cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


class Spawned(NamedTuple):
    """A worker lives."""

    serial: int
    pid: int
    pidfd: int


class Exited(NamedTuple):
    """A worker ended; the code is negative for a signal, as in `subprocess`."""

    serial: int
    code: int


class ZygoteProcess:
    """The zygote, seen from its parent.

    Owner:
        Owns the process, its pidfd and the socket to it; `close` ends all three.

    Attributes:
        sock: Readable when there is a word from the zygote, or EOF.
        pidfd: Readable once the zygote is dead.

    Args:
        slab_fd: The slots.
        recipe_fd: The recipe.
    """

    def __init__(self, slab_fd: int, recipe_fd: int) -> None:
        self.sock, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with far:
                numbers = [far.fileno(), os.getpid(), slab_fd, recipe_fd]
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        boot.__file__,
                        json.dumps(list(map(str, sys.path))),
                        *map(str, numbers),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(far.fileno(), slab_fd, recipe_fd),
                    env={**os.environ, **_ENVIRONMENT},
                    process_group=0,  # out of reach of the terminal's Ctrl-C
                )
            self.pidfd = os.pidfd_open(self._process.pid)
        except BaseException:
            self.sock.close()
            raise

    def spawn(self, serial: int, worker_id: int, num_workers: int, far: socket.socket) -> None:
        """Asks for a worker that serves ``far``, the one of so many.

        Raises:
            ConnectionError: The zygote is gone.
        """
        packet = encode(int(Kind.SPAWN), serial, worker_id, num_workers)
        socket.send_fds(self.sock, [packet], [far.fileno()])

    def hear(self) -> Spawned | Exited | None:
        """The next word from the zygote, without waiting; None where there is none.

        Raises:
            EOFError: The zygote is gone.
        """
        try:
            packet, fds, _, _ = socket.recv_fds(
                self.sock, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise EOFError from error
        if not packet:
            raise EOFError
        kind, serial, value = decode(packet)
        if kind == Kind.SPAWNED and not fds:
            full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise start_error(full) or full
        return Spawned(serial, value, fds[0]) if kind == Kind.SPAWNED else Exited(serial, value)

    def close(self) -> int:
        """Ends the zygote and its workers, and waits for it.

        Returns:
            Its exit code.
        """
        self.sock.close()
        if not wait_readable(self.pidfd, CLOSE_TIMEOUT_S):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        code = self._process.wait()
        os.close(self.pidfd)
        return code


def wait_readable(fd: int, timeout_s: float | None = None) -> bool:
    """Waits until ``fd`` is readable; False if it was not within ``timeout_s``."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
