"""Worker processes for the iterators of one loader, from any thread.

Guarantees:
    * One thread at a time moves things on, for all iterators: the pumper. The others wait for
      it, and one of them follows it. Nobody holds a lock while it waits for a worker.
    * `close` ends every wait. From another thread, it returns when all has ended; from a signal
      handler that interrupted the pumper, all ends as soon as the pumper goes on.
    * In a forked copy of the process, nothing is touched.

Owner:
    The pool owns the dispatcher, the slab and the recipe's memfd. `close` ends all.

There is no thread of its own: workers have the whole window of jobs before them, so they are busy
while the user computes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

from feeder.errors import ClosedError
from feeder.plan.chunks import Chunk, StreamChunk
from feeder.produce import payload, room
from feeder.produce.crew import Crew
from feeder.produce.dispatch import Dispatcher
from feeder.produce.homes import Homes
from feeder.produce.jobs import Inbox, Job
from feeder.produce.messages import fits_packet
from feeder.produce.recipe import Recipe
from feeder.produce.session import Locate, Outcome
from feeder.produce.slots import FORKED, Slab
from feeder.produce.supervise import Limits, Supervisor
from feeder.produce.workforce import Workforce
from feeder.sources.callable import FromCallable

SMALL_BYTES = 8 * 2**20
"""Slots that may be used to keep small batches, which cost less than waking a worker, ahead."""


class Pool:
    """Builds batches in worker processes.

    Args:
        recipe: What builds a batch.
        num_workers: Worker processes, at least 1.
        limits: What they may take.
        prefetch_batches: Batches that one session should have under way; None: two for each
            worker, and up to 16 while their slots take less than `SMALL_BYTES`.
        slab: The slots, owned from now on.

    Raises:
        TypeError: The recipe cannot be pickled.
    """

    def __init__(
        self,
        recipe: Recipe,
        num_workers: int,
        limits: Limits,
        prefetch_batches: int | None,
        slab: Slab,
    ) -> None:
        if isinstance(recipe.source, FromCallable):  # it stays here; what it gives travels
            recipe = replace(recipe, source=FromCallable(_stays_here))
        self._num_workers = num_workers
        self._prefetch_batches = prefetch_batches
        self._slab = slab
        try:
            self._recipe_fd, own_bytes = payload.pack(recipe)
            try:
                room.check(num_workers, own_bytes, limits.max_bytes)
            except BaseException:  # a warning that is an error
                os.close(self._recipe_fd)
                raise
        except BaseException:
            self._slab.close()
            raise
        self._crew = Crew(num_workers, self._slab.fd, self._recipe_fd)
        # A `collate`, or a batch transform, sees the whole batch.
        in_one_piece = bool(recipe.collate or recipe.batch_transforms)
        in_one_piece = in_one_piece or isinstance(recipe.source, FromCallable)
        chunks = 1 if in_one_piece else limits.chunks_per_batch
        self._num_chunks = chunks
        self._supervisor = Supervisor(replace(limits, chunks_per_batch=chunks))
        self._dispatcher = Dispatcher(self._crew, self._slab, self._supervisor, chunks)
        self._homes = None if recipe.lanes is None else Homes.of(recipe, num_workers)
        self._can_split = not in_one_piece and self._homes is None
        self._tickets = itertools.count()
        self._pid = os.getpid()
        self._turn = threading.Condition()  # reentrant: a signal handler may come in between
        self._pumper: int | None = None
        self._waiting = 0  # threads that wait for the pumper
        self._closed = False
        self._ended = False

    @property
    def window(self) -> int:
        """Batches that one session should have under way."""
        if self._prefetch_batches is not None:
            return self._prefetch_batches
        least = 2 * self._num_workers
        if not self._slab.slot_bytes:
            return least
        return max(least, min(8 * least, SMALL_BYTES // self._slab.slot_bytes))

    @property
    def num_restarts(self) -> int:
        """Workers that died and were replaced."""
        return self._supervisor.num_restarts

    def workforce(self) -> Workforce:
        """The worker processes."""
        workers = list(self._crew.workers.values())
        return Workforce(
            "process",
            self._num_workers,
            self.window,
            self._slab.slot_bytes,
            self._slab.held_bytes,
            self._slab.max_bytes,
            {worker.worker_id: worker.pid for worker in workers if worker.pid is not None},
            self._supervisor.num_restarts,
            tuple(self._supervisor.deaths),
            self._can_split,
            self._num_chunks,
        )

    def start(self) -> None:
        """Starts the workers: they load the recipe while the user sets up the rest."""
        if os.getpid() == self._pid:
            self._in_turn(self._start)

    def session(self, locate: Locate | None = None) -> PoolSession:
        """Opens a session.

        Raises:
            ClosedError: The pool belongs to the process that forked this one.
        """
        self._check_own()
        return PoolSession(self, locate)

    def submit(self, inbox: Inbox, chunk: Chunk) -> None:
        """Takes a job for the owner of ``inbox``; the next `poll` or `wait` sends it."""
        job = Job(next(self._tickets), chunk, weakref.ref(inbox))
        if isinstance(chunk, StreamChunk):
            assert self._homes is not None
            job.homes = self._homes.split(chunk)
            if len(job.homes) > 1:
                job.in_one_piece = not all(fits_packet(part) for _, part in job.homes)
        self._dispatcher.submitted.append(job)

    def poll(self) -> None:
        """Sends and hears what can be sent and heard at once."""
        self._in_turn(functools.partial(self._step, 0))

    def wait(self, inbox: Inbox) -> None:
        """Waits until there is something in the inbox, whose owner has asked for something.

        Raises:
            ClosedError: The pool, or the inbox, was closed.
        """
        self._check_own()
        inbox.awaited = True
        try:
            while not self._in_turn(functools.partial(self._pump, inbox)):
                if not self._await_turn(inbox):
                    return
        finally:
            inbox.awaited = False

    def _await_turn(self, inbox: Inbox) -> bool:
        """Waits until the pumper has changed; False where it has filled the inbox."""
        with self._turn:
            if self._pumper is None:
                return True
            if inbox.arrived:
                return False
            self._check_open(inbox)
            if self._is_pumper():
                raise RuntimeError("next() was called by a signal handler that interrupted it")
            # Counted first: the pumper, woken to send our jobs, then tells of what it got.
            self._waiting += 1
            try:
                self._crew.wake()
                self._turn.wait()
            finally:
                self._waiting -= 1
            return True

    def _pump(self, inbox: Inbox) -> None:
        """Moves things on, for all, until there is something in the inbox."""
        while not inbox.arrived:
            self._check_open(inbox)
            self._step(-1)
            if self._waiting:
                with self._turn:
                    self._turn.notify_all()

    def abandon(self, inbox: Inbox) -> None:
        """Gives up the jobs of an inbox; those that no worker has begun are never done."""
        inbox.closed = True
        inbox.arrived = []
        if os.getpid() != self._pid:
            return
        if not self._in_turn(self._dispatcher.drop_unwanted):
            self._crew.wake()

    def close(self) -> None:
        """Ends all processes and gives all memory back but that of live batches. Idempotent."""
        if os.getpid() != self._pid:
            return
        with self._turn:
            self._closed = True
            if self._pumper is None or (self._is_pumper() and not self._turns_going_on()):
                self._end()
                return
            self._crew.wake()
            while not self._is_pumper() and not self._ended:
                self._turn.wait()

    def _in_turn(self, do: Callable[[], None]) -> bool:
        """Does something as the pumper; False where there is one."""
        begun = False
        if not self._take_turn():
            return begun
        try:
            begun = True  # for `_turns_going_on`
            do()
        finally:
            self._end_turn()
        return begun

    def _take_turn(self) -> bool:
        """Makes this thread the pumper; False where there is one."""
        with self._turn:
            if self._pumper is not None and (self._turns_going_on() or not self._is_pumper()):
                return False
            self._pumper = threading.get_ident()
            return True

    def _is_pumper(self) -> bool:
        return self._pumper == threading.get_ident()

    def _turns_going_on(self) -> int:
        """How many turns of this thread are on its stack, beside one that is about to begin.

        Ctrl-C may come between any two instructions, around the ``try`` of `_in_turn` too: then
        this thread is said to be the pumper, and has no turn. A turn that a signal handler has
        interrupted is still on the stack below it.
        """
        turns, frame = 0, inspect.currentframe()
        while frame is not None:
            if frame.f_code is _TURN and frame.f_locals["self"] is self:
                turns += frame.f_locals["begun"]
            frame = frame.f_back
        return turns

    def _end_turn(self) -> None:
        with self._turn:
            self._pumper = None
            if self._closed and os.getpid() == self._pid:
                self._end()
            if self._waiting:
                self._turn.notify_all()

    def _end(self) -> None:
        if not self._ended:
            self._dispatcher.end()
            self._slab.close()
            os.close(self._recipe_fd)
            self._ended = True
            self._turn.notify_all()

    def _start(self) -> None:
        if not self._closed:
            self._dispatcher.start()

    def _step(self, timeout_s: float) -> None:
        if self._closed:
            raise ClosedError
        if os.getpid() != self._pid:
            raise ClosedError(FORKED)
        self._dispatcher.step(timeout_s)

    def _check_own(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(FORKED)

    def _check_open(self, inbox: Inbox) -> None:
        if self._closed:
            raise ClosedError
        if inbox.closed:
            raise ClosedError("the iterator was closed, or set to another state, while it waited")


class PoolSession:
    """One iterator's jobs at a pool."""

    def __init__(self, pool: Pool, locate: Locate | None) -> None:
        self._pool = pool
        before = pool.num_restarts
        self._inbox = Inbox(restarts_before=before, restarts_told=before, locate=locate)

    def submit(self, chunk: Chunk) -> None:
        """Asks for a batch."""
        self._pool.submit(self._inbox, chunk)

    def poll(self) -> None:
        """Sends and hears what can be sent and heard at once."""
        self._pool.poll()

    def wait(self) -> None:
        """Waits until there is something to take."""
        self._pool.wait(self._inbox)

    def take(self) -> list[tuple[int, Outcome]]:
        """The (step, outcome) pairs that came since the last call."""
        arrived, self._inbox.arrived = self._inbox.arrived, []
        return arrived

    def renew(self) -> None:
        """Gives up all that was asked for and not taken, and goes on."""
        given_up = self._inbox
        self._inbox = Inbox(
            restarts_before=given_up.restarts_before,
            restarts_told=given_up.restarts_told,
            locate=given_up.locate,
        )
        self._pool.abandon(given_up)

    def close(self) -> None:
        """Gives up all that was asked for and not taken."""
        self._pool.abandon(self._inbox)


_TURN = Pool._in_turn.__code__


def _stays_here(_batch_size: int) -> None:
    """In the place of a callable, in workers."""
