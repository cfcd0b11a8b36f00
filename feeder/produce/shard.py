"""One shard of a stream, open: its records in order, and its state.

Guarantees:
    * A shard opened at a state goes on with the very next record.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import pickle
from collections.abc import Iterator
from typing import Any

from feeder import stateful
from feeder.errors import StreamError
from feeder.sources.stream import Stream

_log = logging.getLogger("feeder")


class Shard:
    """Reads one shard.

    Owner:
        Owns the user's iterator; `close` closes it.

    Attributes:
        number: Its number in the stream.
        num_read: Records read of it.
        iterator: The user's; who reads from it sees to `num_read`.

    Args:
        stream: Whose shard it is.
        number: Its number in the stream.
        epoch: Number of the epoch.
        num_read: Records that were read of it, where there is a state.
        state: What `state` returned after them; None: it begins anew.
    """

    def __init__(
        self, stream: Stream, number: int, epoch: int, num_read: int = 0, state: bytes | None = None
    ) -> None:
        self.number = number
        self.num_read = 0
        loaded = None if state is None else pickle.loads(state)
        opened = stream.open(number, epoch, loaded)
        if isinstance(opened, str | bytes) or not hasattr(opened, "__iter__"):
            remedy = "; does the function end without a return?" if opened is None else ""
            raise TypeError(
                f"a stream must be opened as an iterator over records, got {type(opened).__name__} "
                f"for shard {number}{remedy}"
            )
        if inspect.isgenerator(opened) and inspect.getgeneratorstate(opened) != "GEN_CREATED":
            raise TypeError(
                f"a stream must be opened anew each time, got a generator for shard {number} that "
                "was read before; make a new one in the function"
            )
        self.iterator: Iterator[Any] = iter(opened)
        owner: Any = self.iterator
        if stateful.saver(owner) is None and stateful.saver(opened) is not None:
            owner = opened
        load = stateful.loader(owner)
        self._save = stateful.saver(owner)
        if load is None and not stream.opens_at_state:
            self._save = None  # it could be saved, and not restored
        if state is None or self._save is None:
            return
        if load is not None:
            load(pickle.loads(state))  # its own: `open` may have kept the other
            if owner is opened and owner is not self.iterator:
                self.iterator = iter(opened)  # it begins where the state says
        elif not _equal(self._save(), pickle.loads(state)):
            raise StreamError(
                f"`open` must begin at the state that it is given, got {loaded!r} for shard "
                f"{number} and an iterator whose state is {self._save()!r}; let open(shard, epoch, "
                "state) begin there, or give the iterator load_state_dict() or set_state()",
                epoch=epoch,
            )
        self.num_read = num_read

    @property
    def is_stateful(self) -> bool:
        """Whether it can be opened again where it is, without reading all before it."""
        return self._save is not None

    def state(self) -> bytes | None:
        """What the iterator says of itself now, pickled: it may change what it returned.

        None: it has no state.

        Raises:
            Exception: Whatever the iterator raises, or pickling what it returned.
        """
        saved = None if self._save is None else self._save()
        if saved is None:
            return None
        try:
            return pickle.dumps(saved, 5)
        except Exception as error:
            error.add_note(
                "The state of a stream's iterator is saved by pickle; JSON-able values make it one "
                "that any checkpoint can hold."
            )
            raise

    def read(self, records: list[Any], count: int) -> bool:
        """Reads the next records.

        Args:
            records: Gets them; those before an error too.
            count: How many.

        Returns:
            Whether the shard is over: there were fewer.

        Raises:
            Exception: Whatever the iterator raises.
        """
        before = len(records)
        records.extend(itertools.islice(self.iterator, count))
        found = len(records) - before
        self.num_read += found
        return found < count

    def close(self) -> None:
        """Closes the iterator, where it can be closed: a generator's ``finally`` runs."""
        close = getattr(self.iterator, "close", None)
        if getattr(self.iterator, "gi_running", False):
            return  # a thread is stuck in this generator: nobody can close it
        if callable(close):
            try:
                close()
            except Exception as error:  # a thread may be stuck in it; nobody waits for this shard
                _log.warning("closing shard %d of a stream raised %r", self.number, error)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # of arrays
        return pickle.dumps(one, 5) == pickle.dumps(other, 5)
