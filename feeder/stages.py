"""The stages of one loader, wired: what its iterators share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feeder.feed import Feeds
from feeder.place.replicas import ReplicaCheck
from feeder.plan import state
from feeder.produce.session import Producer

if TYPE_CHECKING:
    from feeder.place.placer import Placer


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one loader, wired.

    Attributes:
        feeds: Makes what feeds an iterator with local batches.
        identity: What a state must match.
        producer: Builds them.
        placer: Places them; None: they stay on the host.
        batches_ahead: Batches placed ahead of the one delivered.
        max_bad_records: Records that may be left out or replaced in a run; None: any number.
        replicas: Makes what compares an iterator's batches with those of other processes; None:
            nothing does.
    """

    feeds: Feeds
    identity: state.Identity
    producer: Producer
    placer: Placer | None
    batches_ahead: int
    max_bad_records: int | None = None
    replicas: Callable[[], ReplicaCheck] | None = None
