"""Whose turn it is to read, where threads share the lanes of a stream.

Guarantees:
    * Each lane is read by one thread at a time, for one chunk after the other, in the order in
      which the chunks were begun: none ever waits for what a later one waits for.
    * Who waits for a turn waits for threads that have theirs, and for nothing else; not after
      `close`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from feeder.plan.chunks import StreamChunk
from feeder.produce.session import GivenUpError

_Lane: TypeAlias = tuple[int, int]
"""Run and number of a lane."""


class Turns:
    """A line of chunks before each lane."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[_Lane, deque[StreamChunk]] = {}
        self._closed = False

    def begin(self, chunk: StreamChunk) -> None:
        """A chunk is begun: it comes last in the line of each of its lanes."""
        with self._changed:
            for lane in _lanes_of(chunk):
                self._lines.setdefault(lane, deque()).append(chunk)

    def wait(self, chunk: StreamChunk) -> None:
        """Waits until it comes first in all of them.

        Raises:
            GivenUpError: All was closed, or the chunk was given up.
        """

        def is_first() -> bool:
            if self._closed or not self._is_in_line(chunk):
                raise GivenUpError
            return self._is_first(chunk)

        with self._changed:
            self._changed.wait_for(is_first)

    def has(self, chunk: StreamChunk) -> bool:
        """Whether it is its turn: not, once it was given up."""
        with self._changed:
            return self._is_in_line(chunk) and self._is_first(chunk)

    def _is_in_line(self, chunk: StreamChunk) -> bool:
        return all(chunk in self._lines.get(lane, ()) for lane in _lanes_of(chunk))

    def _is_first(self, chunk: StreamChunk) -> bool:
        return all(self._lines[lane][0] is chunk for lane in _lanes_of(chunk))

    def end(self, chunk: StreamChunk) -> None:
        """A chunk was read, or will not be. Idempotent."""
        with self._changed:
            for lane in _lanes_of(chunk):
                line = self._lines.get(lane)
                if line is not None and chunk in line:
                    line.remove(chunk)
                    if not line:
                        del self._lines[lane]
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def if_free(self, run: int, lane: int, chunk: StreamChunk, do: Callable[[], object]) -> None:
        """Does something quick with a lane, where it is this chunk's turn, or nobody's."""
        with self._changed:
            line = self._lines.get((run, lane))
            if line is None or line[0] is chunk:
                do()


def _lanes_of(chunk: StreamChunk) -> Iterator[_Lane]:
    return ((chunk.run, lane + chunk.first_lane) for lane in chunk.pattern.lane_set)
