"""``num_workers=0``: the same recipe, built in this process when the batch is asked for."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque

from feeder.errors import ClosedError
from feeder.plan.chunks import Chunk
from feeder.produce.ambient import Ambient, preserved
from feeder.produce.builder import Builder
from feeder.produce.built import Built, Ended, Passed
from feeder.produce.failures import Failure
from feeder.produce.given import GivenBuilder, builder_of
from feeder.produce.layout import Buffer
from feeder.produce.recipe import Recipe
from feeder.produce.session import LocalBatch, Locate, Outcome, from_the_beginning
from feeder.produce.slots import Slab, Slot
from feeder.produce.workforce import Workforce


class Inline:
    """Builds batches in the calling thread.

    Owner:
        Owns the slab.

    Attributes:
        ahead: Whether batches are built before they are asked for.

    Args:
        recipe: What builds a batch.
        slab: The slots.
        ahead: Whether `poll` builds, so that a batch can be on its way to the devices while
            the one before it is used; else only `wait` does, when it is asked for.
    """

    window = 1

    def __init__(self, recipe: Recipe, slab: Slab, ahead: bool) -> None:
        self._recipe = recipe
        self.ahead = ahead
        self._slab = slab
        self._sessions: weakref.WeakSet[InlineSession] = weakref.WeakSet()

    def start(self) -> None:
        """Nothing to do."""

    def workforce(self) -> Workforce:
        """Nobody but the user's thread."""
        return Workforce(
            slot_bytes=self._slab.slot_bytes,
            slots_bytes=self._slab.held_bytes,
            max_bytes=self._slab.max_bytes,
        )

    def session(self, locate: Locate | None = None) -> InlineSession:
        """Opens a session, with a builder of its own."""
        builder = builder_of(self._recipe, Ambient(self._recipe.seed))
        session = InlineSession(builder, self._slab, self.ahead, locate)
        weakref.finalize(session, builder.close)  # an iterator that nobody closed
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Gives back the memory of batches that nobody holds; closes what is open of a stream."""
        for session in self._sessions:
            session.close()
        self._slab.close()


class InlineSession:
    """Builds one batch per `wait`, and per `poll` where it builds ahead."""

    def __init__(
        self, builder: Builder | GivenBuilder, slab: Slab, ahead: bool, locate: Locate | None
    ) -> None:
        self._builder = builder
        self._ahead = ahead
        self._slab = slab
        self._locate = locate
        self._closed = False
        self._asked: deque[Chunk] = deque()
        self._arrived: list[tuple[int, Outcome]] = []

    def submit(self, chunk: Chunk) -> None:
        """Asks for a batch."""
        self._asked.append(chunk)

    def poll(self) -> None:
        """Builds the next batch, where batches are built ahead."""
        if self._ahead:
            self.wait()

    def wait(self) -> None:
        """Builds the next batch, if one was asked for.

        Raises:
            ClosedError: All was closed.
        """
        if self._closed:
            raise ClosedError
        if self._asked:
            chunk = self._asked.popleft()
            outcome = build_here(self._builder, chunk, self._slab, locate=self._locate)
            self._arrived.append((chunk.step, outcome))

    def take(self) -> list[tuple[int, Outcome]]:
        """The (step, outcome) pairs that came since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def renew(self) -> None:
        """Forgets what was asked for."""
        self._asked.clear()
        self._arrived.clear()

    def close(self) -> None:
        """Forgets what was asked for, and closes what is open of a stream."""
        self._closed = True
        self.renew()
        self._builder.close()


def build_here(
    builder: Builder | GivenBuilder,
    chunk: Chunk,
    slab: Slab,
    spare: int = 0,
    locate: Locate | None = None,
) -> Outcome:
    """Builds a batch in this thread, in a slot of ``slab`` that leaves ``spare`` others."""
    slot: Slot | None = None

    def reserve(num_bytes: int) -> tuple[Buffer, int]:
        nonlocal slot
        if slot is not None:  # of an attempt that is made again
            slab.free(slot)
            slot = None
        slot = slab.allocate(num_bytes, spare)
        return slab.memory(), slot.offset

    outcome: Built | Ended | Passed | Failure | None = None
    try:
        with preserved() if builder.keys_generators else contextlib.nullcontext():
            outcome = builder.build(chunk, reserve, locate or from_the_beginning)
    finally:  # also where Ctrl-C interrupts it
        if slot is not None and not isinstance(outcome, Built):
            slab.free(slot)
    if not isinstance(outcome, Built):
        return outcome
    assert slot is not None
    return LocalBatch(outcome, slab.lease(slot))
