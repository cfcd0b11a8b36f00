"""Reads an iterable sampler from its beginning, and knows where it is.

Guarantees:
    * A `Reader` gives the same items as any other of the same sampler, from wherever it goes on:
      a checksum of all that was read says so, or an error does.
    * The sampler that the user holds is not touched: every reader has a copy.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from feeder import stateful
from feeder.errors import SamplerError, StateError
from feeder.plan.lookup import as_indices, crc_of
from feeder.plan.order import Indices

_SNAPSHOT_EVERY = 8192
"""Indices read between two snapshots of a stateful sampler; what follows one is read again."""

_SKIPPED_AT_ONCE = 8192


class Reader:
    """Reads a sampler epoch by epoch.

    What it read last, and where, is `draws`: JSON-able, and all that another reader needs to go on.
    A sampler, or its iterator, that has ``state_dict`` and ``load_state_dict`` (or ``get_state``
    and ``set_state``), with JSON-able states, goes on from its state; any other is read again from
    its beginning. ``set_epoch(epoch)``, where offered, is called before each epoch.

    Args:
        name: ``"sampler"`` or ``"batch_sampler"``, for messages.
        sampler: An iterable that can be read more than once.
        length: Items in each epoch; None: unknown.
        draws: Where to go on; None: at the beginning.
        limit: Items, at most, that lie before that.

    Attributes:
        epoch: Number of the epoch that is being read.
        num_items: Items read of it.
    """

    def __init__(
        self,
        name: str,
        sampler: Any,
        length: int | None,
        draws: dict[str, Any] | None,
        limit: int,
    ) -> None:
        self._name = name
        self._length = length
        self._sampler = copied(sampler)
        self._crc = 0
        self._since_snapshot = 0
        self._snapshot: dict[str, Any] | None = None
        self.epoch = -1
        self.next_epoch()
        if draws is not None:
            self._go_to(draws, limit)

    @property
    def draws(self) -> dict[str, Any]:
        """Where it is."""
        return {
            "epoch": self.epoch,
            "items": self.num_items,
            "crc": self._crc,
            "snapshot": self._snapshot,
        }

    def next_epoch(self) -> None:
        """Begins the next epoch."""
        self.epoch += 1
        self.num_items = 0
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self.epoch)
        self._items: Iterator[Any] = iter(self._sampler)
        # Not yet: before its first item, a generator's sampler still speaks of the epoch before.
        self._snapshot = None

    def indices(self, count: int) -> Indices:
        """The next indices of the epoch; fewer than ``count``: it is over."""
        values = self._take(count)
        indices = as_indices(values)
        if indices is None:
            wrong = next((value for value in values if as_indices([value]) is None), values)
            raise SamplerError(f"`sampler` must give integers, got {wrong!r}")
        self._crc = crc_of(indices, self._crc)
        self._note_state(len(indices), over=len(indices) < count)
        return indices

    def batch(self) -> Indices | None:
        """The next batch of the epoch; None: it is over."""
        values = self._take(1)
        if not values:
            return None
        indices = as_indices(values[0])
        if indices is None:
            raise SamplerError(
                f"`batch_sampler` must give batches of record indices, got {values[0]!r}"
            )
        self._crc = crc_of(np.array([len(indices), *indices]), self._crc)
        self._note_state(len(indices), over=False)
        return indices

    def _take(self, count: int) -> list[Any]:
        values = list(itertools.islice(self._items, count))
        self.num_items += len(values)
        over = len(values) < count
        if self._length is not None and (
            self.num_items > self._length or (over and self.num_items < self._length)
        ):
            raise SamplerError(
                f"`{self._name}` must give {self._length} items in each epoch, as its len() says, "
                f"got {'only ' if over else ''}{self.num_items} in epoch {self.epoch}"
            )
        return values

    def _note_state(self, num_read: int, over: bool) -> None:
        """Takes a snapshot, now and then; not at an epoch's end, where samplers begin anew."""
        self._since_snapshot += num_read
        if over or (self._snapshot is not None and self._since_snapshot < _SNAPSHOT_EVERY):
            return
        self._since_snapshot = 0
        for owner, of in ((self._items, "iterator"), (self._sampler, "sampler")):
            if (state := _state_of(owner)) is not None:
                self._snapshot = {
                    "of": of,
                    "state": state,
                    "items": self.num_items,
                    "crc": self._crc,
                }
                return

    def _go_to(self, draws: dict[str, Any], limit: int) -> None:
        """Goes on from the snapshot, or from the beginning."""
        snapshot = draws["snapshot"]
        if snapshot is None:
            while self.epoch < draws["epoch"]:
                while self._skip(_SKIPPED_AT_ONCE):
                    if self.num_items > limit:
                        raise self._differs()
                if not self.num_items:
                    raise self._differs()
                limit -= self.num_items
                self.next_epoch()
        else:
            self._load(draws["epoch"], snapshot)
        while self.num_items < draws["items"]:
            if not self._skip(min(_SKIPPED_AT_ONCE, draws["items"] - self.num_items)):
                raise self._differs()
        if draws["crc"] not in (None, self._crc):
            raise self._differs()

    def _skip(self, count: int) -> bool:
        """Reads on by up to ``count`` items; False: the epoch is over."""
        if self._name == "sampler":
            return len(self.indices(count)) == count
        return self.batch() is not None

    def _load(self, epoch: int, snapshot: dict[str, Any]) -> None:
        self.epoch = epoch
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        if snapshot["of"] == "sampler":
            _load_state(self._sampler, self._name, snapshot["state"])
        self._items = iter(self._sampler)
        if snapshot["of"] == "iterator":
            _load_state(self._items, self._name, snapshot["state"])
        self._snapshot = snapshot
        self.num_items = snapshot["items"]
        self._crc = snapshot["crc"]

    def _differs(self) -> SamplerError:
        return SamplerError(
            f"`{self._name}` must give the same items each time it is read from its beginning, or "
            "from its state, got others than before; seed it, or give it state_dict() and "
            "load_state_dict()"
        )


def check_draws(draws: dict[str, Any]) -> None:
    """Checks what a checkpoint says of a reader.

    Raises:
        StateError: It is damaged.
    """
    counts = {"epoch": draws.get("epoch"), "items": draws.get("items")}
    snapshot = draws.get("snapshot")
    if draws.keys() != {"epoch", "items", "crc", "snapshot"}:
        raise StateError(
            "`state['draws']` must have the fields epoch, items, crc and snapshot, got "
            f"{sorted(map(str, draws))}: it is damaged"
        )
    if draws["crc"] is not None:
        counts["crc"] = draws["crc"]
    if snapshot is not None:
        if (
            not isinstance(snapshot, dict)
            or snapshot.keys() != {"of", "state", "items", "crc"}
            or snapshot["of"] not in ("iterator", "sampler")
        ):
            raise StateError("`state['draws']['snapshot']` must be one of feeder's: it is damaged")
        counts["items of the snapshot"] = snapshot["items"]
        counts["crc of the snapshot"] = snapshot["crc"]
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise StateError(
                f"`state['draws']` must have an integer of at least 0 for {name}, got "
                f"{value!r}: it is damaged"
            )
    if snapshot is not None and snapshot["items"] > draws["items"]:
        raise StateError(
            f"`state['draws']` must have a snapshot of no more than its {draws['items']} items, "
            f"got one of {snapshot['items']}: it is damaged"
        )


def copied(sampler: Any, *shared: Any) -> Any:
    """A copy, so that every reader begins where the user's sampler stood.

    Args:
        sampler: The sampler.
        *shared: What is not copied: the data, which PyTorch's samplers refer to.

    Raises:
        Exception: It cannot be copied.
    """
    memo = {id(value): value for value in shared}
    inner: Any = sampler
    while inner is not None:  # a batch sampler's sampler refers to the data too
        for name in ("data_source", "dataset"):
            if (value := getattr(inner, name, None)) is not None:
                memo[id(value)] = value
        inner = getattr(inner, "sampler", None)
    return copy.deepcopy(sampler, memo)


def first_items(sampler: Any, count: int) -> list[Any]:
    """The first items of a copy; as far as it gets, where it raises: the run will tell."""
    items: list[Any] = []
    with contextlib.suppress(Exception):
        own = copied(sampler)
        if hasattr(own, "set_epoch"):
            own.set_epoch(0)
        # One after the other: those before an error count.
        items.extend(np.asarray(item).tolist() for item in itertools.islice(own, count))
    return items


def _state_of(owner: Any) -> Any:
    """Its state as JSON gives it back; None where it has none that JSON can hold."""
    save = stateful.saver(owner) if stateful.is_stateful(owner) else None
    if save is None:
        return None
    state = save()
    try:
        restored = json.loads(json.dumps(state))
        return restored if restored == state else None
    except (TypeError, ValueError):
        return None


def _load_state(owner: Any, name: str, state: Any) -> None:
    load = stateful.loader(owner)
    if load is None:
        raise StateError(
            f"`{name}` must have load_state_dict() or set_state(), since the state has one of it"
        )
    load(copy.deepcopy(state))
