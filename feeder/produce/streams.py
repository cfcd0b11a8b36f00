"""What a process has open of a stream: the lanes of every run that chunk.

Guarantees:
    * The lanes of a run that is over are closed with the next chunk of any run, or at the end.

Owner:
    A `Streams` owns its runs; `close` closes all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from feeder.plan.chunks import StreamChunk
from feeder.produce.recipe import Recipe
from feeder.produce.stream_run import StreamRun
from feeder.produce.turns import Turns


class Streams:
    """The runs of one process.

    Attributes:
        tell_busy: Called now and then while shards are read again; None: nobody asks.

    Args:
        recipe: Whose source is a stream.
        turns: Where several threads read the same lanes: whose turn it is, of the chunks that were
            begun there. None: there is one thread.
    """

    def __init__(self, recipe: Recipe, turns: Turns | None = None) -> None:
        self.tell_busy: Callable[[], None] | None = None
        self._recipe = recipe
        self._turns = turns
        self._key_global: Callable[[int], None] | None = None
        self._runs: dict[int, StreamRun] = {}
        self._lock = threading.Lock()

    def of(self, chunk: StreamChunk) -> StreamRun:
        """The run that a chunk belongs to; those that are over are closed."""
        with self._lock:
            if chunk.live != tuple(self._runs):
                over = self._runs.keys() - set(chunk.live)
                # A later one began after this chunk was asked for.
                for number in [number for number in over if number < max(chunk.live)]:
                    self._runs.pop(number).close()
            run = self._runs.get(chunk.run)
            if run is None:
                run = StreamRun(self._recipe, self._turns, self._tell_busy, self._key_global)
                self._runs[chunk.run] = run
            return run

    def forsake(self, chunk: StreamChunk) -> None:
        """The thread that reads a chunk is stuck, and left to itself."""
        assert self._turns is not None
        if (run := self._runs.get(chunk.run)) is not None:
            run.forsake(chunk)
        self._turns.end(chunk)

    def _tell_busy(self) -> None:
        if self.tell_busy is not None:
            self.tell_busy()

    def key_global(self, key: Callable[[int], None]) -> None:
        """From now on the global generators are keyed for each record; all is opened again."""
        self._key_global = key
        self.close()

    def close(self) -> None:
        """Closes all."""
        with self._lock:
            for run in self._runs.values():
                run.close()
            self._runs.clear()
