"""Slots that an accelerator's DMA engine reads in place: no copy into a staging buffer.

XLA copies what it sends to a GPU into pinned memory of its own first, unless the memory was
registered with it (`dma_map`): then it reads it where it lies. A slot is registered once, when it
is made, and is used again and again.

Guarantees:
    * Nothing depends on it: where it cannot be done, one warning is logged and batches are copied.
    * A slot is registered no more before its memory is given back.

Owner:
    The slab says when; the `Pinner` remembers which slots are registered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Self

from jax.sharding import Sharding

_log = logging.getLogger("feeder")


class Pinner:
    """Registers slots with the client of an accelerator.

    Args:
        client: XLA's client, with ``dma_map(address, num_bytes)`` and ``dma_unmap(address)``.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pinned: set[int] = set()
        self._gave_up = False

    @classmethod
    def of(cls, shardings: Iterable[Sharding]) -> Self | None:
        """The pinner for the GPUs of this process; None where there is none."""
        for sharding in shardings:
            device: Any  # untyped in JAX
            for device in sharding.addressable_devices:
                if device.platform == "gpu":
                    return cls(device.client)
        return None

    def pin(self, address: int, num_bytes: int) -> None:
        """Registers a new slot."""
        if self._gave_up:
            return
        try:
            self._client.dma_map(address, num_bytes)
        except Exception as error:  # whatever the driver says: it works without
            self._gave_up = True
            _log.warning(
                "slots are not pinned, so each batch is copied once more on its way to the "
                "devices: %s; `pin_memory=False` says so without this warning",
                error,
            )
        else:
            self._pinned.add(address)

    def unpin(self, address: int) -> None:
        """Takes a slot's registration back, where it has one."""
        if address not in self._pinned:
            return
        self._pinned.remove(address)
        try:
            self._client.dma_unmap(address)
        except Exception as error:  # the driver may be gone before the slot, at the very end
            _log.info("a slot could not be unpinned: %s", error)
